// Learning rate as a pure function of the number of optimizer steps applied so far; the only state of a
// schedule is that number, so resuming is exact by construction.
#pragma once

#include <cstdint>

#include "spillway/config.h"

namespace spillway {

// The learning rate of the next optimizer step after `applied_steps` applied ones (skipped steps do not
// count). Equals what DeepSpeed's runtime/lr_schedules.py yields.
//
// DeepSpeed advances its schedule after an optimizer step, and its counter t starts at 0 with the first
// advance. So the first step (applied_steps = 0) runs at the construction rate: warmup_min_lr, or 0 under
// WarmupCosineLR; and step applied_steps >= 1 runs at t = applied_steps - 1. With
// W = max(2, warmup_num_steps), T = total_num_steps, and ramp(t) = ln(t + 1) / ln W (log) or t / W (linear),
// one step beyond the last warm-up t is t = W:
//
//   constant        base_lr
//   WarmupLR        min + (max - min) * g,                g = ramp(t) for t < W, else 1
//   WarmupDecayLR   the same with g = max(0, (T - t) / max(1, T - W)) for t >= W
//   WarmupCosineLR  base_lr * (r0 + (1 - r0) * ramp(t))   for t < W, r0 = warmup_min_ratio; then
//                   base_lr * (c + (1 - c) * (1 + cos(pi * min(1, (t - W + 1) / max(1, T - W)))) / 2),
//                   c = cos_min_ratio
//
// Since ramp(0) = 0, the first two steps of a warm-up run at its minimum, which is 0 by default.
double learning_rate(const SchedulerConfig& config, double base_lr, std::int64_t applied_steps);

}  // namespace spillway
