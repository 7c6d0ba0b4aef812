// Right kernels give right results, in every order of a block's threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>

#include "cuda_sim/cuda_sim.h"
#include "cuda_sim/sample_device.h"
#include "cuda_sim/sample_kernels.h"
#include "spillway/dtype.h"
#include "spillway/error.h"

namespace {

using cuda_sim::ThreadOrder;
using sample::Device;
using sample::Stream;

class SimulatedKernel : public ::testing::TestWithParam<ThreadOrder> {
 protected:
  void SetUp() override {
    cuda_sim::reset();
    cuda_sim::Settings settings = cuda_sim::settings();
    settings.order = GetParam();
    cuda_sim::set_settings(settings);
  }
  void TearDown() override { cuda_sim::reset(); }

  Stream stream_;
};

INSTANTIATE_TEST_SUITE_P(Orders, SimulatedKernel,
                         ::testing::Values(ThreadOrder::forward, ThreadOrder::reverse, ThreadOrder::shuffled),
                         [](const auto& info) {
                           return std::string(info.param == ThreadOrder::forward   ? "Forward"
                                              : info.param == ThreadOrder::reverse ? "Reverse"
                                                                                   : "Shuffled");
                         });

TEST_P(SimulatedKernel, RunsEveryThreadOfEveryBlockOnce) {
  const Device<float> x(1000);
  sample::fill(x, 1000, 0.5f, stream_);
  const std::vector<float> values = sample::values_of(x, stream_);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], 0.5f + static_cast<float>(i));
}

TEST_P(SimulatedKernel, HasCoordinatesInThreeDimensions) {
  constexpr dim3 kGrid{3, 2, 2}, kBlock{8, 4, 3};
  constexpr std::size_t kThreads = 12 * 96;
  const Device<int> out(kThreads);
  sample::coordinates(out, kGrid, kBlock, stream_);
  std::vector<int> expected(kThreads);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(sample::values_of(out, stream_), expected);
}

TEST_P(SimulatedKernel, ReducesOverBlocks) {
  constexpr int kRows = 3, kColumns = 200;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(kRows * kColumns);
  for (float& value : x) value = normal(random);
  const Device<float> in(x.size()), out(x.size());
  sample::set_values<float>(in, x, stream_);
  sample::row_softmax(out, in, kRows, kColumns, stream_);
  const std::vector<float> y = sample::values_of(out, stream_);
  for (int row = 0; row < kRows; ++row) {
    double sum = 0;
    for (int c = 0; c < kColumns; ++c) sum += std::exp(static_cast<double>(x[static_cast<std::size_t>(row * kColumns + c)]));
    for (int c = 0; c < kColumns; ++c) {
      const auto i = static_cast<std::size_t>(row * kColumns + c);
      ASSERT_NEAR(y[i], std::exp(static_cast<double>(x[i])) / sum, 1e-6);
    }
  }
}

TEST_P(SimulatedKernel, ExchangesThroughDynamicSharedMemory) {
  std::vector<float> x(2 * 100);
  std::iota(x.begin(), x.end(), 0.0f);
  const Device<float> device(x.size());
  sample::set_values<float>(device, x, stream_);
  sample::reverse_rows(device, 2, 100, stream_);
  std::reverse(x.begin(), x.begin() + 100);
  std::reverse(x.begin() + 100, x.end());
  EXPECT_EQ(sample::values_of(device, stream_), x);
}

TEST_P(SimulatedKernel, ExchangesWithinWarps) {
  const Device<unsigned> device(sample::kWarpResults * 64);
  sample::warp_operations(device, stream_);
  const std::vector<unsigned> results = sample::values_of(device, stream_);
  const auto result = [&](int operation, unsigned thread) { return results[static_cast<std::size_t>(operation) * 64 + thread]; };
  for (unsigned t = 0; t < 64; ++t) {
    const unsigned lane = t % 32, warp = t - lane;
    EXPECT_EQ(result(0, t), 7 * (lane + 3 < 32 ? t + 3 : t));
    EXPECT_EQ(result(1, t), 7 * (t % 8 >= 2 ? t - 2 : t));
    EXPECT_EQ(result(2, t), 7 * (t ^ 5u));
    EXPECT_EQ(result(3, t), 7 * (t / 8 * 8 + 1));
    unsigned ballot = 0;
    for (unsigned other = 0; other < 32; ++other) ballot |= (warp + other) % 3 == 0 ? 1u << other : 0u;
    EXPECT_EQ(result(4, t), ballot);
    EXPECT_EQ(result(5, t), warp == 32 ? 3u : 0u);
    EXPECT_EQ(result(6, t), 7 * ((t ^ 16u) + (warp + 31) * 1000 + (lane < 2 ? t + 30 : t) * 1000000));
    EXPECT_EQ(result(7, t), 7 * (lane < 16 ? t ^ 3u : t ^ 1u));
    EXPECT_EQ(result(8, t), 7 * (32 * warp + 31 * 16));
  }
}

