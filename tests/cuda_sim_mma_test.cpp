// The tensor cores' fragments lie in the lanes where gpu/intrinsics/mma.h says, and asynchronous copies do what
// copy_async.h says. The same program, linked with what nvcc makes of the kernels, holds a card to it.
#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "cuda_sim/kernels/mma_kernels.h"
#include "cuda_sim/sample_device.h"
#include "spillway/dtype.h"

namespace {

using sample::Device;
using sample::Operands;
using sample::Stream;

constexpr int kSize = 16;

template <class T>
void expect_plain_product(Operands operands) {
  // Small integers: exact in every type, and so in any order of summation.
  const auto a = [](int row, int k) { return static_cast<float>((row * 7 + k * 3) % 11 - 5); };
  const auto b = [](int k, int column) { return static_cast<float>((k * 5 + column * 13) % 17 - 8); };
  const Stream stream;
  std::vector<std::uint16_t> left, right;
  std::vector<float> sums, expected;
  for (int row = 0; row < kSize; ++row) {
    for (int column = 0; column < kSize; ++column) {
      left.push_back(spillway::from_float<T>(a(row, column)).bits);
      right.push_back(spillway::from_float<T>(b(row, column)).bits);
      sums.push_back(static_cast<float>(100 * row + column));
      expected.push_back(sums.back());
      for (int k = 0; k < kSize; ++k) expected.back() += a(row, k) * b(k, column);
    }
  }
  const Device<std::uint16_t> device_a(left.size()), device_b(right.size());
  const Device<float> device_c(sums.size());
  sample::set_values<std::uint16_t>(device_a, left, stream);
  sample::set_values<std::uint16_t>(device_b, right, stream);
  sample::set_values<float>(device_c, sums, stream);
  sample::multiply(device_c, device_a, device_b, std::is_same_v<T, spillway::bf16>, operands, stream);
  EXPECT_EQ(sample::values_of(device_c, stream), expected);
}

TEST(MmaTile, HasElementsInTheLanesThatAreStated) {
  expect_plain_product<spillway::bf16>(Operands::by_lane);
  expect_plain_product<spillway::f16>(Operands::by_lane);
}

TEST(MmaTile, TakesOperandsThatLoadMatricesBrings) {
  expect_plain_product<spillway::bf16>(Operands::by_rows);
  expect_plain_product<spillway::f16>(Operands::by_rows);
}

TEST(MmaTile, TakesOperandsThatLoadMatricesTransposedBrings) {
  expect_plain_product<spillway::bf16>(Operands::transposed);
  expect_plain_product<spillway::f16>(Operands::transposed);
}

TEST(AsyncCopies, BringWhatIsWantedAndZerosElse) {
  const Stream stream;
  std::vector<std::uint32_t> from, expected;
  for (std::uint32_t i = 0; i < 128; ++i) {
    from.push_back(i + 1);
    expected.push_back(i / 4 % 2 == 0 ? i + 1 : 0);
  }
  const Device<std::uint32_t> device_from(from.size()), device_to(from.size());
  sample::set_values<std::uint32_t>(device_from, from, stream);
  sample::copy_every_other(device_to, device_from, stream);
  EXPECT_EQ(sample::values_of(device_to, stream), expected);
}

}  // namespace
