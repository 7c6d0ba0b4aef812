// Model files, sizes in bytes, and the sample configurations that users start from.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spillway/config.h"
#include "spillway/error.h"

namespace spillway {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ParseBytes, UnderstandsBinaryAndDecimalUnits) {
  const std::pair<std::string, std::int64_t> cases[] = {
      {"0", 0}, {"4096", 4096}, {"5e8", 500000000}, {"48MiB", 50331648}, {"48 mib", 50331648}, {"1.5GB", 1500000000},
      {"1Ki", 1024}, {"2KB", 2000}, {"0.5KiB", 512}, {"3 TiB", 3298534883328}, {"7B", 7}, {" 1GiB ", 1073741824},
  };
  for (const auto& [text, bytes] : cases) EXPECT_EQ(parse_bytes(text, "size"), bytes) << text;
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const std::string text : {"", "MiB", "1M", "48M iB", "-1", "nan", "inf", "1e30", "1 GiB!", "0x10", "auto", "1,5GB"}) {
    try {
      parse_bytes(text, "spillway.host_memory");
      ADD_FAILURE() << text;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("spillway.host_memory: \"" + text + "\""), HasSubstr("MiB")));
    }
  }
}

class ModelFile : public testing::Test {
 protected:
  ModelFile() : file_((std::filesystem::path(testing::TempDir()) / "spillway_model_test.json").string()) {}
  ~ModelFile() override { std::filesystem::remove(file_); }

  ModelSpec load(const std::string& text) const {
    std::ofstream(file_) << text;
    return load_model_spec(file_);
  }

  std::string error_of(const std::string& text) const {
    try {
      load(text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  std::string file_;
};

TEST_F(ModelFile, ReadsOurNamesNanoGptsAndHuggingFaces) {
  const ModelSpec ours = load(R"({"name": "m", "layers": 2, "channels": 64, "heads": 4, "vocabulary": 256, "context": 128,
                                  "mlp_channels": 200, "layernorm_epsilon": 1e-6})");
  EXPECT_EQ(ours, (ModelSpec{"m", 2, 64, 4, 256, 128, 200, 1e-6f}));
  const ModelSpec nano = load(R"({"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 256, "block_size": 128,
                                  "dropout": 0.0, "bias": true})");
  EXPECT_EQ(nano, (ModelSpec{"spillway_model_test", 2, 64, 4, 256, 128, 0, 1e-5f}));
  // The keys of the file published with GPT-2.
  const ModelSpec gpt2 = load(R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
      "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
      "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_inner": null,
      "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_type": "cls_index", "vocab_size": 50257,
      "task_specific_params": {"text-generation": {"do_sample": true}}})");
  EXPECT_EQ(gpt2, (ModelSpec{"spillway_model_test", 12, 768, 12, 50257, 1024, 0, 1e-5f}));
}

TEST_F(ModelFile, ExplainsWhatIsWrong) {
  EXPECT_THAT(error_of(R"({"n_layr": 2})"), AllOf(HasSubstr("n_layr: unknown key (did you mean \"n_layer\"?)"),
                                                 HasSubstr("channels: is missing (also known as n_embd")));
  EXPECT_THAT(error_of(R"({"n_positions": 8, "n_ctx": 16})"), HasSubstr("n_ctx: is 16 but n_positions, the same thing, is 8"));
  EXPECT_THAT(error_of(R"({"layers": 0})"), HasSubstr("layers: 0 is out of range"));
  EXPECT_THAT(error_of(R"({"model_type": "llama"})"), HasSubstr("allowed: \"gpt2\""));
  EXPECT_THAT(error_of(R"({"activation_function": "relu"})"), HasSubstr("gelu_new"));
  EXPECT_THAT(error_of("not json"), HasSubstr("not a JSON object"));
  EXPECT_THROW(load_model_spec("/nonexistent/model.json"), ConfigError);
}

class SampleConfig : public testing::TestWithParam<std::string> {};

TEST_P(SampleConfig, LoadsWithoutAWarning) {
  const Config config = load_config(std::string(SPILLWAY_CONFIGS) + "/" + GetParam(), {.world_size = 1, .total_steps = 100});
  EXPECT_THAT(config.warnings, testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, SampleConfig, testing::Values("zero3_nvme.json", "zero2_cpu.json", "no_offload.json"));

}  // namespace
}  // namespace spillway
