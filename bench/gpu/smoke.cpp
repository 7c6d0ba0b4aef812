// Does the device do anything at all: a copy each way, one kernel and one event, through the contracts that a run uses.
#include <fmt/format.h>

#include "gpu/program.h"
#include "spillway/device.h"
#include "spillway/error.h"
#include "spillway/ops.h"

namespace spillway::bench {
namespace {

constexpr std::int64_t kCount = 1 << 16;
constexpr std::int64_t kClockErrorNs = 1'000'000;  // between the device's clock and the host's, generously
constexpr std::int64_t kBytes = kCount * std::int64_t{sizeof(float)};

void check() {
  const std::unique_ptr<Device> device = make_cuda_device(0);
  std::byte* const arena = device->allocate_arena(2 * kBytes);
  const auto values = reinterpret_cast<float*>(device->allocate_pinned(2 * kBytes));
  const std::unique_ptr<Stream> compute = device->make_stream("compute"), up = device->make_stream("d2h");
  const std::unique_ptr<Event> summed = device->make_event();
  const std::unique_ptr<Ops> ops = device->make_ops(DType::bf16);
  for (std::int64_t i = 0; i < 2 * kCount; ++i) values[i] = static_cast<float>(i);

  const std::int64_t start = device->now_ns();
  const auto sums = reinterpret_cast<float*>(arena);
  compute->copy(arena, values, 2 * kBytes);
  ops->accumulate(*compute, sums, sums + kCount, kCount);
  compute->record(*summed);
  up->wait(*summed);
  up->copy(values, sums, kBytes);
  up->synchronize();
  summed->synchronize();
  const std::int64_t end = device->now_ns();

  for (std::int64_t i = 0; i < kCount; ++i) {
    if (values[i] != static_cast<float>(2 * i + kCount))
      throw DeviceError(fmt::format("[smoke] element {} is {}, expected {}", i, values[i], 2 * i + kCount));
  }
  if (summed->time_ns() < start - kClockErrorNs || summed->time_ns() > end + kClockErrorNs)
    throw DeviceError(fmt::format("[smoke] the event's time {} is not between {} and {}", summed->time_ns(), start, end));
  fmt::print("{{\"device\": \"{}\", \"free_bytes\": {}}}\n", device->name(), device->free_memory().value_or(0));
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  return spillway::bench::run_program(argc, argv, [](bool) { spillway::bench::check(); });
}
