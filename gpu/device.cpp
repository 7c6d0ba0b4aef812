#include "gpu/device.h"

#include <algorithm>
#include <list>
#include <string>

#include "base/text.h"
#include "gpu/check.h"
#include "gpu/device_account.h"
#include "gpu/device_info.h"
#include "gpu/kernel_list.h"
#include "gpu/ops.h"
#include "gpu/pinned_arena.h"
#include "gpu/stream.h"
#include "spillway/error.h"
#include "spillway/ops.h"

namespace spillway::cuda {

namespace {

// Left on the device for what is loaded later: cuBLASLt's kernels (some 100 MiB), ours, NCCL's channels, and what is lost to
// the allocator's granularity.
constexpr std::int64_t kLibraryReserve = std::int64_t{512} << 20;

using DeviceMemory = Handle<void*, cudaFree>;

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : context_(index), own_stream_(context_, "device", Priority::normal), account_(pci_address(index)) {
    load_kernels();
  }
  ~CudaDevice() override { context_.enter_to_release(); }

  std::string_view name() const override { return context_.name; }
  std::optional<std::int64_t> free_memory() const override;
  std::byte* allocate_arena(std::int64_t bytes) override;
  std::byte* allocate_pinned(std::int64_t bytes, std::span<const ByteRange> stretches) override {
    return pinned_.emplace_back(context_, bytes, PinnedArena::kPieceBytes, stretches).data();
  }
  std::unique_ptr<Stream> make_stream(std::string_view name) override;
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(context_); }
  std::unique_ptr<Ops> make_ops(DType dtype) override;
  std::int64_t now_ns() const override { return monotonic_ns(); }
  std::optional<DeviceUse> use() const override { return account_.use(); }

  Context& context() { return context_; }

 private:
  mutable Context context_;
  CudaStream own_stream_;
  const DeviceAccount account_;
  std::list<PinnedArena> pinned_;
  std::list<DeviceMemory> arenas_;
};

std::optional<std::int64_t> CudaDevice::free_memory() const {
  context_.enter();
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "ask how much memory of " + context_.name + " is free");
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(free) - kLibraryReserve);
}

std::byte* CudaDevice::allocate_arena(std::int64_t bytes) {
  context_.enter();
  const std::string attempted = "[" + context_.name + "] allocate " + human_bytes(bytes) + " for the device arena: ";
  if (bytes <= 0) throw MemoryError(attempted + "the size has to be positive");
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<std::size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or the next launch would report it a second time
    throw MemoryError(attempted + error_text(error) + "; " + human_bytes(*free_memory()) + " can be had");
  }
  check(error, "allocate the device arena");
  arenas_.emplace_back(memory);
  own_stream_.enqueue([&](cudaStream_t stream) {
    check(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(bytes), stream), "fill the device arena");
  });
  own_stream_.synchronize();
  context_.memory.add(memory, bytes, Place::device);
  return static_cast<std::byte*>(memory);
}

// Kernels of the lanes that others wait for go first when both could run: those of collectives. Copies have engines of
// their own and no priorities.
std::unique_ptr<Stream> CudaDevice::make_stream(std::string_view name) {
  context_.enter();
  return std::make_unique<CudaStream>(context_, name, name == "compute" ? Priority::normal : Priority::high);
}

std::unique_ptr<Ops> CudaDevice::make_ops(DType dtype) {
  context_.enter();
  return cuda::make_ops(dtype);
}

}  // namespace

std::unique_ptr<Device> make_device(int index) { return std::make_unique<CudaDevice>(index); }

Context& context_of(Device& device) { return static_cast<CudaDevice&>(device).context(); }

}  // namespace spillway::cuda
