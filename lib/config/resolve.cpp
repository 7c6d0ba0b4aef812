#include "config/resolve.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "config/batch_triangle.h"
#include "config/nvme_rules.h"
#include "config/optimizer_rules.h"

namespace spillway::config {

namespace {

class Resolver {
 public:
  Resolver(const ConfigContext& context, Settings& settings, Provenance& provenance, Problems& problems)
      : context_(context), settings_(settings), config_(settings.config), provenance_(provenance),
        problems_(problems) {}

  void run() {
    batch();
    precision();
    loss_scale();
    communication();
    resolve_optimizer(settings_, provenance_, problems_);
    schedule();
    legacy_offload();
    offload_param();
    offload_optimizer();
    resolve_nvme(settings_, provenance_, problems_);
    buckets();
    partition_groups();
    tile_size();
  }

 private:
  void error(std::string_view path, std::string_view text) { problems_.error(path, provenance_.line(path), text); }
  void warning(std::string_view path, std::string_view text) { problems_.warning(path, provenance_.line(path), text); }

  void batch() {
    BatchSizes sizes{settings_.train_batch_size, settings_.micro_batch_size, settings_.accumulation_steps};
    const bool none = !sizes.train && !sizes.micro;
    const std::string problem = complete(sizes, context_.world_size);
    if (!problem.empty()) return error("train_batch_size", problem);
    config_.world_size = context_.world_size;
    config_.train_batch_size = *sizes.train;
    config_.micro_batch_size = *sizes.micro;
    config_.accumulation_steps = *sizes.accumulation;
    settings_.train_batch_size = sizes.train;
    settings_.micro_batch_size = sizes.micro;
    settings_.accumulation_steps = sizes.accumulation;
    for (const auto path : {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
      provenance_.mark_derived(path);
    }
    if (none) {
      warning("train_micro_batch_size_per_gpu",
              fmt::format("no batch size is given; using 1, so train_batch_size is {}", config_.train_batch_size));
    }
  }

  void precision() {
    if (settings_.fp16_enabled && settings_.bf16_enabled) {
      return error("bf16.enabled", "fp16.enabled and bf16.enabled are both true; set one of them to false");
    }
    if (settings_.fp16_enabled) config_.dtype = DType::f16;
    if (settings_.bf16_enabled) config_.dtype = DType::bf16;
    if (config_.dtype != DType::f32) return;
    for (const auto path : {"fp16.enabled", "bf16.enabled"}) {
      if (!provenance_.is_automatic(path)) continue;
      warning(path, "\"auto\" is false here, so training is in fp32; set bf16.enabled to true for half the bytes");
    }
  }

  void loss_scale() {
    // With a larger start every step would overflow until the scale has come down: the gradient of a loss averaged
    // over fewer than 2^8 tokens already is infinite in fp16.
    constexpr int largest_power = 24;
    LossScaleConfig& scale = config_.loss_scale;
    scale.dynamic = settings_.loss_scale == 0.0;
    scale.static_scale = settings_.loss_scale;
    if (scale.initial_scale_power > largest_power) {
      warning("fp16.initial_scale_power", fmt::format("2^{} overflows fp16; starting at 2^{}",
                                                      scale.initial_scale_power, largest_power));
      scale.initial_scale_power = largest_power;
    }
  }

  void communication() {
    constexpr std::string_view path = "communication_data_type";
    switch (settings_.communication) {
      case CommunicationType::as_model: config_.communication_dtype = config_.dtype; break;
      case CommunicationType::fp16: config_.communication_dtype = DType::f16; break;
      case CommunicationType::bf16: config_.communication_dtype = DType::bf16; break;
      case CommunicationType::fp32: config_.communication_dtype = DType::f32; break;
    }
    switch (config_.communication_dtype) {
      case DType::f16: settings_.communication = CommunicationType::fp16; break;
      case DType::bf16: settings_.communication = CommunicationType::bf16; break;
      case DType::f32: settings_.communication = CommunicationType::fp32; break;
    }
    provenance_.mark_derived(path);
  }

  // The slot of a schedule's parameter: its value when given, else `otherwise`.
  template <class T>
  T parameter(std::optional<T>& slot, std::string_view name, T otherwise) {
    const std::string path = fmt::format("scheduler.params.{}", name);
    if (!slot) {
      slot = otherwise;
      provenance_.mark_derived(path);
    }
    return *slot;
  }

  template <class T>
  void unread(std::optional<T>& slot, std::string_view name) {
    if (slot) warning(fmt::format("scheduler.params.{}", name), "this type of schedule does not read it");
    slot.reset();
  }

  void schedule() {
    SchedulerConfig& schedule = config_.scheduler;
    if (schedule.kind == ScheduleKind::constant) return constant_schedule();
    schedule.warmup_num_steps = parameter(settings_.warmup_num_steps, "warmup_num_steps", schedule.warmup_num_steps);
    schedule.warmup_type = parameter(settings_.warmup_type, "warmup_type", std::string("log")) == "linear"
                               ? WarmupShape::linear
                               : WarmupShape::log;
    if (schedule.kind == ScheduleKind::warmup_cosine) {
      schedule.warmup_min_ratio = parameter(settings_.warmup_min_ratio, "warmup_min_ratio", schedule.warmup_min_ratio);
      schedule.cos_min_ratio = parameter(settings_.cos_min_ratio, "cos_min_ratio", schedule.cos_min_ratio);
      unread(settings_.warmup_min_lr, "warmup_min_lr");
      unread(settings_.warmup_max_lr, "warmup_max_lr");
    } else {
      // DeepSpeed's WarmupDecayLR has a rate of its own by default; "auto" is the optimizer's, as Transformers fills it.
      const bool own_rate = schedule.kind == ScheduleKind::warmup_decay &&
                            !provenance_.is_automatic("scheduler.params.warmup_max_lr");
      const double max_lr = own_rate ? 0.001 : config_.optimizer.learning_rate;
      schedule.warmup_min_lr = parameter(settings_.warmup_min_lr, "warmup_min_lr", schedule.warmup_min_lr);
      schedule.warmup_max_lr = parameter(settings_.warmup_max_lr, "warmup_max_lr", max_lr);
      unread(settings_.warmup_min_ratio, "warmup_min_ratio");
      unread(settings_.cos_min_ratio, "cos_min_ratio");
    }
    if (schedule.kind == ScheduleKind::warmup) {
      unread(settings_.total_num_steps, "total_num_steps");
    } else {
      total_steps();
    }
  }

  void constant_schedule() {
    if (provenance_.is_set("scheduler") && !provenance_.is_set("scheduler.type")) {
      warning("scheduler", "has no type, so the learning rate is constant");
    }
    unread(settings_.warmup_min_lr, "warmup_min_lr");
    unread(settings_.warmup_max_lr, "warmup_max_lr");
    unread(settings_.warmup_num_steps, "warmup_num_steps");
    unread(settings_.warmup_type, "warmup_type");
    unread(settings_.total_num_steps, "total_num_steps");
    unread(settings_.warmup_min_ratio, "warmup_min_ratio");
    unread(settings_.cos_min_ratio, "cos_min_ratio");
  }

  void total_steps() {
    constexpr std::string_view path = "scheduler.params.total_num_steps";
    if (!settings_.total_num_steps && context_.total_steps <= 0) {
      return error(path, "this type of schedule needs the number of optimizer steps of the run; set it, or give --steps");
    }
    SchedulerConfig& schedule = config_.scheduler;
    schedule.total_num_steps = parameter(settings_.total_num_steps, "total_num_steps", context_.total_steps);
    if (schedule.total_num_steps < schedule.warmup_num_steps) {
      warning(path, fmt::format("{} is less than warmup_num_steps {}: the run ends during warm-up",
                                schedule.total_num_steps, schedule.warmup_num_steps));
    }
  }

  void legacy_offload() {
    const auto replace = [&](std::optional<bool>& legacy, std::string_view old_path, std::string_view new_path,
                             OffloadConfig& section) {
      if (!legacy) return;
      if (provenance_.is_set(new_path)) {
        error(old_path, fmt::format("is the old spelling of {}, which is given too; remove {}", new_path, old_path));
      } else {
        warning(old_path, fmt::format("is deprecated; write \"{}\": {{\"device\": \"{}\"}}", new_path,
                                      *legacy ? "cpu" : "none"));
        section.device = *legacy ? OffloadDevice::cpu : OffloadDevice::none;
        if (settings_.cpu_offload_use_pin_memory) section.pin_memory = *settings_.cpu_offload_use_pin_memory;
        provenance_.mark_derived(fmt::format("{}.device", new_path));
      }
      legacy.reset();
    };
    replace(settings_.cpu_offload, "zero_optimization.cpu_offload", "zero_optimization.offload_optimizer",
            config_.offload_optimizer);
    replace(settings_.cpu_offload_param, "zero_optimization.cpu_offload_param", "zero_optimization.offload_param",
            config_.offload_param);
    settings_.cpu_offload_use_pin_memory.reset();
  }

  void offload_param() {
    constexpr std::string_view section = "zero_optimization.offload_param";
    OffloadConfig& offload = config_.offload_param;
    if (offload.device != OffloadDevice::none && config_.zero_stage < 3) {
      warning(section, fmt::format("parameter offload needs stage 3; stage is {}, so parameters stay on the device",
                                   config_.zero_stage));
      offload = {};
    }
  }

  void offload_optimizer() {
    constexpr std::string_view section = "zero_optimization.offload_optimizer";
    OffloadConfig& offload = config_.offload_optimizer;
    if (offload.device != OffloadDevice::none && config_.zero_stage == 0) {
      warning(section, "optimizer offload needs stage 1, 2 or 3; stage is 0, so optimizer state stays on the device");
      offload = {};
    }
    if (offload.device != OffloadDevice::none && offload.ratio < 1.0 && config_.zero_stage < 3) {
      warning("zero_optimization.offload_optimizer.ratio",
              "DeepSpeed accepts less than 1 only with stage 3; here any stage splits its state");
    }
  }

  void buckets() {
    // More elements than any model has, few enough that their bytes can be counted; planning takes what there is.
    constexpr std::int64_t unbounded = std::int64_t{1} << 60;
    for (std::int64_t* bucket : {&config_.reduce_bucket_size, &config_.allgather_bucket_size}) {
      if (*bucket == 0) *bucket = unbounded;
    }
    for (std::int64_t* size : {&config_.reduce_bucket_size, &config_.allgather_bucket_size,
                               &config_.prefetch_bucket_size, &config_.max_reuse_distance}) {
      *size = std::min(*size, unbounded);
    }
  }

  void partition_groups() {
    constexpr std::string_view path = "zero_optimization.zero_hpz_partition_size";
    std::int64_t& size = config_.hpz_partition_size;
    if (size > 1 && config_.zero_stage == 0) {
      warning(path, "groups of ranks need stage 1, 2 or 3; stage is 0, so nothing is sharded");
      size = 1;
    }
    const std::int64_t world = context_.world_size;
    if (world % size == 0) return;
    std::vector<std::int64_t> allowed;
    for (std::int64_t divisor = 1; divisor <= world; ++divisor) {
      if (world % divisor == 0) allowed.push_back(divisor);
    }
    error(path, fmt::format("groups of {} do not divide the {} of this run; allowed: {}, where 1 means all ranks", size,
                            ranks(world), fmt::join(allowed, ", ")));
  }

  void tile_size() {
    constexpr std::int64_t unit = 2048;
    const std::int64_t tile = config_.spillway.tile_size;
    if (tile % unit == 0) return;
    const std::int64_t below = tile / unit * unit;
    error("spillway.tile_size", fmt::format("{} elements is not a multiple of {}; the nearest are {} and {}", tile, unit,
                                            below, below + unit));
  }

  const ConfigContext& context_;
  Settings& settings_;
  Config& config_;
  Provenance& provenance_;
  Problems& problems_;
};

}  // namespace

void resolve(const ConfigContext& context, Settings& settings, Provenance& provenance, Problems& problems) {
  Resolver(context, settings, provenance, problems).run();
}

}  // namespace spillway::config
