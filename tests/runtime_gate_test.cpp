// The gate's verdicts against values worked out by hand.
#include "runtime/gate.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Config config_of(DType dtype) {
  Config config;
  config.dtype = dtype;
  config.optimizer.learning_rate = 0.125;
  config.gradient_clipping = 0.0;
  config.loss_scale.initial_scale_power = 4;
  config.loss_scale.window = 2;
  config.loss_scale.hysteresis = 1;
  return config;
}

// 3-4-5: the norm of these two pieces is 5.
const std::vector<double> kPieces{9.0, 16.0};

GateVerdict decide(Gate& gate, double loss_sum, std::int64_t tokens, const std::vector<double>& square_sums) {
  return gate.decide({loss_sum, tokens, tokens, square_sums});
}

// Backward divides by all the tokens a step can hold; fewer have a target.
TEST(Gate, MakesUpForTargetsThatAreMissing) {
  Config config = config_of(DType::bf16);
  Gate gate(config);
  const GateVerdict verdict = gate.decide({12.0, 2, 8, kPieces});
  EXPECT_EQ(verdict.loss, 6.0);
  EXPECT_EQ(verdict.gradient_norm, 20.0);
  EXPECT_EQ(verdict.update.gradient_scale, 4.0f);
  config.gradient_clipping = 2.0;
  EXPECT_EQ(Gate(config).decide({12.0, 2, 8, kPieces}).update.gradient_scale, static_cast<float>(2.0 / 20.000001 * 4.0));
  EXPECT_EQ(gate.decide({0.0, 0, 8, std::vector<double>{0.0}}).loss, 0.0) << "nothing to learn from";
}

TEST(Gate, GoesOnFromAState) {
  const Config config = config_of(DType::f16);
  Gate gate(config), other(config);
  decide(gate, 1.0, 1, {kInfinity});
  decide(gate, 1.0, 1, kPieces);
  other.restore(gate.state());
  EXPECT_EQ(other.state(), gate.state());
  EXPECT_EQ(decide(other, 1.0, 1, kPieces).update.step, 2);
}

TEST(Gate, PassesTheMeanLossAndTheNorm) {
  const Config config = config_of(DType::bf16);
  Gate gate(config);
  const GateVerdict verdict = decide(gate, 12.0, 8, kPieces);
  EXPECT_FALSE(verdict.skip);
  EXPECT_EQ(verdict.loss, 1.5);
  EXPECT_EQ(verdict.gradient_norm, 5.0);
  EXPECT_EQ(verdict.loss_scale, 1.0);
  EXPECT_EQ(verdict.learning_rate, 0.125);
  EXPECT_EQ(verdict.first_bad_piece, -1);
  EXPECT_EQ(verdict.update.gradient_scale, 1.0f);
}

TEST(Gate, HandsTheOptimizersSettingsOn) {
  Config config = config_of(DType::bf16);
  config.optimizer = {"Adam", {OptimizerKind::lion, MomentFormat::bf16}, 0.5, 0.75, 0.875, 1e-6, 0.25, false, false, 0.625, 0.125, true, 0.375};
  Gate gate(config, 77);
  for (std::int64_t step = 1; step <= 3; ++step) {
    const OptimizerParams update = decide(gate, 1.0, 1, kPieces).update;
    EXPECT_EQ(update.learning_rate, 0.5);
    EXPECT_EQ(update.beta1, 0.75);
    EXPECT_EQ(update.beta2, 0.875);
    EXPECT_EQ(update.epsilon, 1e-6);
    EXPECT_EQ(update.weight_decay, 0.25);
    EXPECT_FALSE(update.decoupled_decay);
    EXPECT_FALSE(update.bias_correction);
    EXPECT_EQ(update.kind, OptimizerKind::lion);
    EXPECT_EQ(update.momentum, 0.625);
    EXPECT_EQ(update.dampening, 0.125);
    EXPECT_TRUE(update.nesterov);
    EXPECT_EQ(update.learning_rate_decay, 0.375);
    EXPECT_EQ(update.seed, 77u);
    EXPECT_EQ(update.step, step);
  }
}

