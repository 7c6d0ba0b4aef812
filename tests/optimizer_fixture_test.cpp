// The optimizers against PyTorch's CPU optimizers and the formula of Lion, step by step, from
// tests/fixtures/optimizer_steps.bin (made by make_optimizer_fixture.py, which describes the format).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "spillway/optimizer.h"

namespace spillway {
namespace {

// PyTorch fuses some multiplications with the addition that follows, so the two differ by roundings of intermediate terms. The
// bound is in units of the last place of the largest of the old value, the new value and what the gradient adds to it, which
// is larger than the result where terms cancel.
// With L2 decay the gradient itself is a sum that PyTorch fuses, and its square doubles its relative error.
constexpr double kBoundUlp = 2.0;
constexpr double kBoundUlpOfSquareWithL2 = 4.0;

using Array = std::vector<float>;

struct State {
  Array master;
  std::vector<Array> moments;
};

class Fixture {
 public:
  Fixture() : file_(SPILLWAY_FIXTURES "/optimizer_steps.bin", std::ios::binary) {}

  bool opened() const { return file_.is_open(); }
  bool ended() { return file_.peek() == std::ifstream::traits_type::eof(); }

  template <class T>
  T scalar() {
    T x{};
    file_.read(reinterpret_cast<char*>(&x), sizeof x);
    return x;
  }
  Array array(std::int64_t n) {
    Array x(static_cast<std::size_t>(n));
    file_.read(reinterpret_cast<char*>(x.data()), static_cast<std::streamsize>(x.size() * sizeof(float)));
    EXPECT_TRUE(file_.good()) << "optimizer_steps.bin is too short";
    return x;
  }
  State state(std::int64_t n, std::int64_t moments) {
    State s{array(n), {}};
    for (std::int64_t m = 0; m < moments; ++m) s.moments.push_back(array(n));
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
void expect_close(std::string_view what, std::int64_t step, const Array& old, const Array& actual, const Array& expected,
                  const std::vector<double>& added, double bound_ulp) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const float largest = std::max({std::fabs(old[i]), std::fabs(expected[i]), static_cast<float>(added[i])});
    const double difference = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
    EXPECT_LE(std::fabs(difference) / ulp_of(largest), bound_ulp)
        << what << " of element " << i << " after step " << step << ": " << actual[i] << ", expected " << expected[i];
  }
}

// What a gradient of this magnitude adds to a moment.
double added_to(const OptimizerParams& p, std::size_t moment, double magnitude) {
  switch (p.kind) {
    case OptimizerKind::adam: return moment == 0 ? (1.0 - p.beta1) * magnitude : (1.0 - p.beta2) * magnitude * magnitude;
    case OptimizerKind::adagrad: return magnitude * magnitude;
    case OptimizerKind::lion: return (1.0 - p.beta2) * magnitude;
    case OptimizerKind::sgd:
    case OptimizerKind::sgd_momentum: break;
  }
  return magnitude;
}

OptimizerParams read_params(Fixture& fixture, OptimizerKind kind) {
  OptimizerParams params;
  params.kind = kind;
  params.decoupled_decay = fixture.scalar<std::int64_t>() != 0;
  params.nesterov = fixture.scalar<std::int64_t>() != 0;
  for (double* value : {&params.learning_rate, &params.beta1, &params.beta2, &params.epsilon, &params.weight_decay,
                        &params.momentum, &params.dampening, &params.learning_rate_decay}) {
    *value = fixture.scalar<double>();
  }
  params.gradient_scale = 0.5f;
  return params;
}

// One update of `before` with `gradient`, against the fixture's.
void check_step(const OptimizerParams& params, const State& before, Array gradient, const State& expected) {
  const bool has_l2 = params.weight_decay != 0 && params.kind != OptimizerKind::lion &&
                      !(params.kind == OptimizerKind::adam && params.decoupled_decay);
  State actual = before;
  OptimizerTile tile;
  tile.master = actual.master.data();
  tile.n = static_cast<std::int64_t>(gradient.size());
  for (std::size_t m = 0; m < before.moments.size(); ++m) tile.moments[m] = actual.moments[m].data();
  const Array unscaled = gradient;
  for (float& x : gradient) x *= 2.0f;  // gradient_scale takes it back exactly
  tile.gradient = gradient.data();
  optimizer_update(tile, params);

  std::vector<double> added(gradient.size(), 0.0);
  // The direction of SGD with momentum is a sum, whose terms may be larger than it.
  if (params.kind == OptimizerKind::sgd_momentum) {
    for (std::size_t i = 0; i < added.size(); ++i) {
      added[i] = params.learning_rate * std::max(std::fabs(unscaled[i]), std::fabs(before.moments[0][i]));
    }
  }
  expect_close("master", params.step, before.master, actual.master, expected.master, added, kBoundUlp);
  for (std::size_t m = 0; m < before.moments.size(); ++m) {
    const MomentTraits& moment = traits_of(params.kind).moments[m];
    for (std::size_t i = 0; i < added.size(); ++i) {
      const double decay = has_l2 ? params.weight_decay * static_cast<double>(before.master[i]) : 0.0;
      added[i] = added_to(params, m, std::fabs(static_cast<double>(unscaled[i])) + std::fabs(decay));
    }
    const double bound = has_l2 && moment.law == MomentLaw::fourth_power ? kBoundUlpOfSquareWithL2 : kBoundUlp;
    expect_close(moment.name, params.step, before.moments[m], actual.moments[m], expected.moments[m], added, bound);
  }
}

TEST(OptimizerFixture, EveryStepAgrees) {
  Fixture fixture;
  ASSERT_TRUE(fixture.opened()) << "cannot open " SPILLWAY_FIXTURES "/optimizer_steps.bin";
  int cases_of[kOptimizerKinds] = {};
  while (!fixture.ended()) {
    const auto kind = static_cast<OptimizerKind>(fixture.scalar<std::int64_t>());
    const auto moments = fixture.scalar<std::int64_t>();
    SCOPED_TRACE("case " + std::to_string(cases_of[static_cast<int>(kind)]++) + " of " + std::string(traits_of(kind).name));
    ASSERT_EQ(moments, static_cast<std::int64_t>(traits_of(kind).moments.size()));
    const auto n = fixture.scalar<std::int64_t>();
    const auto steps = fixture.scalar<std::int64_t>();
    OptimizerParams params = read_params(fixture, kind);
    State before = fixture.state(n, moments);
    for (params.step = 1; params.step <= steps; ++params.step) {
      const Array gradient = fixture.array(n);
      const State expected = fixture.state(n, moments);
      check_step(params, before, gradient, expected);
      before = expected;
    }
  }
  EXPECT_EQ(std::vector<int>(std::begin(cases_of), std::end(cases_of)), (std::vector<int>{4, 2, 2, 2, 3}));
}

}  // namespace
}  // namespace spillway
