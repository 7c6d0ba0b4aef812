#include "runtime/measure.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "spillway/optimizer.h"
#include "spillway/ops.h"
#include "spillway/swap_store.h"
#include "zero/partition.h"

namespace spillway {

namespace {

// Seconds of the quickest of a few repetitions: what the machine can do when nothing disturbs it.
double quickest(int repetitions, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  double best = 0.0;
  for (int i = 0; i < repetitions; ++i) {
    const Clock::time_point start = Clock::now();
    work();
    const double elapsed = std::max(1e-9, std::chrono::duration<double>(Clock::now() - start).count());
    best = i == 0 ? elapsed : std::min(best, elapsed);
  }
  return best;
}

// The first page of memory that has room for one more.
std::byte* aligned(std::vector<std::byte>& memory) {
  return reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::int64_t>(memory.data()), SwapStore::alignment));
}

// A linear map of the model's width, of at most so many rows and columns: more take longer and tell no more.
MatmulDims measured_product(const Device& device, const ModelSpec& spec, const BatchShape& shape) {
  const std::int64_t rows = device.free_memory() ? 8192 : 1024, columns = device.free_memory() ? 16384 : 4096;
  return {std::min(shape.batch * shape.time, rows), std::min(4 * spec.channels, columns), std::min(spec.channels, columns)};
}

// Operands one after the other in the arena of a device.
class Operands {
 public:
  Operands(Device& device, std::int64_t bytes) : next_(device.allocate_arena(bytes)) {}

  static constexpr std::int64_t rounded(std::int64_t bytes) { return round_up(bytes, std::int64_t{256}); }
  std::byte* take(std::int64_t bytes) { return std::exchange(next_, next_ + rounded(bytes)); }

 private:
  std::byte* next_;
};

constexpr std::int64_t kPassElements = 2 << 20, kCopyBytes = 16 << 20;

struct LinearBytes {
  std::int64_t x, weight, y, scratch;
};

LinearBytes linear_bytes(const Ops& ops, const MatmulDims& dims) {
  const std::int64_t width = size_of(ops.dtype());
  return {dims.m * dims.k * width, dims.n * dims.k * width, dims.m * dims.n * width, ops.scratch_sizes().linear_forward(ops.dtype(), dims)};
}

double linear_flops(Ops& ops, Stream& stream, const MatmulDims& dims, Operands& operands) {
  const LinearBytes bytes = linear_bytes(ops, dims);
  std::byte *const x = operands.take(bytes.x), *const weight = operands.take(bytes.weight), *const y = operands.take(bytes.y);
  const std::span<std::byte> scratch(operands.take(bytes.scratch), static_cast<std::size_t>(bytes.scratch));
  const double seconds = quickest(4, [&] {
    ops.linear_forward(stream, {x, weight, nullptr, nullptr, y, dims, scratch});
    stream.synchronize();
  });
  return 2.0 * static_cast<double>(dims.m) * static_cast<double>(dims.n) * static_cast<double>(dims.k) / seconds;
}

double accumulate_bytes(Ops& ops, Stream& stream, Operands& operands) {
  auto* const sum = reinterpret_cast<float*>(operands.take(kPassElements * 4));
  auto* const add = reinterpret_cast<float*>(operands.take(kPassElements * 4));
  const double seconds = quickest(4, [&] {
    ops.accumulate(stream, sum, add, kPassElements);
    stream.synchronize();
  });
  return 12.0 * kPassElements / seconds;
}

double copy_bytes(Stream& stream, std::byte* to, const std::byte* from) {
  const double seconds = quickest(4, [&] {
    stream.copy(to, from, kCopyBytes);
    stream.synchronize();
  });
  return static_cast<double>(kCopyBytes) / seconds;
}

void measure_device(Device& device, const ModelSpec& spec, const BatchShape& shape, DType dtype, MachineRates& rates) {
  const std::unique_ptr<Ops> ops = device.make_ops(dtype);
  const std::unique_ptr<Stream> stream = device.make_stream("rates");
  const MatmulDims dims = measured_product(device, spec, shape);
  const LinearBytes linear = linear_bytes(*ops, dims);
  std::int64_t total = Operands::rounded(kCopyBytes) + 2 * Operands::rounded(kPassElements * 4);
  for (const std::int64_t bytes : {linear.x, linear.weight, linear.y, linear.scratch}) total += Operands::rounded(bytes);
  Operands operands(device, total);
  rates.matmul_flops = linear_flops(*ops, *stream, dims, operands);
  rates.device_bytes = accumulate_bytes(*ops, *stream, operands);
  std::byte *const here = operands.take(kCopyBytes), *const host = device.allocate_pinned(kCopyBytes);
  rates.h2d_bytes = copy_bytes(*stream, here, host);
  rates.d2h_bytes = copy_bytes(*stream, host, here);
}

}  // namespace

double measure_optimizer(const StateFormat& format) {
  constexpr std::int64_t n = 2 << 20;
  const StateLayout layout = state_layout(format, n);
  std::vector<std::byte> state(static_cast<std::size_t>(layout.bytes + SwapStore::alignment));
  std::vector<std::uint16_t> gradient(n), weight(n);
  OptimizerTile tile = tile_at(aligned(state), layout);
  tile.gradient = gradient.data();
  tile.gradient_dtype = tile.weight_dtype = DType::bf16;
  tile.weight = weight.data();
  const OptimizerParams params{.kind = format.kind};
  const double seconds = quickest(4, [&] { optimizer_update_parallel(tile, params); });
  return static_cast<double>(state_traffic(format, n) + 4 * n) / seconds;
}

MachineRates measure_rates(Device& device, const ModelSpec& spec, const BatchShape& shape, DType dtype, const StateFormat& state,
                           std::span<const std::string> nvme_folders, const DiskProbeOptions& probe) {
  MachineRates rates;
  rates.cores = parallel_threads();
  rates.device_shares_cores = !device.free_memory();
  measure_device(device, spec, shape, dtype, rates);
  rates.cpu_adam_bytes = measure_optimizer(state);
  if (nvme_folders.empty()) return rates;
  rates.nvme_read_bytes = rates.nvme_write_bytes = rates.nvme_mixed_bytes = rates.nvme_latency_s = 0.0;
  for (const DiskRates& disk : disk_rates(nvme_folders, probe)) {
    rates.nvme_read_bytes += disk.read_bytes;
    rates.nvme_write_bytes += disk.write_bytes;
    rates.nvme_mixed_bytes += disk.mixed_bytes;
    rates.nvme_latency_s = std::max(rates.nvme_latency_s, disk.latency_s);
  }
  return rates;
}

}  // namespace spillway
