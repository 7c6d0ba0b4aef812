// From bytes to values: what is accepted as JSON, and what each kind of broken file is told.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spillway/config.h"
#include "spillway/error.h"

namespace spillway {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

Config parse(const std::string& text, std::int64_t world_size = 1, std::int64_t total_steps = 0) {
  return parse_config(text, "ds.json", {.world_size = world_size, .total_steps = total_steps});
}

std::string error_of(const std::string& text) {
  try {
    parse(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

// A folder that is gone after the test.
class ConfigFile : public testing::Test {
 protected:
  ConfigFile() : folder_(std::filesystem::path(testing::TempDir()) / "spillway_config_file_test") {
    std::filesystem::create_directories(folder_);
  }
  ~ConfigFile() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string file = (folder_ / name).string();
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }

  static std::string load_error(const std::string& file) {
    try {
      load_config(file, {});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path folder_;
};

TEST_F(ConfigFile, LoadsWhateverTheExtensionAndLineEnds) {
  const std::string text = "{\r\n  \"train_batch_size\": 6, // samples\r\n  \"steps_per_print\": 1e5,\r\n}\r\n";
  for (const std::string& file : {write("stage3.conf", text), write("bom.json", "\xEF\xBB\xBF" + text)}) {
    const Config config = load_config(file, {});
    EXPECT_EQ(config.train_batch_size, 6);
    EXPECT_EQ(config.steps_per_print, 100000);
  }
}

TEST_F(ConfigFile, SaysWhyAFileIsNoConfiguration) {
  const std::string missing = (folder_ / "absent.json").string();
  EXPECT_THAT(load_error(missing), AllOf(HasSubstr(missing), HasSubstr("No such file")));
  EXPECT_THAT(load_error(folder_.string()), AllOf(HasSubstr(folder_.string()), HasSubstr("folder")));
  EXPECT_THAT(load_error(write("empty.json", "")), HasSubstr("empty"));
  EXPECT_THAT(load_error(write("blank.json", " \r\n\t")), HasSubstr("empty"));
  EXPECT_THAT(load_error(write("comment.json", "// nothing yet\n")), HasSubstr("no JSON"));
  EXPECT_THAT(load_error(write("binary.json", std::string("{\"a\":\x01\0", 7))),
              AllOf(HasSubstr("not a text file"), HasSubstr("0x01 at offset 5")));
  EXPECT_THAT(load_error(write("utf16.json", std::string("\xFF\xFE{\0", 4))), HasSubstr("UTF-8"));
  EXPECT_THAT(load_error(write("large.json", std::string((16 << 20) + 1, ' '))), HasSubstr("16 MiB"));
  EXPECT_THAT(load_error(write("list.json", "[1]")), HasSubstr("starts with '['"));
  EXPECT_THAT(load_error(write("accelerate.yaml", "compute_environment: X\ndeepspeed_config:\n  zero_stage: 3\n")),
              HasSubstr("Accelerate"));
}

TEST(ConfigText, AcceptsCommentsTrailingCommasAndBareWords) {
  const std::vector<std::string> texts = {
      R"({"train_batch_size": 8, "fp16": {"enabled": true}})",
      R"({"train_batch_size": 8, "fp16": {"enabled": true,},})",
      R"({"train_batch_size": 8, /* here, } */ "fp16": {"enabled": true, // last
         } , # end
         })",
      R"({train_batch_size: 8, fp16: {enabled: true}})",
      R"({"train_batch_size": "8", "fp16": {"enabled": True}})",
      R"({"train_batch_size": 8.0, "fp16": {"enabled": "true"}, "_comment": [1, 2,], "// note": {"x": 1}})",
  };
  for (const std::string& text : texts) {
    const Config config = parse(text);
    EXPECT_EQ(config.train_batch_size, 8) << text;
    EXPECT_EQ(config.dtype, DType::f16) << text;
  }
}

TEST(ConfigText, LeavesCommentsAndCommasInsideStringsAlone) {
  const Config config = parse(R"({"spillway": {"profile": "a,] // # /* \" ,} b",}})");
  EXPECT_EQ(config.spillway.profile, "a,] // # /* \" ,} b");
}

TEST(ConfigText, PointsAtTheLineAndColumnOfASyntaxError) {
  // The quotes put around the two bare keys must not move the column.
  EXPECT_THAT(error_of("{\n  a_b: 1, c: 2 ]\n}"), StartsWith("ds.json:2:16: "));
  EXPECT_THAT(error_of("{\"fp16\": {\"enabled\": true}"), StartsWith("ds.json:1:"));
  EXPECT_THAT(error_of("{\"a\": 1,, \"b\": 2}"), StartsWith("ds.json:1:9: "));
  EXPECT_THAT(error_of("{,}"), StartsWith("ds.json:1:2: "));
  EXPECT_THAT(error_of("{} {}"), StartsWith("ds.json:1:4: "));
  EXPECT_THAT(error_of("{\"a\": 0x10}"), StartsWith("ds.json:1:"));
  EXPECT_THAT(error_of("{\"a\": \"open\n}"), StartsWith("ds.json:1:"));
  EXPECT_THAT(error_of("{\"a\": /* open"), StartsWith("ds.json:1:"));
}

TEST(ConfigText, SurvivesEveryTruncationAndEveryChangedByte) {
  const std::string text =
      "{\"train_batch_size\": 8, // c\n \"fp16\": {\"enabled\": true, }, optimizer: {\"type\": \"Adam\"}}";
  int loaded = 0, refused = 0;
  const auto attempt = [&](const std::string& changed) {
    try {
      parse(changed);
      ++loaded;
    } catch (const ConfigError&) {
      ++refused;
    }
  };
  for (std::size_t length = 0; length < text.size(); ++length) attempt(text.substr(0, length));
  EXPECT_EQ(loaded, 0) << "every proper prefix lacks its last brace";
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (const char byte : {'{', '}', '[', ']', '"', ',', ':', '\\', '/', '#', '0', 'e', ' ', '\n', '\x80'}) {
      std::string changed = text;
      changed[at] = byte;
      attempt(changed);
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(ConfigText, RefusesDuplicateKeysAtEveryLevel) {
  EXPECT_THAT(error_of("{\"steps_per_print\": 1,\n\"steps_per_print\": 1}"),
              AllOf(StartsWith("ds.json:2: "), HasSubstr("steps_per_print"), HasSubstr("line 1")));
  EXPECT_THAT(error_of("{\"zero_optimization\": {\"offload_param\": {\"device\": \"cpu\",\n\"device\": \"cpu\"}}}"),
              AllOf(StartsWith("ds.json:2: "), HasSubstr("device")));
  EXPECT_THAT(error_of("{\"tensorboard\": {\"job\": 1, job: 2}}"), HasSubstr("second time"));
}

TEST(ConfigText, RefusesAbsurdNesting) {
  const std::string text = "{\"wandb\": " + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_THAT(error_of(text), HasSubstr("inside each other"));
}

// The documents a client may hand over; each must load as it stands.
TEST(ConfigDocuments, ParameterOffloadAtStageTwoWithTrailingCommas) {
  const Config config = parse(R"({
    "train_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "steps_per_print": 200,
    "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16,},
    "zero_optimization": {
      "stage": 2,
      "offload_param": {"device": "cpu", "pin_memory": true,},
      "offload_optimizer": {"device": "cpu", "pin_memory": true,},
    },
    "optimizer": {"type": "Adam",
      "params": {"lr": 3e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 3e-7,},},
    "scheduler": {"type": "WarmupLR",
      "params": {"warmup_min_lr": 1e-7, "warmup_max_lr": 3e-5, "warmup_num_steps": 500,},},
    "wall_clock_breakdown": false,
  })");
  EXPECT_EQ(config.micro_batch_size, 32);
  EXPECT_EQ(config.dtype, DType::f16);
  EXPECT_TRUE(config.loss_scale.dynamic);
  EXPECT_EQ(config.zero_stage, 2);
  EXPECT_EQ(config.offload_optimizer.device, OffloadDevice::cpu);
  EXPECT_EQ(config.offload_param.device, OffloadDevice::none);
  EXPECT_EQ(config.optimizer.weight_decay, 3e-7);
  EXPECT_TRUE(config.optimizer.decoupled_decay);
  EXPECT_EQ(config.scheduler.kind, ScheduleKind::warmup);
  EXPECT_EQ(config.scheduler.warmup_min_lr, 1e-7);
  EXPECT_EQ(config.scheduler.warmup_num_steps, 500);
  ASSERT_EQ(config.warnings.size(), 1u);
  EXPECT_THAT(config.warnings[0], AllOf(HasSubstr("ds.json:8:"), HasSubstr("offload_param"), HasSubstr("stage 3")));
}

TEST(ConfigDocuments, StageThreeOnFourRanksWithComments) {
  const std::string quoted = R"({
    "train_batch_size": 32,                // over all ranks
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {
      "stage": 3,
      "offload_optimizer": {"device": "cpu", "pin_memory": true},
      "offload_param": {"device": "cpu", "pin_memory": true},
      "overlap_comm": true,
      "contiguous_gradients": true,
      "sub_group_size": 1e9,               // elements
      "reduce_bucket_size": 5e8,
      "stage3_prefetch_bucket_size": 5e8,
      "stage3_param_persistence_threshold": 1e6,
      "stage3_max_live_parameters": 1e9,
      "stage3_max_reuse_distance": 1e9,
      "stage3_gather_16bit_weights_on_model_save": true
    },
    "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1},
    "gradient_clipping": 1.0
  })";
  std::string bare = quoted;
  std::erase(bare, '"');
  bare = std::string(bare).replace(bare.find("device: cpu"), 11, "device: \"cpu\"");
  for (const std::string& text : {quoted, bare}) {
    const Config config = parse(text, 4);
    EXPECT_EQ(config.train_batch_size, 32);
    EXPECT_EQ(config.accumulation_steps, 2);
    EXPECT_EQ(config.world_size, 4);
    EXPECT_EQ(config.zero_stage, 3);
    EXPECT_EQ(config.offload_param.device, OffloadDevice::cpu);
    EXPECT_EQ(config.param_persistence_threshold, 1000000);
    EXPECT_EQ(config.loss_scale.hysteresis, 2);
    EXPECT_EQ(config.gradient_clipping, 1.0);
  }
}

TEST(ConfigDocuments, BfloatStageTwoWithoutTrainBatchSize) {
  const Config config = parse(R"({
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 16, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 2, "allgather_partitions": true, "reduce_scatter": true, "overlap_comm": true,
                          "contiguous_gradients": true},
    "gradient_clipping": 1.0})");
  EXPECT_EQ(config.train_batch_size, 16);
  EXPECT_EQ(config.dtype, DType::bf16);
  EXPECT_EQ(config.communication_dtype, DType::bf16);
}

