#include "gpu/nccl_communicator.h"

#include <cassert>
#include <chrono>
#include <climits>
#include <thread>

#include "gpu/check.h"
#include "gpu/handle.h"
#include "gpu/nccl_watch.h"
#include "spillway/error.h"

namespace spillway::cuda {

namespace {

constexpr std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
constexpr std::size_t count(const Part& part) { return static_cast<std::size_t>(part.bytes); }

// One after the other in the order of ranks, all of one size: what ncclAllGather can do.
bool are_even(std::span<const Part> parts) {
  for (std::size_t r = 1; r < parts.size(); ++r)
    if (parts[r].bytes != parts[0].bytes || parts[r].offset != parts[r - 1].offset + parts[0].bytes) return false;
  return true;
}

void require_device_memory(const CudaStream& stream, const std::byte* buffer, std::span<const Part> parts, const char* what) {
  for (const Part& part : parts) {
    if (part.bytes == 0) continue;
    const Region* const region = stream.context().memory.find(buffer + part.offset);
    if (region == nullptr || region->place != Place::device || region->end - (buffer + part.offset) < part.bytes)
      throw DeviceError("[nccl] " + std::string(what) + " of " + std::to_string(part.bytes) + " bytes: the buffer is not in an arena of " +
                        stream.context().name + ", and NCCL moves nothing else; copy it there first");
  }
}

using StreamOwner = Handle<cudaStream_t, cudaStreamDestroy>;
using MemoryOwner = Handle<void*, cudaFree>;

}  // namespace

NcclCommunicator::NcclCommunicator(std::unique_ptr<Communicator> control, std::unique_ptr<NcclLink> link, NcclWatch& watch, int device)
    : control_(std::move(control)), link_(std::move(link)), watch_(watch), device_(device) {
  if (link_) connect();
}

// NCCL makes connections when they are first used: each kind of collective is used once, on a stream and memory of its own.
void NcclCommunicator::connect() {
  constexpr std::int64_t kBytes = 256;
  std::vector<Part> parts, others;
  for (int r = 0; r < size(); ++r) {
    parts.push_back({r * kBytes, kBytes});
    others.push_back({(size() + r) * kBytes, kBytes});
  }
  check(cudaSetDevice(device_), "make the rank's device current");
  cudaStream_t made = nullptr;
  check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "create a stream to connect the ranks");
  const StreamOwner stream(made);
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<std::size_t>(2 * size() * kBytes)), "allocate memory to connect the ranks");
  const MemoryOwner owner(memory);
  check(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(2 * size() * kBytes), made), "fill memory to connect the ranks");
  auto* const buffer = static_cast<std::byte*>(memory);
  link_->enqueue("connect the ranks", [&](ncclComm_t comm) { return gather(comm, made, buffer, parts); });
  link_->enqueue("connect the ranks", [&](ncclComm_t comm) { return send_and_receive(comm, made, buffer, parts, buffer, others); });
  for (cudaError_t state; (state = cudaStreamQuery(made)) != cudaSuccess;) {
    if (state != cudaErrorNotReady) check(state, "connect the ranks");
    watch_.check();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color) {
  std::unique_ptr<Communicator> control = control_->split(color);
  std::unique_ptr<NcclLink> link;
  // Nobody who is alone needs NCCL, but those who are not wait for all. Colours of NCCL are not negative.
  const int nccl_color = control->size() == 1 ? NCCL_SPLIT_NOCOLOR : static_cast<int>(static_cast<unsigned>(color) & INT_MAX);
  if (link_) link = link_->split(nccl_color, rank());
  return std::make_unique<NcclCommunicator>(std::move(control), std::move(link), watch_, device_);
}

// NCCL counts in size_t: parts of any size go in one message.
ncclResult_t NcclCommunicator::gather(ncclComm_t comm, cudaStream_t stream, std::byte* buffer, std::span<const Part> parts) const {
  if (are_even(parts))
    return nccl().all_gather(buffer + parts[index(rank())].offset, buffer + parts[0].offset, count(parts[0]), ncclUint8, comm, stream);
  return in_group([&] {
    ncclResult_t first = ncclSuccess;
    for (int r = 0; r < size(); ++r) {
      const Part& part = parts[index(r)];
      if (part.bytes == 0) continue;
      std::byte* const at = buffer + part.offset;
      const ncclResult_t result = nccl().broadcast(at, at, count(part), ncclUint8, r, comm, stream);
      if (first == ncclSuccess) first = result;
    }
    return first;
  });
}

void NcclCommunicator::all_gather(Stream& stream, std::byte* buffer, std::span<const Part> parts) {
  assert(parts.size() == index(size()));
  if (!link_) return;
  CudaStream& on = cuda_stream(stream);
  on.enqueue([&](cudaStream_t handle) {
    require_device_memory(on, buffer, parts, "all_gather");
    link_->enqueue(on.context(), "all_gather", [&](ncclComm_t comm) { return gather(comm, handle, buffer, parts); });
  });
  sent_bytes_.fetch_add(parts[index(rank())].bytes * (size() - 1), std::memory_order_relaxed);
}

ncclResult_t NcclCommunicator::send_and_receive(ncclComm_t comm, cudaStream_t stream, const std::byte* send, std::span<const Part> send_parts,
                                                std::byte* receive, std::span<const Part> receive_parts) const {
  return in_group([&] {
    ncclResult_t first = ncclSuccess;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      const Part &to = send_parts[index(r)], &from = receive_parts[index(r)];
      for (const ncclResult_t result :
           {to.bytes == 0 ? ncclSuccess : nccl().send(send + to.offset, count(to), ncclUint8, r, comm, stream),
            from.bytes == 0 ? ncclSuccess : nccl().receive(receive + from.offset, count(from), ncclUint8, r, comm, stream)})
        if (first == ncclSuccess) first = result;
    }
    return first;
  });
}

void NcclCommunicator::all_to_all(Stream& stream, const std::byte* send, std::span<const Part> send_parts, std::byte* receive,
                                  std::span<const Part> receive_parts) {
  assert(send_parts.size() == index(size()) && receive_parts.size() == send_parts.size());
  CudaStream& on = cuda_stream(stream);
  on.enqueue([&](cudaStream_t handle) {
    require_device_memory(on, send, send_parts, "all_to_all");
    require_device_memory(on, receive, receive_parts, "all_to_all");
    const Part &from = send_parts[index(rank())], &to = receive_parts[index(rank())];
    assert(from.bytes == to.bytes);
    if (from.bytes > 0)
      check(cudaMemcpyAsync(receive + to.offset, send + from.offset, count(from), cudaMemcpyDeviceToDevice, handle), "copy a rank's own part");
    if (!link_) return;
    link_->enqueue(on.context(), "all_to_all", [&](ncclComm_t comm) {
      return send_and_receive(comm, handle, send, send_parts, receive, receive_parts);
    });
  });
  std::int64_t sent = -send_parts[index(rank())].bytes;
  for (const Part& part : send_parts) sent += part.bytes;
  sent_bytes_.fetch_add(sent, std::memory_order_relaxed);
}

}  // namespace spillway::cuda
