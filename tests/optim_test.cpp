// Loss scaler, schedules and clipping against trajectories worked out by hand from DeepSpeed's published rules.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "optim/clipping.h"
#include "optim/loss_scaler.h"
#include "optim/schedule.h"

namespace spillway {
namespace {

constexpr LossScaleConfig kSmall = {.initial_scale_power = 4, .window = 2, .hysteresis = 2};

// Feeds one letter per step (c: clean, o: overflow) and returns the scale after each.
std::vector<double> scales(LossScaler& scaler, std::string_view steps) {
  std::vector<double> result;
  for (const char step : steps) {
    scaler.update(step == 'o');
    result.push_back(scaler.scale());
  }
  return result;
}

// Steps are counted from 0 and the last overflow starts at -1, so a clean step i has seen
// i - last - 1 clean ones before it; the scale doubles when that is a positive multiple of the window, 2:
//   i   0    1    2         3            4        5    6    7                   8          9
//      c(0) c(1) c(2): 32  o: hyst 2->1 o: 16    c(0) c(1) c(2): 32, hyst 2    o: hyst 1  o: 16
TEST(LossScaler, FollowsAHandMadeTrajectory) {
  LossScaler scaler(DType::f16, kSmall);
  EXPECT_EQ(scaler.scale(), 16.0);
  EXPECT_EQ(scales(scaler, "cccoocccoo"), (std::vector<double>{16, 16, 32, 32, 16, 16, 16, 32, 32, 16}));
}

TEST(LossScaler, DoublesEveryWindowOfAnUnbrokenRun) {
  LossScaler scaler(DType::f16, kSmall);
  // Positive multiples of 2 among 0 .. 6.
  EXPECT_EQ(scales(scaler, "ccccccc"), (std::vector<double>{16, 16, 32, 32, 64, 64, 128}));
}

TEST(LossScaler, HysteresisIsNotRefilledByCleanStepsUnlessConsecutive) {
  LossScaler plain(DType::f16, kSmall);
  EXPECT_EQ(scales(plain, "oco"), (std::vector<double>{16, 16, 8}));
  LossScaleConfig config = kSmall;
  config.consecutive_hysteresis = true;
  LossScaler consecutive(DType::f16, config);
  EXPECT_EQ(scales(consecutive, "ocooo"), (std::vector<double>{16, 16, 16, 8, 4}));
}

TEST(LossScaler, HysteresisOneHalvesAtOnce) {
  LossScaleConfig config = kSmall;
  config.hysteresis = 1;
  LossScaler scaler(DType::f16, config);
  EXPECT_EQ(scaler.update(true), (ScaleUpdate{true, ScaleChange::halved}));
  EXPECT_EQ(scaler.scale(), 8.0);
}

TEST(LossScaler, StaysAtTheMinimumAndSaysSo) {
  LossScaleConfig config = kSmall;
  config.min_scale = 6.0;
  LossScaler scaler(DType::f16, config);
  EXPECT_EQ(scaler.update(true), (ScaleUpdate{true, ScaleChange::tolerated}));
  EXPECT_EQ(scaler.update(true), (ScaleUpdate{true, ScaleChange::halved}));  // 16 -> 8
  EXPECT_EQ(scaler.update(true), (ScaleUpdate{true, ScaleChange::halved}));  // 8 -> 6, not 4
  EXPECT_EQ(scaler.scale(), 6.0);
  EXPECT_EQ(scaler.update(true), (ScaleUpdate{true, ScaleChange::at_minimum}));
  EXPECT_EQ(scaler.scale(), 6.0);
  EXPECT_EQ(scaler.update(false), (ScaleUpdate{false, ScaleChange::unchanged}));
}

TEST(LossScaler, StaticScaleNeverMoves) {
  LossScaleConfig config;
  config.dynamic = false;
  config.static_scale = 1024.0;
  config.window = 1;
  LossScaler scaler(DType::f16, config);
  EXPECT_EQ(scales(scaler, "ccooc"), std::vector<double>(5, 1024.0));
  EXPECT_EQ(scaler.update(true), (ScaleUpdate{true, ScaleChange::fixed}));
}

TEST(LossScaler, OtherTypesHaveScaleOneAndStillSkip) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    LossScaler scaler(dtype, kSmall);
    EXPECT_EQ(scales(scaler, "cccco"), std::vector<double>(5, 1.0));
    EXPECT_EQ(scaler.update(true), (ScaleUpdate{true, ScaleChange::fixed}));
    EXPECT_EQ(scaler.update(false), (ScaleUpdate{false, ScaleChange::unchanged}));
  }
}

