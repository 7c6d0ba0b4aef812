// Rules between keys: precision, schedule, offload, defaults, and the written-out result.
#include <algorithm>
#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spillway/config.h"
#include "spillway/error.h"
#include "support/config_text.h"

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::error_of;
using testing::parse;

KeyReport row(const Config& config, const std::string& path) {
  const auto found = std::find_if(config.keys.begin(), config.keys.end(),
                                  [&](const KeyReport& report) { return report.path == path; });
  return found == config.keys.end() ? KeyReport{} : *found;
}

TEST(Precision, IsChosenByTheTwoSwitches) {
  EXPECT_EQ(parse("{}").dtype, DType::f32);
  EXPECT_EQ(parse(R"({"bf16": {"enabled": true}})").dtype, DType::bf16);
  EXPECT_EQ(parse(R"({"bfloat16": {"enabled": true}})").dtype, DType::bf16);
  EXPECT_THAT(error_of(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"), HasSubstr("both true"));
  const Config automatic = parse(R"({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}})");
  EXPECT_EQ(automatic.dtype, DType::f32);
  EXPECT_THAT(automatic.warnings, Contains(AllOf(HasSubstr("bf16.enabled"), HasSubstr("fp32"))));
}

TEST(Precision, CommunicationFollowsTheModelUnlessSet) {
  EXPECT_EQ(parse(R"({"fp16": {"enabled": true}})").communication_dtype, DType::f16);
  EXPECT_EQ(parse(R"({"bf16": {"enabled": true}, "communication_data_type": "FP32"})").communication_dtype, DType::f32);
  EXPECT_THAT(error_of(R"({"communication_data_type": "fp8"})"), HasSubstr("allowed: fp16, bf16, fp32"));
}

TEST(Precision, LossScaleIsDynamicUnlessAFixedOneIsGiven) {
  const Config dynamic = parse(R"({"fp16": {"enabled": true, "initial_scale_power": 32, "min_loss_scale": 4}})");
  EXPECT_TRUE(dynamic.loss_scale.dynamic);
  EXPECT_EQ(dynamic.loss_scale.initial_scale_power, 24);
  EXPECT_EQ(dynamic.loss_scale.min_scale, 4.0);
  EXPECT_THAT(dynamic.warnings, Contains(HasSubstr("starting at 2^24")));
  const Config fixed = parse(R"({"fp16": {"enabled": true, "loss_scale": 1024, "hysteresis": 3}})");
  EXPECT_FALSE(fixed.loss_scale.dynamic);
  EXPECT_EQ(fixed.loss_scale.static_scale, 1024.0);
}

TEST(Scheduler, MaximumDefaultsAsItsTypeDefines) {
  const std::string optimizer = R"("optimizer": {"type": "AdamW", "params": {"lr": 0.02}}, )";
  const auto maximum = [&](const std::string& scheduler) {
    const ConfigContext context{.world_size = 1, .total_steps = 5000};
    return parse("{" + optimizer + "\"scheduler\": " + scheduler + "}", context).scheduler.warmup_max_lr;
  };
  EXPECT_EQ(maximum(R"({"type": "WarmupLR"})"), 0.02);
  EXPECT_EQ(maximum(R"({"type": "WarmupLR", "params": {"warmup_max_lr": null}})"), 0.02);
  EXPECT_EQ(maximum(R"({"type": "warmuplr", "params": {"warmup_max_lr": 0.5}})"), 0.5);
  EXPECT_EQ(maximum(R"({"type": "WarmupDecayLR"})"), 0.001);
  EXPECT_EQ(maximum(R"({"type": "WarmupDecayLR", "params": {"warmup_max_lr": "auto"}})"), 0.02);
}

TEST(Scheduler, TotalStepsComeFromTheFileElseFromTheRun) {
  const std::string decay =
      R"({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "total_num_steps": )";
  EXPECT_EQ(parse(decay + "300}}}", {.world_size = 1, .total_steps = 77}).scheduler.total_num_steps, 300);
  const Config config = parse(decay + "\"auto\"}}}", {.world_size = 1, .total_steps = 77});
  EXPECT_EQ(config.scheduler.total_num_steps, 77);
  EXPECT_EQ(row(config, "scheduler.params.total_num_steps").source, KeyReport::Source::automatic);
  EXPECT_THAT(error_of(decay + "\"auto\"}}}"), AllOf(HasSubstr("scheduler.params.total_num_steps"), HasSubstr("--steps")));
}

TEST(Scheduler, SaysWhatItDoesNotReadAndWhatItDoesNotHave) {
  const Config config = parse(R"({"scheduler": {"type": "WarmupCosineLR",
      "params": {"total_num_steps": 100, "warmup_num_steps": 0, "warmup_type": "Linear", "warmup_max_lr": 1,
                 "cos_min_ratio": 0.1}}})");
  EXPECT_EQ(config.scheduler.kind, ScheduleKind::warmup_cosine);
  EXPECT_EQ(config.scheduler.warmup_type, WarmupShape::linear);
  EXPECT_EQ(config.scheduler.warmup_num_steps, 0);
  EXPECT_EQ(config.scheduler.cos_min_ratio, 0.1);
  EXPECT_THAT(config.warnings, Contains(AllOf(HasSubstr("warmup_max_lr"), HasSubstr("does not read"))));
  EXPECT_EQ(error_of(R"({"scheduler": {"type": "CosineAnnealingLR", "params": {"T_max": 10}}})"),
            "ds.json:1: scheduler.type: \"CosineAnnealingLR\" is not supported; "
            "allowed: WarmupLR, WarmupDecayLR, WarmupCosineLR");
}

