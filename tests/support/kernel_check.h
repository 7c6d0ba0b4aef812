// Inputs and element-wise bounds for tests of kernels against float64 references.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "spillway/dtype.h"

namespace spillway::test {

template <class T>
constexpr DType kDType = std::is_same_v<T, float> ? DType::f32 : std::is_same_v<T, bf16> ? DType::bf16 : DType::f16;

// Half the distance between neighbours of 1 in T: the relative error of one rounding.
template <class T>
constexpr double kRoundoff = std::is_same_v<T, float> ? 0x1p-24 : std::is_same_v<T, bf16> ? 0x1p-8 : 0x1p-11;

// The same among f16's subnormals, where it is absolute.
template <class T>
constexpr double kSmallestRounding = std::is_same_v<T, f16> ? 0x1p-25 : 0.0;

// Normally distributed, already rounded to T.
template <class T>
std::vector<T> normal_values(std::int64_t n, double stddev, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, stddev);
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& value : values) value = from_float<T>(static_cast<float>(normal(generator)));
  return values;
}

template <class T>
std::vector<double> as_double(std::span<const T> values) {
  std::vector<double> result;
  result.reserve(values.size());
  for (const T value : values) result.push_back(static_cast<double>(to_float(value)));
  return result;
}

template <class T>
std::vector<double> as_double(const std::vector<T>& values) {
  return as_double(std::span<const T>(values));
}

// |got - expected| <= bound * max |expected| + one rounding to T (+ what `more` allows the element), for every element.
template <class T>
void expect_close(std::span<const T> got, const std::vector<double>& expected, double bound,
                  const std::string& what, std::span<const double> more = {}) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double largest = 0.0;
  for (const double e : expected) largest = std::max(largest, std::fabs(e));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(to_float(got[i])) - expected[i]);
    const double allowed =
        bound * largest + kRoundoff<T> * std::fabs(expected[i]) + kSmallestRounding<T> + (more.empty() ? 0.0 : (1 + kRoundoff<T>) * more[i]);
    ASSERT_LE(difference, allowed) << what << ", element " << i << ": " << to_float(got[i]) << ", expected "
                                   << expected[i] << " (largest " << largest << ")";
  }
}

}  // namespace spillway::test
