// The link between host and device, each way and both at once: the engine's copies between its arenas, beside plain
// cudaMemcpyAsync between memory of cudaHostAlloc and cudaMalloc.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "gpu/cuda_memory.h"
#include "gpu/program.h"
#include "spillway/device.h"
#include "support/machine.h"

namespace spillway::bench {
namespace {

constexpr int kRounds = 5;
constexpr int kCopies = 8;  // in a measurement

// A way to copy `bytes` each way without waiting, and to wait for both.
struct Copier {
  std::function<void()> down, up, wait;
};

double seconds_of(const Copier& copier, bool down, bool up) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCopies; ++i) {
    if (down) copier.down();
    if (up) copier.up();
  }
  copier.wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The two take turns, a round is a turn of each; a ratio is the median of the rounds'.
std::string compare(const std::string& name, const Copier& engine, const Copier& plain, std::int64_t bytes, bool down, bool up) {
  const double moved = static_cast<double>(bytes) * kCopies * ((down ? 1 : 0) + (up ? 1 : 0));
  std::vector<double> engine_rates, plain_rates, ratios;
  for (int round = 0; round < kRounds; ++round) {
    engine_rates.push_back(moved / seconds_of(engine, down, up));
    plain_rates.push_back(moved / seconds_of(plain, down, up));
    ratios.push_back(engine_rates.back() / plain_rates.back());
  }
  return fmt::format(R"("{}": {{"bytes_per_s": {:.4g}, "plain_bytes_per_s": {:.4g}, "to_plain": {:.4f}}})", name, median(engine_rates), median(plain_rates),
                     median(ratios));
}

void measure(std::int64_t bytes) {
  const std::unique_ptr<Device> device = make_cuda_device(0);
  std::byte* const arena = device->allocate_arena(2 * bytes);
  std::byte* const pinned = device->allocate_pinned(2 * bytes);
  const std::unique_ptr<Stream> h2d = device->make_stream("h2d"), d2h = device->make_stream("d2h");
  const Copier engine = {.down = [&] { h2d->copy(arena, pinned, bytes); },
                         .up = [&] { d2h->copy(pinned + bytes, arena + bytes, bytes); },
                         .wait = [&] { h2d->synchronize(), d2h->synchronize(); }};

  const auto size = static_cast<std::size_t>(bytes);
  const DeviceMemory on_device(2 * size);
  const PinnedMemory on_host(2 * size);
  const CudaStream down, up;
  const Copier plain = {.down = [&] { down.copy(on_device.data(), on_host.data(), size); },
                        .up = [&] { up.copy(on_host.data() + size, on_device.data() + size, size); },
                        .wait = [&] { down.synchronize(), up.synchronize(); }};

  for (const Copier* copier : {&engine, &plain}) seconds_of(*copier, true, true);  // the first copies are slow
  fmt::print("{{{}, {}, {}}}\n", compare("h2d", engine, plain, bytes, true, false), compare("d2h", engine, plain, bytes, false, true),
             compare("both", engine, plain, bytes, true, true));
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  return spillway::bench::run_program(argc, argv, [](bool quick) { spillway::bench::measure(quick ? 1 << 16 : 256 << 20); });
}