TEST(Offload, DevicesAreReadInAnyCaseAndNvmeNeedsItsFolder) {
  const Config config = parse(R"({"zero_optimization": {"stage": 3,
      "offload_param": {"device": "CPU", "pin_memory": false},
      "offload_optimizer": {"device": "NVMe", "nvme_path": "/swap", "ratio": 0.5}}})");
  EXPECT_EQ(config.offload_param.device, OffloadDevice::cpu);
  EXPECT_FALSE(config.offload_param.pin_memory);
  EXPECT_EQ(config.offload_optimizer.device, OffloadDevice::nvme);
  EXPECT_THAT(config.offload_optimizer.nvme_paths, ::testing::ElementsAre("/swap"));
  EXPECT_EQ(config.offload_optimizer.ratio, 0.5);
  for (const std::string section : {"offload_param", "offload_optimizer"}) {
    const std::string path = "zero_optimization." + section;
    const auto with = [&](const std::string& rest) {
      return error_of(R"({"zero_optimization": {"stage": 3, ")" + section + R"(": {"device": "nvme")" + rest + "}}}");
    };
    EXPECT_THAT(with(""), HasSubstr(path + ".nvme_path: device nvme needs a folder"));
    EXPECT_THAT(with(R"(, "nvme_path": null)"), HasSubstr(path + ".nvme_path: device nvme needs a folder"));
    EXPECT_THAT(with(R"(, "nvme_path": "")"), HasSubstr(path + ".nvme_path: expected the path"));
  }
  EXPECT_THAT(error_of(R"({"zero_optimization": {"offload_optimizer": {"device": "hpu"}}})"),
              AllOf(HasSubstr("\"hpu\" is not supported"), HasSubstr("allowed: none, cpu, nvme")));
}

TEST(Offload, DeviceNoneIsOffWhateverElseItsSectionSays) {
  const Config config = parse(R"({"train_batch_size": 1, "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 2,
      "offload_param": {"device": "none", "pin_memory": true, "nvme_path": "/x"}}})");
  EXPECT_EQ(config.offload_param.device, OffloadDevice::none);
  EXPECT_THAT(config.offload_param.nvme_paths, IsEmpty());
  EXPECT_THAT(config.warnings, IsEmpty());
}