TEST(ConfigDocuments, BfloatStageThree) {
  const Config config = parse(R"({
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 500000000, "stage3_prefetch_bucket_size": 50000000,
                          "stage3_param_persistence_threshold": 100000,
                          "stage3_gather_16bit_weights_on_model_save": true},
    "gradient_clipping": 1.0})");
  EXPECT_EQ(config.zero_stage, 3);
  EXPECT_EQ(config.train_batch_size, 8);
  EXPECT_EQ(config.param_persistence_threshold, 100000);
}

TEST(ConfigDocuments, OnlyStageThreeAndBothOffloads) {
  const Config config = parse(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                                                        "offload_optimizer": {"device": "cpu"}}})");
  EXPECT_EQ(config.offload_param.device, OffloadDevice::cpu);
  EXPECT_EQ(config.offload_optimizer.device, OffloadDevice::cpu);
  EXPECT_EQ(config.train_batch_size, 1);
  EXPECT_THAT(config.warnings, testing::Contains(HasSubstr("no batch size")));
  EXPECT_THAT(config.warnings, testing::Contains(HasSubstr("no optimizer")));
}

// What Transformers' users start from: nearly every value is left to the trainer, betas and switches included.
TEST(ConfigDocuments, TransformersTemplateWithAutoEverywhere) {
  const Config config = parse(R"({
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16,
             "hysteresis": 2, "min_loss_scale": 1},
    "bf16": {"enabled": true},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                  "warmup_num_steps": 10, "total_num_steps": "auto"}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "none", "pin_memory": true},
      "sub_group_size": 1e14, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": 15099494.4,
      "stage3_param_persistence_threshold": "auto", "stage3_gather_fp16_weights_on_model_save": true},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 1e5,
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false
  })", 2, 50);
  EXPECT_EQ(config.train_batch_size, 2);
  EXPECT_EQ(config.dtype, DType::bf16);
  EXPECT_EQ(config.optimizer.beta2, 0.999);
  EXPECT_EQ(config.scheduler.warmup_max_lr, config.optimizer.learning_rate);
  EXPECT_EQ(config.scheduler.total_num_steps, 50);
  EXPECT_EQ(config.param_persistence_threshold, 100000);
}

}  // namespace
}  // namespace spillway
