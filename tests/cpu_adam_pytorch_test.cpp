// The CPU Adam against PyTorch's CPU optimizers, step by step, from tests/fixtures/adam_pytorch.bin (made by
// make_adam_fixture.py, which describes the format).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "spillway/cpu_adam.h"

namespace spillway {
namespace {

// PyTorch fuses some multiplications with the addition that follows (see adam_update()), so the two differ by
// roundings of intermediate terms. The bound is in units of the last place of the largest of the old value, the
// new value and what the gradient adds to it, which is larger than the result where terms cancel.
// With L2 decay the gradient itself is a sum that PyTorch fuses, and exp_avg_sq doubles its relative error.
constexpr double kBoundUlp = 2.0;
constexpr double kBoundUlpOfSquareWithL2 = 4.0;

struct State {
  std::vector<float> master, exp_avg, exp_avg_sq;
};

class Fixture {
 public:
  Fixture() : file_(SPILLWAY_FIXTURES "/adam_pytorch.bin", std::ios::binary) {}

  bool opened() const { return file_.is_open(); }
  bool ended() { return file_.peek() == std::ifstream::traits_type::eof(); }

  template <class T>
  T scalar() {
    T x{};
    file_.read(reinterpret_cast<char*>(&x), sizeof x);
    return x;
  }
  std::vector<float> array(std::int64_t n) {
    std::vector<float> x(static_cast<std::size_t>(n));
    file_.read(reinterpret_cast<char*>(x.data()), static_cast<std::streamsize>(x.size() * sizeof(float)));
    EXPECT_TRUE(file_.good()) << "adam_pytorch.bin is too short";
    return x;
  }
  State state(std::int64_t n) {
    State s;
    s.master = array(n);
    s.exp_avg = array(n);
    s.exp_avg_sq = array(n);
    return s;
  }

 private:
  std::ifstream file_;
};

double ulp_of(float x) {
  const float a = std::max(std::fabs(x), std::numeric_limits<float>::min());
  return static_cast<double>(std::nextafter(a, std::numeric_limits<float>::infinity())) - static_cast<double>(a);
}

// `added[i]`: the magnitude of what the gradient adds to element i.
void expect_close(const char* what, std::int64_t step, const std::vector<float>& old, const std::vector<float>& actual,
                  const std::vector<float>& expected, const std::vector<double>& added, double bound_ulp) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const float largest = std::max({std::fabs(old[i]), std::fabs(expected[i]), static_cast<float>(added[i])});
    const double difference = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
    EXPECT_LE(std::fabs(difference) / ulp_of(largest), bound_ulp)
        << what << " of element " << i << " after step " << step << ": " << actual[i] << ", PyTorch " << expected[i];
  }
}

AdamParams read_params(Fixture& fixture) {
  AdamParams params{};
  params.decoupled_decay = fixture.scalar<std::int64_t>() != 0;
  params.bias_correction = true;
  params.learning_rate = fixture.scalar<double>();
  params.beta1 = fixture.scalar<double>();
  params.beta2 = fixture.scalar<double>();
  params.epsilon = fixture.scalar<double>();
  params.weight_decay = fixture.scalar<double>();
  params.gradient_scale = 0.5f;
  return params;
}

// One update of `before` with `gradient`, against PyTorch's.
void check_step(const AdamParams& params, const State& before, std::vector<float> gradient, const State& expected) {
  const std::size_t n = gradient.size();
  std::vector<double> nothing(n, 0.0), to_first(n), to_second(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double decay = params.decoupled_decay ? 0.0 : params.weight_decay * static_cast<double>(before.master[i]);
    const double magnitude = std::fabs(static_cast<double>(gradient[i])) + std::fabs(decay);
    to_first[i] = (1.0 - params.beta1) * magnitude;
    to_second[i] = (1.0 - params.beta2) * magnitude * magnitude;
    gradient[i] *= 2.0f;  // gradient_scale takes it back exactly
  }
  State actual = before;
  adam_update({.master = actual.master.data(),
               .exp_avg = actual.exp_avg.data(),
               .exp_avg_sq = actual.exp_avg_sq.data(),
               .gradient = gradient.data(),
               .gradient_dtype = DType::f32,
               .weight = nullptr,
               .weight_dtype = DType::f32,
               .n = static_cast<std::int64_t>(n)},
              params);
  const double bound_of_square = params.decoupled_decay ? kBoundUlp : kBoundUlpOfSquareWithL2;
  expect_close("master", params.step, before.master, actual.master, expected.master, nothing, kBoundUlp);
  expect_close("exp_avg", params.step, before.exp_avg, actual.exp_avg, expected.exp_avg, to_first, kBoundUlp);
  expect_close("exp_avg_sq", params.step, before.exp_avg_sq, actual.exp_avg_sq, expected.exp_avg_sq, to_second,
               bound_of_square);
}

TEST(CpuAdamPyTorch, EveryStepAgrees) {
  Fixture fixture;
  ASSERT_TRUE(fixture.opened()) << "cannot open " SPILLWAY_FIXTURES "/adam_pytorch.bin";
  int cases = 0;
  for (; !fixture.ended(); ++cases) {
    SCOPED_TRACE("case " + std::to_string(cases));
    const std::int64_t n = fixture.scalar<std::int64_t>();
    const std::int64_t steps = fixture.scalar<std::int64_t>();
    AdamParams params = read_params(fixture);
    State before = fixture.state(n);
    for (params.step = 1; params.step <= steps; ++params.step) {
      const std::vector<float> gradient = fixture.array(n);
      const State expected = fixture.state(n);
      check_step(params, before, gradient, expected);
      before = expected;
    }
  }
  EXPECT_EQ(cases, 4);
}

}  // namespace
}  // namespace spillway