TEST(Gate, ClipsOnlyAboveTheLimit) {
  Config config = config_of(DType::bf16);
  config.gradient_clipping = 2.0;
  Gate gate(config);
  // 1 / ((5 + 1e-6) / 2), rounded to float once.
  EXPECT_EQ(decide(gate, 1.0, 1, kPieces).update.gradient_scale, static_cast<float>(2.0 / 5.000001));
  EXPECT_EQ(decide(gate, 1.0, 1, std::vector<double>{1.0, 1.0}).update.gradient_scale, 1.0f);
}

TEST(Gate, ClipsTheUnscaledGradient) {
  Config config = config_of(DType::f16);  // scale 16
  config.gradient_clipping = 2.0;
  Gate gate(config);
  const GateVerdict verdict = decide(gate, 1.0, 1, std::vector<double>{9.0 * 256, 16.0 * 256});
  EXPECT_EQ(verdict.loss_scale, 16.0);
  EXPECT_EQ(verdict.gradient_norm, 5.0);
  EXPECT_EQ(verdict.update.gradient_scale, static_cast<float>(2.0 / 5.000001 / 16.0));
}

TEST(Gate, SkipsWhatIsNotFiniteAndNamesTheFirstPiece) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Config config = config_of(dtype);
    Gate gate(config);
    const GateVerdict verdict = decide(gate, 1.0, 1, std::vector<double>{1.0, 1.0, kNan, kInfinity});
    EXPECT_TRUE(verdict.skip);
    EXPECT_EQ(verdict.first_bad_piece, 2);
    EXPECT_FALSE(std::isfinite(verdict.gradient_norm));
    EXPECT_EQ(gate.skipped_steps(), 1);
    EXPECT_EQ(gate.applied_steps(), 0);
    EXPECT_EQ(decide(gate, 1.0, 1, std::vector<double>{kInfinity}).first_bad_piece, 0);
    EXPECT_FALSE(decide(gate, 1.0, 1, kPieces).skip);
  }
}

// Finite pieces whose sum is not: nothing is to blame alone.
TEST(Gate, SkipsAnInfiniteSumOfFinitePieces) {
  const Config config = config_of(DType::f32);
  Gate gate(config);
  const double huge = std::numeric_limits<double>::max();
  const GateVerdict verdict = decide(gate, 1.0, 1, std::vector<double>{huge, huge});
  EXPECT_TRUE(verdict.skip);
  EXPECT_EQ(verdict.first_bad_piece, -1);
}

// Window 2, hysteresis 1, as DeepSpeed counts: overflow halves at once; the scale doubles at the second and
// fourth clean step after the one that follows it (positive multiples of the window).
TEST(Gate, ScaleFollowsTheTrajectory) {
  const Config config = config_of(DType::f16);
  Gate gate(config);
  const std::vector<double> bad{kInfinity};
  std::vector<double> used;
  std::vector<std::int64_t> applied;
  for (const bool overflow : {true, true, false, false, false, false, false, true, false}) {
    const GateVerdict verdict = decide(gate, 1.0, 1, overflow ? bad : kPieces);
    EXPECT_EQ(verdict.skip, overflow);
    used.push_back(verdict.loss_scale);
    applied.push_back(gate.applied_steps());
  }
  EXPECT_EQ(used, (std::vector<double>{16, 8, 4, 4, 4, 8, 8, 16, 8}));
  EXPECT_EQ(applied, (std::vector<std::int64_t>{0, 0, 1, 2, 3, 4, 5, 5, 6}));
}

TEST(Gate, LearningRateAdvancesWithAppliedStepsOnly) {
  Config config = config_of(DType::bf16);
  config.scheduler.kind = ScheduleKind::warmup;
  config.scheduler.warmup_type = WarmupShape::linear;
  config.scheduler.warmup_min_lr = 0.0;
  config.scheduler.warmup_max_lr = 1.0;
  config.scheduler.warmup_num_steps = 4;
  Gate gate(config);
  std::vector<double> rates;
  for (const bool overflow : {false, false, true, false, true, false, false, false}) {
    const GateVerdict verdict = decide(gate, 1.0, 1, overflow ? std::vector<double>{kNan} : kPieces);
    rates.push_back(verdict.learning_rate);
    if (!overflow) {
      EXPECT_EQ(verdict.update.learning_rate, verdict.learning_rate);
    }
  }
  // The first two steps of a warm-up run at its minimum; then a quarter more with each.
  EXPECT_EQ(rates, (std::vector<double>{0, 0, 0.25, 0.25, 0.5, 0.5, 0.75, 1}));
}

}  // namespace
}  // namespace spillway
