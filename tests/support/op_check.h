// What every test of a kernel does: element-wise bounds, finite differences, and the same bits for any number of
// threads. Kernels run by run_ops() of op_device.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/parallel.h"
#include "spillway/dtype.h"
#include "support/guarded_array.h"
#include "support/kernel_check.h"
#include "support/op_device.h"

namespace spillway::test {

using Doubles = std::vector<double>;

// Puts the largest share of a bound that the running test has used into its report: how far a new device is from failing.
inline void record_share_of_bound(double share) {
  static const testing::TestInfo* test = nullptr;
  static double largest = 0.0;
  const testing::TestInfo* const running = testing::UnitTest::GetInstance()->current_test_info();
  if (running != test) {
    test = running;
    largest = 0.0;
  }
  if (share < largest) return;
  largest = share;
  testing::Test::RecordProperty("largest_share_of_bound", std::to_string(share));
}

// |got - expected| <= allowed for every element, and nothing was written beside the array. The rounding
// to T on top of the arithmetic, T's smallest steps included, is allowed for here.
template <class T>
void expect_within(GuardedArray<T>& got, const Doubles& expected, const Doubles& allowed, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  ASSERT_TRUE(got.guards_intact()) << what;
  double largest_share = 0.0;
  const double smallest_step = std::is_same_v<T, f16> ? 0x1p-25 : 0x1p-126;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(to_float(got[i])) - expected[i]);
    const double bound = allowed[i] + kRoundoff<T> * (std::fabs(expected[i]) + allowed[i]) + smallest_step;
    ASSERT_LE(difference, bound) << what << ", element " << i << " of " << expected.size() << ": " << to_float(got[i]) << ", expected " << expected[i];
    largest_share = std::max(largest_share, difference / bound);
  }
  record_share_of_bound(largest_share);
}

// d loss / d x[i] for every i, by central differences.
inline Doubles finite_differences(Doubles& x, const std::function<double()>& loss, double step = 1e-4) {
  Doubles gradient;
  for (double& value : x) {
    const double at = value;
    value = at + step;
    const double above = loss();
    value = at - step;
    const double below = loss();
    value = at;
    gradient.push_back((above - below) / (2 * step));
  }
  return gradient;
}

inline double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// `run` computes from scratch and returns all it wrote, as bytes. A CUDA device has no number of threads: there it is
// the same bits twice.
inline void expect_same_bits_for_any_thread_count(const std::function<std::vector<std::byte>()>& run) {
  device_under_test();  // opening it sets the number of threads
  if (on_cuda()) {
    const std::vector<std::byte> first = run();
    EXPECT_TRUE(run() == first) << "a second run";
    return;
  }
  set_parallel_threads(1);
  const std::vector<std::byte> alone = run();
  for (const int threads : {2, 3, 8}) {
    set_parallel_threads(threads);
    EXPECT_TRUE(run() == alone) << threads << " threads";
  }
  set_parallel_threads(0);
}

template <class T>
void append_bytes(std::vector<std::byte>& bytes, std::span<const T> values) {
  const auto added = std::as_bytes(values);
  bytes.insert(bytes.end(), added.begin(), added.end());
}

template <class T>
void append_bytes(std::vector<std::byte>& bytes, const std::vector<T>& values) {
  append_bytes(bytes, std::span<const T>(values));
}

template <class T>
void append_bytes(std::vector<std::byte>& bytes, GuardedArray<T>& array) {
  append_bytes(bytes, std::span<const T>(array.span()));
}

using StorageTypes = testing::Types<float, bf16, f16>;

}  // namespace spillway::test
