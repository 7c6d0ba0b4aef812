// The optimizer's update beside the memory it is bound by: on the device beside copies within device memory, on the host
// beside a copy by all cores. Bytes are what an update has to read and write, 28 a parameter: master weight and two moments
// in and out, 16-bit gradient in, 16-bit weight out.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "base/parallel.h"
#include "gpu/program.h"
#include "spillway/device.h"
#include "spillway/ops.h"
#include "spillway/optimizer.h"
#include "support/machine.h"

namespace spillway::bench {
namespace {

constexpr std::int64_t kBytesPerParameter = 28;
constexpr int kRounds = 5;
constexpr OptimizerParams kParams{.weight_decay = 0.1};

OptimizerTile tile_in(std::byte* memory, std::int64_t n) {
  OptimizerTile tile = tile_at(memory, state_layout({}, n));
  tile.gradient = memory + 12 * n;
  tile.weight = memory + 14 * n;
  tile.gradient_dtype = tile.weight_dtype = DType::bf16;
  return tile;
}

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The update and the copy take turns; a ratio is the median of the rounds'.
void report(const char* where, double update_bytes, double copied_bytes, const auto& update, const auto& copy) {
  update(), copy();  // the first ones are slow
  std::vector<double> rates, roofs, ratios;
  for (int round = 0; round < kRounds; ++round) {
    rates.push_back(update_bytes / seconds_of(update));
    roofs.push_back(copied_bytes / seconds_of(copy));
    ratios.push_back(rates.back() / roofs.back());
  }
  fmt::print(R"("{}": {{"bytes_per_s": {:.4g}, "parameters_per_s": {:.4g}, "copy_bytes_per_s": {:.4g}, "to_copy": {:.4f}}})", where, median(rates),
             median(rates) / kBytesPerParameter, median(roofs), median(ratios));
}

void measure(std::int64_t n, int repetitions) {
  const std::unique_ptr<Device> device = make_cuda_device(0);
  const std::int64_t bytes = 16 * n, half = bytes / 2;
  std::byte* const on_device = device->allocate_arena(bytes);
  std::byte* const on_host = device->allocate_pinned(bytes);
  const std::unique_ptr<Stream> stream = device->make_stream("compute");
  const std::unique_ptr<Ops> ops = device->make_ops(DType::bf16);
  std::memset(on_host, 0, static_cast<std::size_t>(bytes));
  stream->copy(on_device, on_host, bytes);
  const auto repeat = [&](const auto& work) {
    return [&, work] {
      for (int i = 0; i < repetitions; ++i) work();
      stream->synchronize();
    };
  };

  fmt::print("{{");
  report("device", static_cast<double>(kBytesPerParameter * n * repetitions), static_cast<double>(2 * half * repetitions),
         repeat([&] { ops->optimizer_update(*stream, tile_in(on_device, n), kParams); }), repeat([&] { stream->copy(on_device + half, on_device, half); }));
  fmt::print(", ");
  const OptimizerTile tile = tile_in(on_host, n);
  const std::int64_t pieces = n / (32 * 1024);
  report(
      "host", static_cast<double>(kBytesPerParameter * n), static_cast<double>(2 * half),
      [&] { optimizer_update_parallel(tile, kParams); },
      [&] {
        const std::int64_t part = half / pieces;
        parallel_for(pieces, [&](std::int64_t piece) { std::memcpy(on_host + half + piece * part, on_host + piece * part, static_cast<std::size_t>(part)); });
      });
  fmt::print(R"(, "parameters": {}, "instruction_set": "{}"}})"
             "\n",
             n, active_isa());
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  return spillway::bench::run_program(argc, argv, [](bool quick) { quick ? spillway::bench::measure(1 << 16, 1) : spillway::bench::measure(1 << 28, 4); });
}
