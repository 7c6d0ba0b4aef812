// The device's peak as far as a program can have it: the quickest product of matrices that cuBLASLt offers, bf16 with f32
// sums, on random values (a product of zeros draws less power and runs faster).
#include <algorithm>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "gpu/cuda_memory.h"
#include "gpu/gemm.h"
#include "gpu/program.h"
#include "gpu/scratch_sizes.h"
#include "support/machine.h"

namespace spillway::bench {
namespace {

constexpr int kRounds = 5;

class Products {
 public:
  explicit Products(std::int64_t largest)
      : operands_(static_cast<std::size_t>(2 * largest * largest) * 2), result_(static_cast<std::size_t>(largest * largest) * 2) {
    const PinnedMemory values(operands_.size());
    std::mt19937 random(1);
    // Between 1/256 and 2 with either sign: exponents 119 to 127.
    for (std::uint16_t& value : values.as<std::uint16_t>()) {
      const std::uint32_t bits = random();
      value = static_cast<std::uint16_t>((bits & 0x807fu) | ((119u + (bits >> 16) % 9u) << 7));
    }
    stream_.copy(operands_.data(), values.data(), operands_.size());
    stream_.synchronize();
  }

  // Flop per second of `count` products of n by n.
  double rate(std::int64_t n, int count) {
    enqueue(n, 2);
    stream_.synchronize();
    std::vector<double> rates;
    for (int round = 0; round < kRounds; ++round) {
      cuda::check(cudaEventRecord(begin_.get(), stream_.get()), "record an event");
      enqueue(n, count);
      cuda::check(cudaEventRecord(end_.get(), stream_.get()), "record an event");
      stream_.synchronize();
      float ms = 0.0f;
      cuda::check(cudaEventElapsedTime(&ms, begin_.get(), end_.get()), "read events");
      rates.push_back(2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) * count / std::max(1e-3 * static_cast<double>(ms), 1e-9));
    }
    return median(rates);
  }

 private:
  using EventHandle = cuda::Handle<cudaEvent_t, cudaEventDestroy>;
  static EventHandle make_event() {
    cudaEvent_t event = nullptr;
    cuda::check(cudaEventCreate(&event), "make an event");
    return EventHandle(event);
  }

  void enqueue(std::int64_t n, int count) {
    for (int i = 0; i < count; ++i)
      gemm_.multiply(stream_.get(), {.m = n,
                                     .n = n,
                                     .k = n,
                                     .operands = DType::bf16,
                                     .stored = DType::bf16,
                                     .a = {operands_.data(), n},
                                     .b = {operands_.data() + 2 * n * n, n, true},
                                     .result = result_.data(),
                                     .ld = n,
                                     .workspace = {workspace_.data(), workspace_.size()}});
  }

  CudaStream stream_;
  cuda::Gemm gemm_;
  EventHandle begin_ = make_event(), end_ = make_event();
  DeviceMemory operands_, result_, workspace_{static_cast<std::size_t>(cuda::kGemmWorkspaceBytes)};
};

void measure(std::vector<std::int64_t> sizes, int count) {
  Products products(sizes.back());
  double best = 0.0;
  std::string rows;
  for (const std::int64_t n : sizes) {
    const double rate = products.rate(n, count);
    best = std::max(best, rate);
    rows += fmt::format(R"({}{{"n": {}, "flop_per_s": {:.4g}}})", rows.empty() ? "" : ", ", n, rate);
  }
  fmt::print(R"({{"dtype": "bf16", "flop_per_s": {:.4g}, "products": [{}]}})" "\n", best, rows);
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  return spillway::bench::run_program(argc, argv, [](bool quick) {
    quick ? spillway::bench::measure({32, 64}, 1) : spillway::bench::measure({4096, 8192, 12288}, 10);
  });
}
