#include "config/key_table.h"

#include "config/optimizer_rules.h"

namespace spillway::config {

namespace {

using S = Settings;
using F = Field;

constexpr std::string_view kSchedules[] = {"", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};  // by ScheduleKind
constexpr std::string_view kWarmupShapes[] = {"log", "linear"};
constexpr std::string_view kDevices[] = {"none", "cpu", "nvme"};         // by OffloadDevice
constexpr std::string_view kGradientDevices[] = {"", "cpu", "nvme"};     // likewise
constexpr std::string_view kCommunication[] = {"", "fp16", "bf16", "fp32"};  // by CommunicationType
constexpr std::string_view kMoments[] = {"fp32", "bf16", "8bit"};       // by MomentFormat
constexpr std::string_view kPlacements[] = {"exact", "fill"};            // by PlacementPolicy
constexpr std::string_view kOrders[] = {"micro_batch_major"};            // by AccumulationOrder
constexpr std::string_view kIoEngines[] = {"auto", "io_uring", "libaio", "threads"};

constexpr Range kAny = {};
constexpr Range kShare = {.low = 0, .high = 1};
constexpr Range kCount = {.low = 1, .high = 2147483647};
constexpr Range kDecay = {.low = 0, .high = 1, .high_allowed = false};
constexpr Range kScale = {.low = 0, .high = 0x1p100};
constexpr Range kPositiveScale = {.low = 0, .high = 0x1p100, .low_allowed = false};
constexpr Range kSeconds = {.low = 0, .high = 1e9, .low_allowed = false};
constexpr Range at_least(double low) { return {.low = low}; }
constexpr Range between(double low, double high) { return {.low = low, .high = high}; }

constexpr Key section(std::string_view path, std::string_view alias = {}) {
  return {.path = path, .effect = Effect::section, .alias = alias};
}
constexpr Key used(std::string_view path, Range range, Field (*bind)(Settings&), std::string_view note = {},
                   std::string_view alias = {}) {
  return {.path = path, .effect = Effect::used, .note = note, .alias = alias, .range = range, .bind = bind};
}
constexpr Key no_effect(std::string_view path, Kind kind, std::string_view default_value, std::string_view note,
                        std::string_view alias = {}) {
  return {.path = path, .effect = Effect::no_effect, .kind = kind, .default_value = default_value, .note = note,
          .alias = alias};
}
constexpr Key refused(std::string_view path, Kind kind, std::string_view default_value, std::string_view note) {
  return {.path = path, .effect = Effect::refused, .kind = kind, .default_value = default_value, .note = note};
}

constexpr Kind kBool = Kind::boolean;
constexpr Kind kNumber = Kind::number;
constexpr Kind kString = Kind::string;
constexpr Kind kAnything = Kind::any;

constexpr std::string_view kPlanned = "every transfer and its buffer is planned before step 1";
constexpr std::string_view kGathered = "weights that ranks update in parts are always all-gathered";
constexpr std::string_view kFp32State = "master weights and sums of gradients are always fp32";
constexpr std::string_view kCompressed = "compressed communication is not supported; leave it out";
constexpr std::string_view kGroups = "MiCS is not supported; zero_hpz_partition_size shards within groups of ranks";
constexpr std::string_view kCheckpoint = "Spillway's own checkpoint format serves any world size and stage";
constexpr std::string_view kMonitor = "no monitor is attached; --metrics writes every figure as JSON lines";
constexpr std::string_view kPyTorch = "concerns PyTorch objects, of which there are none here";
constexpr std::string_view kProfiler = "--trace and the progress line show where the time goes";
constexpr std::string_view kNotTraining = "this feature is not supported; leave the section out";
constexpr std::string_view kBf16Scale = "bf16 needs no loss scale";
constexpr std::string_view kFolders = "a folder, or a list over which the state is striped";

constexpr Key kTable[] = {
    // Batch
    used("train_batch_size", kCount, [](S& s) -> F { return &s.train_batch_size; }),
    used("train_micro_batch_size_per_gpu", kCount, [](S& s) -> F { return &s.micro_batch_size; }),
    used("gradient_accumulation_steps", kCount, [](S& s) -> F { return &s.accumulation_steps; }),
    refused("managed_gradient_accumulation", kBool, "true", "the engine counts micro-batches itself"),
    refused("sequence_parallel_size", kNumber, "1", "sequence parallelism is not supported"),
    refused("elasticity", kAnything, "null", "it would replace the three batch sizes; set them directly"),
    no_effect("dataloader_drop_last", kBool, "false", "batches are drawn from one token stream and are always full"),

    // Gradients
    used("gradient_clipping", at_least(0), [](S& s) -> F { return &s.config.gradient_clipping; }),
    used("communication_data_type", kAny, [](S& s) -> F { return choice(s.communication, kCommunication); }),
    no_effect("seq_parallel_communication_data_type", kString, "\"fp32\"", "there is no sequence parallelism"),
    no_effect("prescale_gradients", kBool, "false", "gradients are averaged in fp32, where the order cannot overflow"),
    no_effect("gradient_predivide_factor", kNumber, "1.0", "gradients are averaged in fp32"),
    refused("gradient_allreduce_op", kString, "\"mean\"", "gradients are always averaged"),
    refused("sparse_gradients", kBool, "false", "gradients are dense"),
    no_effect("disable_allgather", kBool, "false", kGathered),
    no_effect("allgather_size", kNumber, "500000000", "zero_optimization.allgather_bucket_size sets it"),
    section("data_types"),
    no_effect("data_types.grad_accum_dtype", kString, "\"fp32\"", kFp32State),
    no_effect("data_types.param_dtype", kString, "null", "follows fp16.enabled and bf16.enabled"),
    no_effect("data_types.buffer_dtype", kString, "null", kPyTorch),

    // Precision
    section("fp16"),
    used("fp16.enabled", kAny, [](S& s) -> F { return &s.fp16_enabled; }),
    used("fp16.loss_scale", kScale, [](S& s) -> F { return &s.loss_scale; }, "0: dynamic"),
    used("fp16.initial_scale_power", between(0, 100), [](S& s) -> F { return &s.config.loss_scale.initial_scale_power; }),
    used("fp16.loss_scale_window", kCount, [](S& s) -> F { return &s.config.loss_scale.window; }),
    used("fp16.hysteresis", kCount, [](S& s) -> F { return &s.config.loss_scale.hysteresis; }),
    used("fp16.consecutive_hysteresis", kAny, [](S& s) -> F { return &s.config.loss_scale.consecutive_hysteresis; }),
    used("fp16.min_loss_scale", kPositiveScale, [](S& s) -> F { return &s.config.loss_scale.min_scale; }),
    no_effect("fp16.auto_cast", kBool, "false", "inputs are token ids"),
    refused("fp16.fp16_master_weights_and_grads", kBool, "false", kFp32State),
    section("bf16", "bfloat16"),
    used("bf16.enabled", kAny, [](S& s) -> F { return &s.bf16_enabled; }),
    no_effect("bf16.immediate_grad_update", kBool, "false", "gradients are always accumulated at once"),
    no_effect("bf16.check_grad_overflow", kBool, "true", "the check costs nothing and is always on, at every stage"),
    no_effect("bf16.auto_cast", kBool, "false", "inputs are token ids"),
    no_effect("bf16.loss_scale", kNumber, "0", kBf16Scale),
    no_effect("bf16.initial_scale_power", kNumber, "16", kBf16Scale),
    no_effect("bf16.loss_scale_window", kNumber, "1000", kBf16Scale),
    no_effect("bf16.hysteresis", kNumber, "2", kBf16Scale),
    no_effect("bf16.min_loss_scale", kNumber, "1", kBf16Scale),
    refused("bf16.bf16_master_weights_and_grads", kBool, "false",
            "master weights stay fp32, since a bf16 master loses every update below 2^-8 of its size; leave it out: bf16_optimizer_states "
            "does not need it, and spillway.moments \"8bit\" saves more bytes than both"),
    used("bf16.bf16_optimizer_states", kAny, [](S& s) -> F { return &s.bf16_optimizer_states; },
         "true: moments in bf16, as spillway.moments has it"),
    refused("torch_autocast", kAnything, "null", "choose the precision with fp16.enabled or bf16.enabled"),
    refused("amp", kAnything, "null", "choose the precision with fp16.enabled or bf16.enabled"),

    // Optimizer
    section("optimizer"),
    used("optimizer.type", kAny, [](S& s) -> F { return Word{&s.config.optimizer.type, optimizer_types()}; }),
    no_effect("optimizer.legacy_fusion", kBool, "false", "there is one fused implementation"),
    section("optimizer.params"),
    used("optimizer.params.lr", at_least(0), [](S& s) -> F { return &s.optimizer.lr; }),
    used("optimizer.params.betas", kDecay, [](S& s) -> F { return Numbers{&s.optimizer.betas}; }),
    used("optimizer.params.eps", at_least(0), [](S& s) -> F { return &s.optimizer.eps; }),
    used("optimizer.params.weight_decay", at_least(0), [](S& s) -> F { return &s.optimizer.weight_decay; }),
    used("optimizer.params.bias_correction", kAny, [](S& s) -> F { return &s.optimizer.bias_correction; }),
    used("optimizer.params.adam_w_mode", kAny, [](S& s) -> F { return &s.optimizer.adam_w_mode; },
         "Adam means AdamW unless this is false"),
    used("optimizer.params.momentum", at_least(0), [](S& s) -> F { return &s.optimizer.momentum; }),
    used("optimizer.params.dampening", kShare, [](S& s) -> F { return &s.optimizer.dampening; }),
    used("optimizer.params.nesterov", kAny, [](S& s) -> F { return &s.optimizer.nesterov; }),
    used("optimizer.params.lr_decay", at_least(0), [](S& s) -> F { return &s.optimizer.lr_decay; }),
    used("optimizer.params.initial_accumulator_value", at_least(0), [](S& s) -> F { return &s.optimizer.initial_accumulator_value; }),
    refused("optimizer.params.amsgrad", kBool, "false", "AMSGrad is not implemented (DeepSpeed ignores it on the CPU)"),
    no_effect("optimizer.params.torch_adam", kBool, "false", "the update follows PyTorch's order of operations anyway"),
    used("optimizer.params.fp32_optimizer_states", kAny, [](S& s) -> F { return &s.fp32_optimizer_states; },
         "false: moments in bf16, as spillway.moments has it"),
    refused("optimizer.params.max_grad_norm", kNumber, "null", "use the top-level key gradient_clipping instead"),
    no_effect("zero_allow_untested_optimizer", kBool, "false", "every optimizer offered here is tested"),
    no_effect("zero_force_ds_cpu_optimizer", kBool, "true", "there is one optimizer implementation"),

    // Learning rate schedule
    section("scheduler"),
    used("scheduler.type", kAny, [](S& s) -> F { return choice(s.config.scheduler.kind, kSchedules); }),
    section("scheduler.params"),
    used("scheduler.params.warmup_min_lr", at_least(0), [](S& s) -> F { return &s.warmup_min_lr; }),
    used("scheduler.params.warmup_max_lr", at_least(0), [](S& s) -> F { return &s.warmup_max_lr; }),
    used("scheduler.params.warmup_num_steps", at_least(0), [](S& s) -> F { return &s.warmup_num_steps; }),
    used("scheduler.params.warmup_type", kAny, [](S& s) -> F { return OptionalWord{&s.warmup_type, kWarmupShapes}; }),
    used("scheduler.params.total_num_steps", at_least(1), [](S& s) -> F { return &s.total_num_steps; }),
    used("scheduler.params.warmup_min_ratio", kShare, [](S& s) -> F { return &s.warmup_min_ratio; }),
    used("scheduler.params.cos_min_ratio", kShare, [](S& s) -> F { return &s.cos_min_ratio; }),
    no_effect("scheduler.params.last_batch_iteration", kNumber, "-1", "resuming sets the position of the schedule"),

    // ZeRO
    section("zero_optimization"),
    used("zero_optimization.stage", between(0, 3), [](S& s) -> F { return &s.config.zero_stage; }),
    used("zero_optimization.param_persistence_threshold", at_least(0),
         [](S& s) -> F { return Elements{&s.config.param_persistence_threshold}; }, {},
         "stage3_param_persistence_threshold"),
    used("zero_optimization.reduce_bucket_size", at_least(0),
         [](S& s) -> F { return Elements{&s.config.reduce_bucket_size}; }, "0: a layer at a time"),
    used("zero_optimization.allgather_bucket_size", at_least(0),
         [](S& s) -> F { return Elements{&s.config.allgather_bucket_size}; }, "0: a layer at a time"),
    used("zero_optimization.prefetch_bucket_size", at_least(0),
         [](S& s) -> F { return Elements{&s.config.prefetch_bucket_size}; }, "0: nothing is gathered ahead of use",
         "stage3_prefetch_bucket_size"),
    used("zero_optimization.max_reuse_distance", at_least(0),
         [](S& s) -> F { return Elements{&s.config.max_reuse_distance}; }, "0: weights are always released after use",
         "stage3_max_reuse_distance"),
    used("zero_optimization.overlap_comm", kAny, [](S& s) -> F { return &s.config.overlap_comm; },
         "null: true, at every stage"),
    used("zero_optimization.zero_hpz_partition_size", kCount, [](S& s) -> F { return &s.config.hpz_partition_size; },
         "ranks that shard among themselves, replicated from one such group to the next; 1: all ranks"),
    no_effect("zero_optimization.allgather_partitions", kBool, "true", kGathered),
    no_effect("zero_optimization.reduce_scatter", kBool, "true",
              "sharded gradients are always reduce-scattered and summed in the order of the ranks"),
    no_effect("zero_optimization.contiguous_gradients", kBool, "true", "a layer's gradient always is one flat buffer"),
    no_effect("zero_optimization.round_robin_gradients", kBool, "false",
              "ranks share out every layer, so their copies are spread over the step already"),
    no_effect("zero_optimization.use_multi_rank_bucket_allreduce", kBool, "true",
              "a bucket always carries the parts of all ranks"),
    no_effect("zero_optimization.sub_group_size", kNumber, "1000000000",
              "spillway.tile_size sets the unit of the optimizer's work"),
    no_effect("zero_optimization.max_live_parameters", kNumber, "1000000000", kPlanned, "stage3_max_live_parameters"),
    no_effect("zero_optimization.model_persistence_threshold", kNumber, "9223372036854775807", kPlanned,
              "stage3_model_persistence_threshold"),
    no_effect("zero_optimization.gather_16bit_weights_on_model_save", kBool, "false",
              "exports are always complete and never gather the model on one device",
              "stage3_gather_16bit_weights_on_model_save"),
    no_effect("zero_optimization.stage3_gather_fp16_weights_on_model_save", kBool, "false",
              "exports are always complete and never gather the model on one device"),
    no_effect("zero_optimization.module_granularity_threshold", kNumber, "0", "the unit of fetching is a layer",
              "stage3_module_granularity_threshold"),
    no_effect("zero_optimization.use_all_reduce_for_fetch_params", kBool, "false", kGathered,
              "stage3_use_all_reduce_for_fetch_params"),
    no_effect("zero_optimization.allgather_sequential", kBool, "false",
              "a layer is gathered in place, without a buffer to copy it from", "stage3_allgather_sequential"),
    no_effect("zero_optimization.ignore_unused_parameters", kBool, "true", "every parameter is used"),
    no_effect("zero_optimization.load_from_fp32_weights", kBool, "true", kCheckpoint),
    no_effect("zero_optimization.elastic_checkpoint", kBool, "false", kCheckpoint),
    no_effect("zero_optimization.pipeline_loading_checkpoint", kBool, "false", kCheckpoint),
    no_effect("zero_optimization.memory_efficient_linear", kBool, "true", kPyTorch),
    no_effect("zero_optimization.override_module_apply", kBool, "true", kPyTorch),
    no_effect("zero_optimization.leaf_module", kAnything, "null", "the unit of fetching is a layer"),
    no_effect("zero_optimization.log_trace_cache_warnings", kBool, "false", "there is a plan instead of a trace"),
    no_effect("zero_optimization.enable_sanity_checks", kBool, "false", "the plan is checked before step 1, always"),
    no_effect("zero_optimization.save_muon_momentum_buffer_in_memory", kBool, "false", "there is no Muon"),
    refused("zero_optimization.legacy_stage1", kBool, "false", "that implementation is gone from DeepSpeed too"),
    refused("zero_optimization.zero_quantized_weights", kBool, "false", kCompressed),
    refused("zero_optimization.zero_quantized_nontrainable_weights", kBool, "false", kCompressed),
    refused("zero_optimization.zero_quantized_gradients", kBool, "false", kCompressed),
    refused("zero_optimization.zeropp_loco_param", kAnything, "null", kCompressed),
    refused("zero_optimization.mics_shard_size", kNumber, "-1", kGroups),
    refused("zero_optimization.mics_hierarchical_params_gather", kBool, "false", kGroups),
    refused("zero_optimization.zenflow", kAnything, "null", "ZenFlow updates with stale gradients; not supported"),
    used("zero_optimization.cpu_offload", kAny, [](S& s) -> F { return &s.cpu_offload; }),
    used("zero_optimization.cpu_offload_param", kAny, [](S& s) -> F { return &s.cpu_offload_param; }, {},
         "cpu_offload_params"),
    used("zero_optimization.cpu_offload_use_pin_memory", kAny,
         [](S& s) -> F { return &s.cpu_offload_use_pin_memory; }),
    section("zero_optimization.offload_param"),
    used("zero_optimization.offload_param.device", kAny,
         [](S& s) -> F { return choice(s.config.offload_param.device, kDevices); }),
    used("zero_optimization.offload_param.nvme_path", kAny, [](S& s) -> F { return Folders{&s.param_nvme_paths}; }, kFolders),
    used("zero_optimization.offload_param.pin_memory", kAny,
         [](S& s) -> F { return &s.config.offload_param.pin_memory; }),
    no_effect("zero_optimization.offload_param.buffer_count", kNumber, "5", kPlanned),
    no_effect("zero_optimization.offload_param.buffer_size", kNumber, "100000000", kPlanned),
    no_effect("zero_optimization.offload_param.max_in_cpu", kNumber, "1000000000",
              "spillway.host_memory bounds host memory, with spillway.placement \"fill\""),
    section("zero_optimization.offload_optimizer"),
    used("zero_optimization.offload_optimizer.device", kAny,
         [](S& s) -> F { return choice(s.config.offload_optimizer.device, kDevices); }),
    used("zero_optimization.offload_optimizer.nvme_path", kAny, [](S& s) -> F { return Folders{&s.optimizer_nvme_paths}; }, kFolders),
    used("zero_optimization.offload_optimizer.pin_memory", kAny,
         [](S& s) -> F { return &s.config.offload_optimizer.pin_memory; }),
    used("zero_optimization.offload_optimizer.ratio", kShare,
         [](S& s) -> F { return &s.config.offload_optimizer.ratio; }),
    no_effect("zero_optimization.offload_optimizer.buffer_count", kNumber, "4", kPlanned),
    no_effect("zero_optimization.offload_optimizer.pipeline", kBool, "false", "reads and writes always overlap updates"),
    no_effect("zero_optimization.offload_optimizer.pipeline_read", kBool, "false",
              "reads of later tiles always overlap the update"),
    no_effect("zero_optimization.offload_optimizer.pipeline_write", kBool, "false",
              "writes of earlier tiles always overlap the update"),
    no_effect("zero_optimization.offload_optimizer.fast_init", kBool, "false", "state is written once, at start"),
    no_effect("zero_optimization.offload_optimizer.super_offload", kBool, "false", "updates overlap backward by plan"),
    no_effect("zero_optimization.offload_optimizer.cpuadam_cores_perc", kNumber, "0.8",
              "spillway.threads sets the number of threads"),

    // Asynchronous I/O
    section("aio"),
    used("aio.block_size", between(1, 1 << 30), [](S& s) -> F { return &s.config.aio.block_size; },
         "bytes of one request, rounded up to whole pages of 4096; unset: 1 MiB"),
    used("aio.queue_depth", between(1, 4096), [](S& s) -> F { return &s.config.aio.queue_depth; },
         "requests in flight per ring; unset: by the measured latency and bandwidth of the disk"),
    used("aio.intra_op_parallelism", between(1, 64), [](S& s) -> F { return &s.config.aio.intra_op_parallelism; },
         "rings per folder, each a thread with an I/O engine of its own"),
    used("aio.single_submit", kAny, [](S& s) -> F { return &s.config.aio.single_submit; }),
    used("aio.overlap_events", kAny, [](S& s) -> F { return &s.config.aio.overlap_events; },
         "false: a batch of requests is waited for before the next is submitted"),
    no_effect("aio.thread_count", kNumber, "1", "DeepSpeed's code does not read it either; aio.intra_op_parallelism sets the threads of a folder"),
    used("aio.use_gds", kAny, [](S& s) -> F { return &s.use_gds; }, "state passes through pinned host memory, where it is updated"),

    // Activations
    section("activation_checkpointing"),
    used("activation_checkpointing.cpu_checkpointing", kAny,
         [](S& s) -> F { return &s.cpu_checkpointing; }),
    no_effect("activation_checkpointing.partition_activations", kBool, "false", "there is no model parallelism"),
    no_effect("activation_checkpointing.contiguous_memory_optimization", kBool, "false", kPlanned),
    no_effect("activation_checkpointing.number_checkpoints", kNumber, "null", "one checkpoint per layer"),
    no_effect("activation_checkpointing.synchronize_checkpoint_boundary", kBool, "false", kProfiler),
    no_effect("activation_checkpointing.profile", kBool, "false", kProfiler),

    // Checkpoints
    section("checkpoint"),
    no_effect("checkpoint.tag_validation", kString, "\"Warn\"", kCheckpoint),
    no_effect("checkpoint.load_universal", kBool, "false", kCheckpoint),
    no_effect("checkpoint.use_node_local_storage", kBool, "false", kCheckpoint),
    no_effect("checkpoint.parallel_write", kAnything, "null", kCheckpoint),
    no_effect("checkpoint.checkpoint_serialization", kBool, "true", kCheckpoint),
    no_effect("checkpoint.writer", kAnything, "null", kCheckpoint),
    no_effect("nebula", kAnything, "null", kCheckpoint),
    no_effect("datastates", kAnything, "null", kCheckpoint),

    // Reports
    used("steps_per_print", at_least(0), [](S& s) -> F { return &s.config.steps_per_print; }),
    used("wall_clock_breakdown", kAny, [](S& s) -> F { return &s.config.wall_clock_breakdown; }),
    no_effect("memory_breakdown", kBool, "false", "the memory ledger is printed at start"),
    no_effect("dump_state", kBool, "false", "the configuration in force is part of --summary"),
    no_effect("log_level", kString, "null", "SPILLWAY_LOG sets it"),
    no_effect("timers", kAnything, "null", kProfiler),
    no_effect("csv_monitor", kAnything, "null", kMonitor),
    no_effect("tensorboard", kAnything, "null", kMonitor),
    no_effect("wandb", kAnything, "null", kMonitor),
    no_effect("comet", kAnything, "null", kMonitor),
    no_effect("monitor_config", kAnything, "null", kMonitor),
    no_effect("comms_logger", kAnything, "null", kProfiler),
    no_effect("comms_config", kAnything, "null", kProfiler),
    no_effect("flops_profiler", kAnything, "null", kProfiler),

    // Other features of DeepSpeed
    no_effect("compile", kAnything, "null", "the whole step is planned ahead; there is nothing to compile"),
    no_effect("autotuning", kAnything, "null", "spillway plan compares configurations without running them"),
    section("tensor_parallel"),
    refused("tensor_parallel.autotp_size", kNumber, "1", "tensor parallelism is not supported"),
    refused("pipeline", kAnything, "null", "pipeline parallelism is not supported"),
    refused("sparse_attention", kAnything, "null", kNotTraining),
    refused("progressive_layer_drop", kAnything, "null", kNotTraining),
    refused("curriculum_learning", kAnything, "null", kNotTraining),
    refused("data_efficiency", kAnything, "null", kNotTraining),
    refused("compression_training", kAnything, "null", kNotTraining),
    refused("quantize_training", kAnything, "null", kNotTraining),
    refused("eigenvalue", kAnything, "null", kNotTraining),
    refused("hybrid_engine", kAnything, "null", kNotTraining),

    // Spillway's own
    section("spillway"),
    used("spillway.device_memory", kAny, [](S& s) -> F { return Bytes{&s.config.spillway.device_memory}; },
         "unset: what the device has"),
    used("spillway.host_memory", kAny, [](S& s) -> F { return Bytes{&s.config.spillway.host_memory}; },
         "unset: what the machine has available"),
    used("spillway.nvme_memory", kAny, [](S& s) -> F { return Bytes{&s.config.spillway.nvme_memory}; },
         "unset: what is free under the folders of nvme_path"),
    used("spillway.offload_gradients", kAny,
         [](S& s) -> F { return choice(s.config.spillway.offload_gradients, kGradientDevices); },
         "where finished gradients wait for an optimizer that runs on the host"),
    used("spillway.offload_activations", kAny, [](S& s) -> F { return choice(s.config.offload_activations, kDevices); },
         "where activation checkpoints wait for backward"),
    used("spillway.nvme_path", kAny, [](S& s) -> F { return Folders{&s.config.spillway.nvme_paths}; },
         "of gradients and activations on nvme; unset: the folders of the offload sections"),
    used("spillway.tile_size", between(2048, 0x1p40), [](S& s) -> F { return Elements{&s.config.spillway.tile_size}; }),
    used("spillway.prefetch_depth", between(1, 64), [](S& s) -> F { return &s.config.spillway.prefetch_depth; }),
    used("spillway.placement", kAny, [](S& s) -> F { return choice(s.config.spillway.placement, kPlacements); }),
    used("spillway.schedule", kAny, [](S& s) -> F { return choice(s.config.spillway.schedule, kOrders); }),
    used("spillway.io_engine", kAny, [](S& s) -> F { return Word{&s.config.spillway.io_engine, kIoEngines}; }),
    used("spillway.submission_polling", kAny, [](S& s) -> F { return &s.config.spillway.submission_polling; },
         "io_uring: a kernel thread takes requests off the ring; costs a core"),
    used("spillway.completion_polling", kAny, [](S& s) -> F { return &s.config.spillway.completion_polling; },
         "io_uring: completions are polled for; needs a driver with polling queues"),
    used("spillway.verify", kAny, [](S& s) -> F { return &s.config.spillway.verify; }),
    used("spillway.threads", between(0, 4096), [](S& s) -> F { return &s.config.spillway.threads; },
         "0: one per core of the affinity mask"),
    used("spillway.frozen", kAny, [](S& s) -> F { return Strings{&s.config.spillway.frozen}; },
         "parameters that are not trained, by name; * stands for any characters, ? for one"),
    used("spillway.comm_timeout_s", kSeconds, [](S& s) -> F { return &s.config.spillway.comm_timeout_s; },
         "a rank that is not heard for so long is given up"),
    used("spillway.hash_every", at_least(0), [](S& s) -> F { return &s.config.spillway.hash_every; },
         "steps between comparisons of the ranks' state; 0: never"),
    used("spillway.checkpoint_memory", kAny, [](S& s) -> F { return Bytes{&s.config.spillway.checkpoint_memory}; },
         "unset: so much that a save stops training for a step at most"),
    used("spillway.moments", kAny, [](S& s) -> F { return choice(s.moments, kMoments); },
         "how the optimizer's moments are kept; all but fp32 rounded stochastically"),
    used("spillway.profile", kAny, [](S& s) -> F { return &s.config.spillway.profile; },
         "empty: rates are measured at start"),
};

}  // namespace

std::span<const Key> key_table() { return kTable; }

const Key* find_key(std::string_view section, std::string_view name) {
  for (const Key& key : kTable) {
    if (key.section() == section && (key.name() == name || (!key.alias.empty() && key.alias == name))) return &key;
  }
  return nullptr;
}

std::vector<std::string_view> key_names(std::string_view section) {
  std::vector<std::string_view> names;
  for (const Key& key : kTable) {
    if (key.section() != section) continue;
    names.push_back(key.name());
    if (!key.alias.empty()) names.push_back(key.alias);
  }
  return names;
}

}  // namespace spillway::config
