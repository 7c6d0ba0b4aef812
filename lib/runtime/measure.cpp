#include "runtime/measure.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/parallel.h"
#include "spillway/cpu_adam.h"
#include "spillway/ops.h"
#include "spillway/swap_store.h"
#include "zero/partition.h"

namespace spillway {

namespace {

// Seconds of the quickest of a few repetitions: what the machine can do when nothing disturbs it.
double quickest(Device& device, int repetitions, const std::function<void()>& work) {
  std::int64_t best = 0;
  for (int i = 0; i < repetitions; ++i) {
    const std::int64_t start = device.now_ns();
    work();
    const std::int64_t elapsed = std::max<std::int64_t>(1, device.now_ns() - start);
    best = i == 0 ? elapsed : std::min(best, elapsed);
  }
  return static_cast<double>(best) * 1e-9;
}

double linear_flops(Device& device, Ops& ops, Stream& stream, const ModelSpec& spec, const BatchShape& shape, DType dtype) {
  const MatmulDims dims = {std::min<std::int64_t>(shape.batch * shape.time, 1024), std::min<std::int64_t>(4 * spec.channels, 4096),
                           std::min<std::int64_t>(spec.channels, 4096)};
  const auto bytes = [&](std::int64_t n) { return static_cast<std::size_t>(n * size_of(dtype)); };
  std::vector<std::byte> x(bytes(dims.m * dims.k)), weight(bytes(dims.n * dims.k)), y(bytes(dims.m * dims.n));
  std::vector<std::byte> scratch(static_cast<std::size_t>(ops.scratch_sizes().linear_forward(dtype, dims)));
  const double seconds = quickest(device, 4, [&] {
    ops.linear_forward(stream, {x.data(), weight.data(), nullptr, nullptr, y.data(), dims, scratch});
    stream.synchronize();
  });
  return 2.0 * static_cast<double>(dims.m) * static_cast<double>(dims.n) * static_cast<double>(dims.k) / seconds;
}

double accumulate_bytes(Device& device, Ops& ops, Stream& stream) {
  constexpr std::int64_t n = 2 << 20;
  std::vector<float> sum(n), add(n);
  const double seconds = quickest(device, 4, [&] {
    ops.accumulate(stream, sum.data(), add.data(), n);
    stream.synchronize();
  });
  return 12.0 * n / seconds;
}

double copy_bytes(Device& device, Stream& stream) {
  constexpr std::int64_t bytes = 16 << 20;
  std::vector<std::byte> from(bytes), to(bytes);
  const double seconds = quickest(device, 4, [&] {
    stream.copy(to.data(), from.data(), bytes);
    stream.synchronize();
  });
  return static_cast<double>(bytes) / seconds;
}

double adam_bytes(Device& device) {
  constexpr std::int64_t n = 2 << 20, piece = 32 * 1024;
  std::vector<float> master(n), m(n), v(n);
  std::vector<std::uint16_t> gradient(n), weight(n);
  const AdamParams params = {1e-3, 0.9, 0.999, 1e-8, 0.0, true, true, 1, 1.0f};
  const double seconds = quickest(device, 4, [&] {
    parallel_for(ceil_div(n, piece), [&](std::int64_t p) {
      const auto at = static_cast<std::size_t>(p * piece);
      adam_update({&master[at], &m[at], &v[at], &gradient[at], DType::bf16, &weight[at], DType::bf16, piece}, params);
    });
  });
  return 28.0 * n / seconds;
}

void measure_disk(Device& device, const std::string& folder, const std::string& io_engine, MachineRates& rates) {
  constexpr int count = 16;
  constexpr std::int64_t bytes = 4 << 20;
  SwapStoreOptions options;
  options.folder = folder;
  options.bytes = count * bytes;
  options.engine.name = io_engine;
  options.verify = false;
  for (int i = 0; i < count; ++i) options.extents.push_back({"rate measurement", i * bytes, bytes});
  const std::unique_ptr<SwapStore> store = make_swap_store(std::move(options));
  const std::unique_ptr<SwapChannel> channel = store->open_channel();
  std::vector<std::byte> memory(static_cast<std::size_t>(count * bytes + SwapStore::alignment));
  auto* aligned = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::int64_t>(memory.data()), SwapStore::alignment));
  const auto finish = [&] {
    while (channel->in_flight() > 0) channel->completions(true);
  };
  const auto rate_of = [&](auto transfer) {
    const std::int64_t start = device.now_ns();
    for (int i = 0; i < count; ++i) transfer(i, aligned + i * bytes);
    finish();
    return static_cast<double>(count * bytes) * 1e9 / static_cast<double>(std::max<std::int64_t>(1, device.now_ns() - start));
  };
  rates.nvme_write_bytes = rate_of([&](int i, std::byte* data) { channel->write(i, data, 0); });
  rates.nvme_write_bytes = std::max(rates.nvme_write_bytes, rate_of([&](int i, std::byte* data) { channel->write(i, data, 0); }));
  rates.nvme_read_bytes = rate_of([&](int i, std::byte* data) { channel->read(i, data, 0); });
  rates.nvme_mixed_bytes = rate_of([&](int i, std::byte* data) { i % 2 == 0 ? channel->read(i, data, 0) : channel->write(i, data, 0); });
}

}  // namespace

MachineRates measure_host_rates(Device& device, const ModelSpec& spec, const BatchShape& shape, DType dtype, const std::string& nvme_folder,
                                const std::string& io_engine) {
  const std::unique_ptr<Ops> ops = device.make_ops(dtype);
  const std::unique_ptr<Stream> stream = device.make_stream("rates");
  MachineRates rates;
  rates.cores = parallel_threads();
  rates.device_shares_cores = true;
  rates.matmul_flops = linear_flops(device, *ops, *stream, spec, shape, dtype);
  rates.device_bytes = accumulate_bytes(device, *ops, *stream);
  rates.h2d_bytes = rates.d2h_bytes = copy_bytes(device, *stream);
  rates.cpu_adam_bytes = adam_bytes(device);
  if (!nvme_folder.empty()) measure_disk(device, nvme_folder, io_engine, rates);
  return rates;
}

}  // namespace spillway
