#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace spillway {

namespace {

std::int64_t warmup_length(const SchedulerConfig& config) {
  return std::max<std::int64_t>(2, config.warmup_num_steps);
}

// Share of the warm-up done at t < warmup_length. ln(t + 1) is multiplied by 1 / ln W, as DeepSpeed does.
double ramp(const SchedulerConfig& config, std::int64_t t) {
  const double length = static_cast<double>(warmup_length(config));
  if (config.warmup_type == WarmupShape::linear) return static_cast<double>(t) / length;
  return 1.0 / std::log(length) * std::log(static_cast<double>(t) + 1.0);
}

double steps_after_warmup(const SchedulerConfig& config) {
  return static_cast<double>(std::max<std::int64_t>(1, config.total_num_steps - warmup_length(config)));
}

double warmup(const SchedulerConfig& config, std::int64_t t) {
  double share = 1.0;
  if (t < warmup_length(config)) {
    share = ramp(config, t);
  } else if (config.kind == ScheduleKind::warmup_decay) {
    share = std::max(0.0, static_cast<double>(config.total_num_steps - t) / steps_after_warmup(config));
  }
  return config.warmup_min_lr + (config.warmup_max_lr - config.warmup_min_lr) * share;
}

double cosine_ratio(const SchedulerConfig& config, std::int64_t t) {
  const std::int64_t length = warmup_length(config);
  if (t < length) return config.warmup_min_ratio + (1.0 - config.warmup_min_ratio) * ramp(config, t);
  const double progress = std::min(1.0, static_cast<double>(t - length + 1) / steps_after_warmup(config));
  const double cosine = (1.0 + std::cos(std::numbers::pi * progress)) / 2;
  return std::max(0.0, config.cos_min_ratio + (1.0 - config.cos_min_ratio) * cosine);
}

}  // namespace

double learning_rate(const SchedulerConfig& config, double base_lr, std::int64_t applied_steps) {
  const bool first = applied_steps == 0;
  const std::int64_t t = applied_steps - 1;
  switch (config.kind) {
    case ScheduleKind::constant: return base_lr;
    case ScheduleKind::warmup:
    case ScheduleKind::warmup_decay: return first ? config.warmup_min_lr : warmup(config, t);
    case ScheduleKind::warmup_cosine: return first ? 0.0 : base_lr * cosine_ratio(config, t);
  }
  return base_lr;
}

}  // namespace spillway