// Properties on random overflow patterns: powers of two within bounds, moves by at most a factor of two, a step is
// skipped exactly when it overflowed, and a restored copy continues alike.
TEST(LossScaler, KeepsItsInvariantsAndResumesExactly) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    LossScaleConfig config = kSmall;
    config.window = 1 + static_cast<std::int64_t>(random() % 5);
    config.hysteresis = 1 + static_cast<int>(random() % 3);
    config.consecutive_hysteresis = random() % 2 == 0;
    LossScaler scaler(DType::f16, config);
    LossScaler resumed(DType::f16, config);
    for (int step = 0; step < 300; ++step) {
      const bool overflow = random() % 4 == 0;
      resumed.restore(scaler.state());
      const double before = scaler.scale();
      const ScaleUpdate update = scaler.update(overflow);
      EXPECT_EQ(update.skipped, overflow);
      EXPECT_EQ(resumed.update(overflow), update);
      EXPECT_EQ(resumed.state(), scaler.state());
      const double ratio = scaler.scale() / before;
      EXPECT_TRUE(ratio == 1.0 || (ratio == 2.0 && !overflow) || (ratio == 0.5 && overflow)) << ratio;
      EXPECT_GE(scaler.scale(), config.min_scale);
    }
  }
}

TEST(LossScaler, StopsDoublingBeforeItsInverseVanishes) {
  LossScaleConfig config = kSmall;
  config.window = 1;
  LossScaler scaler(DType::f16, config);
  for (int step = 0; step < 1000; ++step) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 0x1p100);
  EXPECT_GT(gradient_scale(0.0, scaler.scale(), 1.0), 0.0f);
}

SchedulerConfig warmup_config(ScheduleKind kind, WarmupShape shape) {
  return {.kind = kind, .warmup_min_lr = 0.001, .warmup_max_lr = 0.009, .warmup_num_steps = 4, .warmup_type = shape,
          .total_num_steps = 8};
}

void expect_rates(const SchedulerConfig& config, const std::vector<double>& expected) {
  for (std::size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(learning_rate(config, 0.5, static_cast<std::int64_t>(step)), expected[step], 1e-15) << step;
  }
}

TEST(Schedule, ConstantIsTheOptimizersRate) {
  expect_rates({}, {0.5, 0.5, 0.5});
}

// min 0.001, max 0.009, W = 4. Applied steps 0, 1, 2, ... run at construction, t = 0, 1, ...:
// linear t / 4: min, then 0, 1/4, 2/4, 3/4, then 1.
TEST(Schedule, WarmupLinear) {
  expect_rates(warmup_config(ScheduleKind::warmup, WarmupShape::linear),
               {0.001, 0.001, 0.003, 0.005, 0.007, 0.009, 0.009, 0.009});
}

// log ln(t + 1) / ln 4: ln 1 = 0, ln 2 / ln 4 = 1/2, ln 3 / ln 4, ln 4 / ln 4 = 1 (t = 3 already is the maximum).
TEST(Schedule, WarmupLog) {
  const double third = 0.001 + 0.008 * 0.79248125036057809;  // log_4 3
  expect_rates(warmup_config(ScheduleKind::warmup, WarmupShape::log), {0.001, 0.001, 0.005, third, 0.009, 0.009});
}

// T = 8: from t = 4 on (8 - t) / 4: 1, 3/4, 1/2, 1/4, 0, and 0 after the end. Decays to min, not to 0.
TEST(Schedule, WarmupDecay) {
  expect_rates(warmup_config(ScheduleKind::warmup_decay, WarmupShape::linear),
               {0.001, 0.001, 0.003, 0.005, 0.007, 0.009, 0.007, 0.005, 0.003, 0.001, 0.001, 0.001});
}

// base 0.5, r0 = 0.2, c = 0.1, W = 4, T = 8. Construction: 0. Warm-up: 0.2 + 0.8 t / 4 = 0.2, 0.4, 0.6, 0.8.
// Then progress (t - 3) / 4 = 1/4, 1/2, 3/4, 1: 0.1 + 0.9 (1 + cos) / 2 with cos = sqrt(1/2), 0, -sqrt(1/2), -1.
TEST(Schedule, WarmupCosine) {
  const SchedulerConfig config = {.kind = ScheduleKind::warmup_cosine, .warmup_num_steps = 4,
                                  .warmup_type = WarmupShape::linear, .total_num_steps = 8, .warmup_min_ratio = 0.2,
                                  .cos_min_ratio = 0.1};
  const double root = std::numbers::sqrt2 / 2;
  expect_rates(config, {0.0, 0.1, 0.2, 0.3, 0.4, 0.5 * (0.1 + 0.45 * (1 + root)), 0.5 * 0.55,
                        0.5 * (0.1 + 0.45 * (1 - root)), 0.05, 0.05, 0.05});
}