TEST_P(SimulatedKernel, CountsAtomically) {
  const Device<unsigned> counter(1);
  sample::must(cudaMemsetAsync(counter, 0, counter.bytes(), stream_));
  sample::count_up(counter, 5, stream_);
  EXPECT_EQ(sample::values_of(counter, stream_), (std::vector<unsigned>{160}));
}

TEST_P(SimulatedKernel, StartsBlocksWithSharedMemoryUnset) {
  const Device<float> out(64);
  sample::unset_shared(out, stream_);
  for (const float value : sample::values_of(out, stream_)) EXPECT_TRUE(std::isnan(value));
}

TEST_P(SimulatedKernel, RaisesItsLimitOfSharedMemory) {
  constexpr std::size_t kBytes = 100 * 1024;
  EXPECT_EQ(sample::try_launch({1}, {32}, kBytes, stream_), cudaErrorInvalidValue);
  const Device<float> out(1);
  sample::big_shared(out, kBytes, stream_);
  EXPECT_EQ(sample::values_of(out, stream_), (std::vector<float>{kBytes / sizeof(float) - 1}));
  try {
    sample::big_shared(out, 300 * 1024, stream_);
    ADD_FAILURE() << "more shared memory than any device has was accepted";
  } catch (const spillway::DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("[cuda] launch big_shared: "), std::string::npos) << error.what();
  }
}

TEST_P(SimulatedKernel, RoundsOncePerOperation) {
  const float a = 1.0000001f, b = 3.0000002f, c = -3.0000005f;
  const Device<float> out(6);
  sample::arithmetic(out, a, b, c, stream_);
  const std::vector<float> expected{a * b, a + b, a - b, a / b, std::sqrt(a), std::fma(a, b, c)};
  EXPECT_EQ(sample::values_of(out, stream_), expected);
}

// Conversions are dtype.h's, bit by bit: subnormals, ties, overflow, infinities, NaN of every kind.
template <class T>
void expect_same_conversions(bool half, const Stream& stream) {
  std::vector<float> x;
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  // Around every value of the narrow type: itself, and what lies just beside the middle to the next.
  for (std::uint32_t bits = 0; bits < 0x10000u; bits += 7) {
    const std::uint32_t exact = std::bit_cast<std::uint32_t>(spillway::to_float(T{static_cast<std::uint16_t>(bits)}));
    for (const std::uint32_t offset : {0u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u}) {
      x.push_back(std::bit_cast<float>(exact + offset));
    }
  }
  const Device<float> in(x.size()), out(x.size());
  const Device<unsigned short> narrow(x.size());
  sample::set_values<float>(in, x, stream);
  sample::round_trip(out, narrow, in, static_cast<int>(x.size()), half, stream);
  const std::vector<unsigned short> bits = sample::values_of(narrow, stream);
  const std::vector<float> wide = sample::values_of(out, stream);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const T expected = spillway::from_float<T>(x[i]);
    ASSERT_EQ(bits[i], expected.bits) << std::bit_cast<std::uint32_t>(x[i]);
    const float expected_wide = spillway::to_float(expected);
    ASSERT_TRUE(wide[i] == expected_wide || (std::isnan(wide[i]) && std::isnan(expected_wide)));
  }
}

TEST_P(SimulatedKernel, ConvertsToHalfAsTheHostDoes) { expect_same_conversions<spillway::f16>(true, stream_); }
TEST_P(SimulatedKernel, ConvertsToBfloat16AsTheHostDoes) { expect_same_conversions<spillway::bf16>(false, stream_); }

TEST_P(SimulatedKernel, RefusesShapesThatNoDeviceRuns) {
  EXPECT_EQ(sample::try_launch({1}, {1056}, 0, stream_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(sample::try_launch({1}, {1, 1, 65}, 0, stream_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(sample::try_launch({1, 65536}, {32}, 0, stream_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(sample::try_launch({0}, {32}, 0, stream_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// The order is real: a kernel without its barrier gives what its threads saw.
TEST(SimulatedKernelOrder, ShowsAMissingBarrier) {
  cuda_sim::reset();
  const Stream stream;
  std::vector<float> x(64);
  std::iota(x.begin(), x.end(), 0.0f);
  std::vector<float> expected = x;
  std::rotate(expected.begin(), expected.begin() + 1, expected.end());
  const Device<float> in(64), out(64);
  sample::set_values<float>(in, x, stream);
  int wrong = 0;
  for (const ThreadOrder order : {ThreadOrder::forward, ThreadOrder::reverse}) {
    cuda_sim::Settings settings = cuda_sim::settings();
    settings.order = order;
    cuda_sim::set_settings(settings);
    sample::neighbour(out, in, stream);
    EXPECT_EQ(sample::values_of(out, stream), expected);
    sample::neighbour_without_barrier(out, in, stream);
    wrong += sample::values_of(out, stream) != expected;
  }
  EXPECT_GT(wrong, 0);
  cuda_sim::reset();
}

}  // namespace