TEST(Offload, IsDroppedWithAWarningWhereTheStageHasNone) {
  const auto at_stage = [](int stage) {
    return parse(R"({"zero_optimization": {"stage": )" + std::to_string(stage) +
                 R"(, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}})");
  };
  for (int stage = 0; stage <= 3; ++stage) {
    const Config config = at_stage(stage);
    EXPECT_EQ(config.offload_param.device, stage == 3 ? OffloadDevice::cpu : OffloadDevice::none);
    EXPECT_EQ(config.offload_optimizer.device, stage >= 1 ? OffloadDevice::cpu : OffloadDevice::none);
    const auto dropped = Contains(HasSubstr("parameter offload needs stage 3"));
    if (stage < 3) {
      EXPECT_THAT(config.warnings, dropped);
    } else {
      EXPECT_THAT(config.warnings, Not(dropped));
    }
  }
  EXPECT_EQ(error_of(R"({"zero_optimization": {"stage": 2, "offload_param": {"device": "nvme"}}})"), "no error")
      << "what is dropped needs no folder";
}

TEST(Offload, DeprecatedSpellingsStillWork) {
  const Config config = parse(R"({"zero_optimization": {"stage": 3, "cpu_offload": true, "cpu_offload_params": true,
      "cpu_offload_use_pin_memory": false}})");
  EXPECT_EQ(config.offload_optimizer.device, OffloadDevice::cpu);
  EXPECT_EQ(config.offload_param.device, OffloadDevice::cpu);
  EXPECT_FALSE(config.offload_optimizer.pin_memory);
  EXPECT_THAT(config.warnings, Contains(AllOf(HasSubstr("cpu_offload"), HasSubstr("deprecated"))));
  EXPECT_EQ(parse(R"({"zero_optimization": {"stage": 2, "cpu_offload": false}})").offload_optimizer.device,
            OffloadDevice::none);
  EXPECT_THAT(error_of(R"({"zero_optimization": {"stage": 2, "cpu_offload": true,
                                                 "offload_optimizer": {"device": "cpu"}}})"),
              HasSubstr("remove zero_optimization.cpu_offload"));
  EXPECT_EQ(parse(R"({"zero_optimization": true})").zero_stage, 1);
  EXPECT_EQ(parse(R"({"zero_optimization": false})").zero_stage, 0);
}

TEST(Spillway, SectionIsReadInItsUnits) {
  const Config config = parse(R"({"spillway": {"device_memory": "48MiB", "host_memory": 5e8, "nvme_memory": "1.5GB",
      "tile_size": "4Ki", "prefetch_depth": 3, "placement": "fill", "schedule": "micro_batch_major",
      "io_engine": "threads", "verify": false, "threads": 2, "profile": "rates.json", "comm_timeout_s": 2.5,
      "hash_every": 50, "checkpoint_memory": "256MiB", "frozen": ["wte.weight", "h.0.*"]}})");
  const SpillwayConfig& spillway = config.spillway;
  EXPECT_EQ(spillway.device_memory, std::int64_t{48} << 20);
  EXPECT_EQ(spillway.host_memory, 500000000);
  EXPECT_EQ(spillway.nvme_memory, 1500000000);
  EXPECT_EQ(spillway.tile_size, 4096);
  EXPECT_EQ(spillway.prefetch_depth, 3);
  EXPECT_EQ(spillway.placement, PlacementPolicy::fill);
  EXPECT_EQ(spillway.io_engine, "threads");
  EXPECT_FALSE(spillway.verify);
  EXPECT_EQ(spillway.threads, 2);
  EXPECT_EQ(spillway.profile, "rates.json");
  EXPECT_EQ(spillway.comm_timeout_s, 2.5);
  EXPECT_EQ(spillway.hash_every, 50);
  EXPECT_EQ(spillway.checkpoint_memory, std::int64_t{256} << 20);
  EXPECT_THAT(spillway.frozen, ::testing::ElementsAre("wte.weight", "h.0.*"));
  EXPECT_EQ(parse(R"({"spillway": {"tile_size": 4194304}})").spillway.tile_size, 4194304);
  EXPECT_EQ(parse(R"({"spillway": {"tile_size": "1Mi"}})").spillway.tile_size, 1048576);
  EXPECT_THAT(error_of(R"({"spillway": {"tile_size": 4e6}})"),
              HasSubstr("4000000 elements is not a multiple of 2048; the nearest are 3999744 and 4001792"));
  EXPECT_THAT(error_of(R"({"spillway": {"tile_size": 1024}})"), HasSubstr("at least 2048"));
  EXPECT_THAT(error_of(R"({"spillway": {"device_memory": "48 M"}})"), HasSubstr("spillway.device_memory: expected a size"));
  EXPECT_THAT(error_of(R"({"spillway": {"comm_timeout_s": 0}})"), HasSubstr("allowed: more than 0"));
  EXPECT_THAT(error_of(R"({"spillway": {"comm_timeout_s": "inf"}})"), HasSubstr("expected a finite number"));
  EXPECT_THAT(error_of(R"({"spillway": {"hash_every": -1}})"), HasSubstr("allowed: at least 0"));
  EXPECT_EQ(parse(R"({"spillway": {"hash_every": 0}})").spillway.hash_every, 0);
  EXPECT_FALSE(parse("{}").spillway.checkpoint_memory.has_value());
  EXPECT_THAT(error_of(R"({"spillway": {"io_engine": "iouring"}})"), HasSubstr("did you mean \"io_uring\"?"));
}

