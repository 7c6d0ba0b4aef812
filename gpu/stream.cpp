#include "gpu/stream.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "gpu/check.h"
#include "spillway/error.h"

namespace spillway::cuda {

namespace {

// Non-blocking: ordered by events alone, never by the legacy default stream.
StreamHandle make_cuda_stream(Priority priority) {
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "ask for the priorities of streams");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority == Priority::high ? highest : lowest), "create a stream");
  return StreamHandle(stream);
}

std::string address_text(const void* address) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", address);
  return text;
}

}  // namespace

CudaStream::CudaStream(Context& context, std::string_view name, Priority priority)
    : context_(context), full_name_("stream '" + std::string(name) + "' of " + context.name), calls_(context.failure), end_(context) {
  stream_ = make_cuda_stream(priority);
}

// Whatever became of the work: calls of the host may still be under way, and they live here.
CudaStream::~CudaStream() {
  context_.enter_to_release();
  if (cudaEventRecord(end_.get(), stream_.get()) == cudaSuccess) static_cast<void>(cudaEventSynchronize(end_.get()));
}

const Region& CudaStream::region_of(const void* address, std::int64_t bytes) const {
  if (const Region* region = context_.memory.find(address)) return *region;
  throw DeviceError("[cuda] copy on " + full_name_ + ": the " + std::to_string(bytes) + " bytes at " + address_text(address) +
                    " are neither in an arena of the device nor in registered host memory, and only those can be copied "
                    "asynchronously; stage them in the pinned arena");
}

void CudaStream::copy(void* dst, const void* src, std::int64_t bytes) {
  context_.enter();
  auto* to = static_cast<std::byte*>(dst);
  auto* from = static_cast<const std::byte*>(src);
  // Seen whole before any of it is enqueued. More than one piece only where a range crosses from one registration to the next.
  for (const std::byte* end : {static_cast<const std::byte*>(to) + bytes, from + bytes})
    for (const std::byte* p = end - bytes; p < end; p = region_of(p, end - p).end) {
    }
  while (bytes > 0) {
    const Region& target = region_of(to, bytes);
    const Region& source = region_of(from, bytes);
    const std::int64_t piece = std::min<std::int64_t>({bytes, target.end - to, source.end - from});
    copy_piece(to, target.place, from, source.place, piece);
    to += piece;
    from += piece;
    bytes -= piece;
  }
}

void CudaStream::copy_piece(std::byte* dst, Place to, const std::byte* src, Place from, std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  if (to == Place::pinned && from == Place::pinned) {
    // CUDA would wait for the stream and copy before it returns.
    return calls_.enqueue(stream_.get(), [=] { std::memcpy(dst, src, size); });
  }
  const cudaMemcpyKind kind = to == from ? cudaMemcpyDeviceToDevice : to == Place::device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
  check(cudaMemcpyAsync(dst, src, size, kind, stream_.get()), "copy on");
}

void CudaStream::call(const HostCall& function) {
  context_.enter();
  calls_.enqueue(stream_.get(), function);
}

void CudaStream::record(Event& event) {
  context_.enter();
  static_cast<CudaEvent&>(event).record(stream_.get());
}

void CudaStream::wait(Event& event) {
  context_.enter();
  auto& recorded = static_cast<CudaEvent&>(event);
  if (!recorded.was_recorded()) return;
  check(cudaStreamWaitEvent(stream_.get(), recorded.get(), 0), "make an event be waited for by");
}

void CudaStream::synchronize() {
  context_.enter();
  end_.record(stream_.get());
  end_.synchronize();
}

}  // namespace spillway::cuda
