// The CPU as a device: arenas are mappings, streams are threads, kernels run on the process's workers.
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/parallel.h"
#include "host/gemm.h"
#include "host/host_event.h"
#include "host/host_ops.h"
#include "host/host_stream.h"
#include "spillway/device.h"
#include "spillway/ops.h"

namespace spillway {

namespace {

class HostDevice final : public Device {
 public:
  explicit HostDevice(const HostDeviceOptions& options) : options_(options) {
    set_parallel_threads(options.threads);
    host::load_blas(parallel_threads());  // before there are streams, whose first product would load it
  }

  std::string_view name() const override { return "host"; }
  std::optional<std::int64_t> free_memory() const override { return std::nullopt; }

  std::byte* allocate_arena(std::int64_t bytes) override { return allocate("device arena", bytes, Pin::no, {}); }
  std::byte* allocate_pinned(std::int64_t bytes, std::span<const ByteRange> stretches) override {
    return allocate("pinned arena", bytes, Pin::yes, stretches);
  }

  std::unique_ptr<Stream> make_stream(std::string_view name) override {
    // Streams differ in their delays.
    const std::uint64_t seed = options_.chaos_seed + 0x632be59bd9b4e019u * ++streams_;
    return std::make_unique<host::HostStream>(name, options_.chaos_max_delay_us, seed);
  }

  std::unique_ptr<Event> make_event() override { return std::make_unique<host::HostEvent>(); }
  std::unique_ptr<Ops> make_ops(DType dtype) override { return host::make_host_ops(dtype); }
  std::int64_t now_ns() const override { return host::monotonic_ns(); }

 private:
  std::byte* allocate(std::string_view purpose, std::int64_t bytes, Pin pin, std::span<const ByteRange> stretches) {
    return arenas_.emplace_back(purpose, bytes, pin, stretches).data();
  }

  const HostDeviceOptions options_;
  std::vector<Arena> arenas_;
  std::uint64_t streams_ = 0;
};

}  // namespace

std::unique_ptr<Device> make_host_device(const HostDeviceOptions& options) { return std::make_unique<HostDevice>(options); }

}  // namespace spillway