// max(2, warmup_num_steps): 0 and 1 behave as 2.
TEST(Schedule, ShortestWarmupIsTwoSteps) {
  for (const ScheduleKind kind : {ScheduleKind::warmup, ScheduleKind::warmup_decay, ScheduleKind::warmup_cosine}) {
    SchedulerConfig two = warmup_config(kind, WarmupShape::log);
    two.warmup_num_steps = 2;
    for (const std::int64_t steps : {0, 1}) {
      SchedulerConfig shorter = two;
      shorter.warmup_num_steps = steps;
      for (std::int64_t applied = 0; applied < 12; ++applied) {
        EXPECT_EQ(learning_rate(shorter, 0.5, applied), learning_rate(two, 0.5, applied));
      }
    }
  }
}

TEST(Schedule, StaysWithinItsBoundsAndRisesThenFalls) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const ScheduleKind kind = static_cast<ScheduleKind>(1 + random() % 3);
    SchedulerConfig config = warmup_config(kind, static_cast<WarmupShape>(random() % 2));
    config.warmup_num_steps = static_cast<std::int64_t>(random() % 40);
    config.total_num_steps = 1 + static_cast<std::int64_t>(random() % 100);
    config.warmup_min_ratio = 0.1;
    const bool cosine = config.kind == ScheduleKind::warmup_cosine;
    const double high = cosine ? 0.5 : config.warmup_max_lr;
    double previous = 0.0;
    const std::int64_t rising = std::max<std::int64_t>(2, config.warmup_num_steps);
    for (std::int64_t applied = 0; applied < 150; ++applied) {
      const double rate = learning_rate(config, 0.5, applied);
      EXPECT_GE(rate, 0.0);
      EXPECT_LE(rate, high * (1 + 1e-12));
      if (applied <= rising) {
        EXPECT_GE(rate, previous) << applied;
      }
      if (applied > rising + 1 && config.kind != ScheduleKind::warmup) {
        EXPECT_LE(rate, previous) << applied;
      }
      previous = rate;
    }
  }
}

TEST(Clipping, FactorIsDeepSpeeds) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_factor(100.0, 0.0), 1.0) << "0 switches clipping off";
  EXPECT_EQ(clip_factor(1.0 - 1e-6, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(4.0, 1.0), 1.0 / 4.000001);
  EXPECT_DOUBLE_EQ(clip_factor(1.0, 1.0), 1.0 / 1.000001) << "the 1e-6 clips a norm just at the limit";
  EXPECT_DOUBLE_EQ(clip_factor(3.0, 0.5), 0.5 / 3.000001);
}

TEST(Clipping, ClippedNormNeverExceedsTheLimit) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> exponent(-8, 8);
  for (int i = 0; i < 1000; ++i) {
    const double norm = std::pow(10.0, exponent(random)), limit = std::pow(10.0, exponent(random));
    EXPECT_LE(norm * clip_factor(norm, limit), limit);
    EXPECT_LE(clip_factor(norm, limit), 1.0);
  }
}

TEST(Clipping, GradientScaleRemovesThePowerOfTwoExactly) {
  // Norm 8 of gradients scaled by 1024 is 1/128: below the limit, so only the scale goes.
  EXPECT_EQ(gradient_scale(8.0, 1024.0, 1.0), 0x1p-10f);
  // Norm 4096 is 4 unscaled: clipped by 4.000001.
  EXPECT_EQ(gradient_scale(4096.0, 1024.0, 1.0), static_cast<float>(1.0 / 4.000001 / 1024.0));
  // A loss scale changes the factor by its inverse and nothing else.
  for (int power = 0; power <= 24; ++power) {
    const double scale = std::ldexp(1.0, power);
    EXPECT_EQ(gradient_scale(7.3 * scale, scale, 0.9), std::ldexp(gradient_scale(7.3, 1.0, 0.9), -power));
  }
}

TEST(Clipping, GlobalNormAddsInTheGivenOrder) {
  EXPECT_EQ(global_norm({}), 0.0);
  const std::vector<double> exact = {9.0, 16.0, 144.0};
  EXPECT_EQ(global_norm(exact), 13.0);
  // Left to right: 1 + 2^-53 rounds to 1 each time; the other order would keep the small ones.
  EXPECT_EQ(global_norm(std::vector<double>{1.0, 0x1p-53, 0x1p-53}), 1.0);
  EXPECT_TRUE(std::isnan(global_norm(std::vector<double>{1.0, NAN})));
  EXPECT_TRUE(std::isinf(global_norm(std::vector<double>{INFINITY, 1.0})));
}

}  // namespace
}  // namespace spillway