TEST(Report, NamesTheSourceOfEveryValue) {
  const Config config = parse(R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": "auto",
      "zero_optimization": {"stage": 1, "sub_group_size": 123}})");
  EXPECT_EQ(row(config, "train_micro_batch_size_per_gpu").source, KeyReport::Source::file);
  EXPECT_EQ(row(config, "train_batch_size").source, KeyReport::Source::derived);
  EXPECT_EQ(row(config, "train_batch_size").value, "2");
  EXPECT_EQ(row(config, "gradient_clipping").source, KeyReport::Source::automatic);
  EXPECT_EQ(row(config, "gradient_clipping").value, "1.0");
  EXPECT_EQ(row(config, "steps_per_print").source, KeyReport::Source::default_value);
  EXPECT_EQ(row(config, "zero_optimization.sub_group_size").value, "123");
  EXPECT_THAT(row(config, "zero_optimization.sub_group_size").note, HasSubstr("no effect"));
}

// The written configuration is complete: read again, without the context that filled the gaps, it is the same.
TEST(Report, EffectiveConfigurationReadsBackAsItself) {
  const ConfigContext context{.world_size = 2, .total_steps = 640};
  const std::string texts[] = {
      "{}",
      R"({"fp16": {"enabled": true, "loss_scale": 128, "min_loss_scale": 0.5},
          "zero_optimization": {"stage": 2, "cpu_offload": true}})",
      R"({"train_batch_size": 24, "gradient_accumulation_steps": 3, "bf16": {"enabled": "true"},
          "communication_data_type": "fp32",
          "optimizer": {"type": "adam", "params": {"lr": "auto", "betas": [0.8, 0.95], "eps": 1e-10,
                                                   "adam_w_mode": false, "bias_correction": false}},
          "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_max_lr": "auto",
                                                            "warmup_num_steps": 7}},
          "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "param_persistence_threshold": 77,
                                "offload_optimizer": {"device": "nvme", "nvme_path": ["/swap \"a\"", "/b"], "ratio": 0.3}},
          "activation_checkpointing": {"cpu_checkpointing": true}, "wall_clock_breakdown": true,
          "gradient_clipping": 0.1,
          "spillway": {"device_memory": "1GiB", "tile_size": "2Ki", "placement": "fill", "threads": 1,
                       "verify": false}})",
      R"({"zero_optimization": {"stage": 2, "reduce_bucket_size": 0, "allgather_bucket_size": 5e7, "overlap_comm": false,
          "stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 12345, "zero_hpz_partition_size": 2},
          "spillway": {"frozen": ["wte.*", "h.?.\"x\""], "comm_timeout_s": 0.25, "hash_every": 0,
                       "checkpoint_memory": "64MiB"}})",
      R"({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_type": "linear", "warmup_num_steps": 0,
          "warmup_min_lr": 3}}, "steps_per_print": inf})",
      R"({"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 4}},
          "optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}})",
      R"({"optimizer": {"type": "lion", "params": {"lr": 3e-4}}, "spillway": {"moments": "8bit"}})",
      R"({"optimizer": {"type": "SGD", "params": {"dampening": 0.5}}, "spillway": {"moments": "bf16"}})",
      R"({"optimizer": {"type": "Adagrad", "params": {"lr_decay": 0.5, "fp32_optimizer_states": false}},
          "bf16": {"enabled": true, "bf16_optimizer_states": true}})",
      R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/a"},
                                "offload_optimizer": {"device": "nvme", "nvme_path": ["/b", "/a"]}},
          "activation_checkpointing": {"cpu_checkpointing": true},
          "aio": {"block_size": 5000, "queue_depth": 64, "intra_op_parallelism": 2, "single_submit": false, "overlap_events": false, "use_gds": true},
          "spillway": {"offload_gradients": "nvme", "submission_polling": true, "completion_polling": true}})",
      R"({"spillway": {"offload_activations": "nvme", "nvme_path": ["/c", "/d"], "offload_gradients": "nvme"}})",
  };
  for (const std::string& text : texts) {
    const Config first = parse(text, context);
    const Config second = parse(first.effective_json, {.world_size = 2, .total_steps = 0});
    EXPECT_EQ(second.effective_json, first.effective_json) << text;
    EXPECT_THAT(second.warnings, IsEmpty()) << first.effective_json;
    EXPECT_EQ(second.micro_batch_size, first.micro_batch_size);
    EXPECT_EQ(second.dtype, first.dtype);
    EXPECT_EQ(second.communication_dtype, first.communication_dtype);
    EXPECT_EQ(second.loss_scale.dynamic, first.loss_scale.dynamic);
    EXPECT_EQ(second.loss_scale.static_scale, first.loss_scale.static_scale);
    EXPECT_EQ(second.optimizer.decoupled_decay, first.optimizer.decoupled_decay);
    EXPECT_EQ(second.optimizer.beta2, first.optimizer.beta2);
    EXPECT_EQ(second.optimizer.learning_rate, first.optimizer.learning_rate);
    EXPECT_EQ(second.optimizer.learning_rate_decay, first.optimizer.learning_rate_decay);
    EXPECT_EQ(second.optimizer.state, first.optimizer.state);
    EXPECT_EQ(second.scheduler.kind, first.scheduler.kind);
    EXPECT_EQ(second.scheduler.warmup_max_lr, first.scheduler.warmup_max_lr);
    EXPECT_EQ(second.scheduler.total_num_steps, first.scheduler.total_num_steps);
    EXPECT_EQ(second.scheduler.warmup_type, first.scheduler.warmup_type);
    EXPECT_EQ(second.offload_optimizer.nvme_paths, first.offload_optimizer.nvme_paths);
    EXPECT_EQ(second.spillway.nvme_paths, first.spillway.nvme_paths);
    EXPECT_EQ(second.spillway.offload_gradients, first.spillway.offload_gradients);
    EXPECT_EQ(second.offload_activations, first.offload_activations);
    EXPECT_EQ(second.aio.block_size, first.aio.block_size);
    EXPECT_EQ(second.aio.queue_depth, first.aio.queue_depth);
    EXPECT_EQ(second.spillway.device_memory, first.spillway.device_memory);
    EXPECT_EQ(second.reduce_bucket_size, first.reduce_bucket_size);
    EXPECT_EQ(second.allgather_bucket_size, first.allgather_bucket_size);
    EXPECT_EQ(second.prefetch_bucket_size, first.prefetch_bucket_size);
    EXPECT_EQ(second.max_reuse_distance, first.max_reuse_distance);
    EXPECT_EQ(second.overlap_comm, first.overlap_comm);
    EXPECT_EQ(second.hpz_partition_size, first.hpz_partition_size);
    EXPECT_EQ(second.spillway.frozen, first.spillway.frozen);
    EXPECT_EQ(second.spillway.comm_timeout_s, first.spillway.comm_timeout_s);
    EXPECT_EQ(second.spillway.hash_every, first.spillway.hash_every);
    EXPECT_EQ(second.spillway.checkpoint_memory, first.spillway.checkpoint_memory);
  }
}

}  // namespace
}  // namespace spillway
