// Weights as files for other programs: what is in them, and what is refused.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/values.h"
#include "checkpoint/export.h"
#include "checkpoint/folders.h"
#include "checkpoint/safetensors.h"
#include "spillway/error.h"
#include "support/io_error.h"
#include "support/saved_run.h"
#include "support/test_folder.h"

namespace spillway::checkpoint {
namespace {

using namespace spillway::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class CheckpointExport : public ::testing::Test {
 protected:
  std::string save(const MadeUpModel& model) const { return save_once(root_.path() + "/out", model, 3, {.world = 2}).folder; }

  std::string export_error(const std::string& folder, const ExportOptions& options) const {
    Reader reader(folder);
    const std::string error = io_error_of([&] { export_weights(reader, target_, options); });
    EXPECT_THAT(names_in(root_.path()), ElementsAre("out")) << "something was left behind";
    return error;
  }

  const TestFolder root_;
  const MadeUpModel model_ = tiny_gpt2("wpe");
  const std::string target_ = root_.path() + "/model";
};

// Master or frozen weight, rounded.
std::vector<std::byte> expected_bytes(const MadeUpModel& model, const TensorInfo& tensor, DType dtype) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    values.push_back(model.value(tensor.name, tensor.frozen ? StateSection::weight : StateSection::master, i));
  }
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(size_of(dtype)));
  narrow(dtype, values, bytes);
  return bytes;
}

TEST_F(CheckpointExport, HoldsEveryTensorInItsShapeRounded) {
  const std::string folder = save(model_);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Reader reader(folder);
    const std::string target = target_ + std::string(name_of(dtype)) + "/";
    const ExportResult result = export_weights(reader, target, {.dtype = dtype});
    const std::string file = target + "model.safetensors";
    EXPECT_THAT(result.files, ElementsAre(file));
    const SafetensorsHeader header = read_safetensors_header(file);
    ASSERT_EQ(header.entries.size(), model_.tensors.size());
    const std::string text = contents(file);
    EXPECT_THAT(text.substr(0, 100), HasSubstr(R"("__metadata__":{"format":"pt"})"));
    for (const TensorInfo& tensor : model_.tensors) {
      const auto entry = std::ranges::find(header.entries, tensor.name, &SafetensorsEntry::name);
      ASSERT_NE(entry, header.entries.end()) << tensor.name;
      EXPECT_EQ(entry->dtype, dtype);
      EXPECT_EQ(entry->shape, tensor.shape);
      const std::vector<std::byte> expected = expected_bytes(model_, tensor, dtype);
      ASSERT_EQ(entry->end - entry->begin, static_cast<std::int64_t>(expected.size()));
      EXPECT_EQ(std::memcmp(text.data() + header.data_offset + entry->begin, expected.data(), expected.size()), 0) << tensor.name;
    }
  }
}

TEST_F(CheckpointExport, IsCutIntoFilesOfTheSizeAskedForWithAnIndex) {
  Reader reader(save(model_));
  constexpr std::int64_t kLimit = 3000;
  const ExportResult result = export_weights(reader, target_, {.dtype = DType::bf16, .max_file_bytes = kLimit});
  const auto index = nlohmann::json::parse(contents(target_ + "/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], result.bytes);
  std::set<std::string> tensors;
  const std::size_t files = result.files.size() - 1;
  EXPECT_GT(files, 2u);
  for (std::size_t f = 0; f < files; ++f) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", f + 1, files);
    EXPECT_EQ(result.files[f], target_ + "/" + name);
    const SafetensorsHeader header = read_safetensors_header(result.files[f]);
    EXPECT_TRUE(header.entries.back().end <= kLimit || header.entries.size() == 1);
    for (const SafetensorsEntry& entry : header.entries) {
      EXPECT_EQ(index["weight_map"][entry.name], name);
      EXPECT_TRUE(tensors.insert(entry.name).second);
    }
  }
  EXPECT_EQ(tensors.size(), model_.tensors.size());
  EXPECT_EQ(index["weight_map"].size(), model_.tensors.size());
}

TEST_F(CheckpointExport, WhatIsThereIsNotOverwritten) {
  const std::string folder = save(model_);
  Reader reader(folder);
  std::filesystem::create_directory(target_);
  EXPECT_EQ(io_error_of([&] { export_weights(reader, target_, {}); }), "no error");  // it was empty
  const std::string before = contents(target_ + "/model.safetensors");
  EXPECT_THAT(io_error_of([&] { export_weights(reader, target_, {.dtype = DType::f32}); }), HasSubstr("is not overwritten"));
  EXPECT_EQ(contents(target_ + "/model.safetensors"), before);
  EXPECT_THAT(io_error_of([&] { export_weights(reader, target_ + "/model.safetensors", {}); }), HasSubstr("is not overwritten"));
}

TEST_F(CheckpointExport, WhatADeadExportToTheSameTargetLeftIsRemoved) {
  const std::string other = ".other.partial-0000000000000001";
  for (const std::string& name : {other, std::string(".model.partial-0000000000000001")}) {
    std::filesystem::create_directories(root_.path() + "/" + name + "/inner");
  }
  Reader reader(save(model_));
  export_weights(reader, target_, {});
  EXPECT_THAT(names_in(root_.path()), ElementsAre(other, "model", "out"));
}

TEST_F(CheckpointExport, ACheckpointThatIsNotOfItsModelIsRefused) {
  MadeUpModel lacking = model_, empty = model_, reshaped = model_, surplus = model_;
  lacking.tensors.erase(lacking.tensors.begin());
  EXPECT_THAT(export_error(save(lacking), {}), HasSubstr("'wte.weight' is a tensor of the model and not there"));
  empty.tensors[0].shape = {0, 12};
  EXPECT_THAT(export_error(save(empty), {}), HasSubstr("'wte.weight' is empty"));
  reshaped.tensors[0].shape = {12, 51};
  EXPECT_THAT(export_error(save(reshaped), {}), HasSubstr("'wte.weight' has another shape"));
  surplus.tensors.push_back({"extra", {1}, false});
  EXPECT_THAT(export_error(save(surplus), {}), HasSubstr("'extra' is no tensor of the model"));
}

// Saves model_ with one master weight that is not like the others.
class CheckpointExportOfOneValue : public CheckpointExport {
 protected:
  std::string save_with(float odd) const {
    MadeUpModel model = model_;
    model.odd = {"wte.weight", 7, odd};
    return save_once(root_.path() + "/out", model, 4).folder;
  }
};

TEST_F(CheckpointExportOfOneValue, WhatFp16CannotHoldIsRefusedByName) {
  const std::string folder = save_with(65520.0f);  // the smallest that rounds to infinity
  EXPECT_THAT(export_error(folder, {.dtype = DType::f16}), AllOf(HasSubstr("element 7 of 'wte.weight' is 65520, too large for fp16")));
  EXPECT_THAT(export_error(folder, {.dtype = DType::f16, .allow_non_finite = true}), HasSubstr("too large for fp16"));
  Reader reader(folder);
  EXPECT_EQ(io_error_of([&] { export_weights(reader, target_, {.dtype = DType::bf16}); }), "no error");
}

TEST_F(CheckpointExportOfOneValue, TheLargestThatFp16HoldsIsExported) {
  Reader reader(save_with(65519.0f));
  EXPECT_EQ(io_error_of([&] { export_weights(reader, target_, {.dtype = DType::f16}); }), "no error");
}

TEST_F(CheckpointExportOfOneValue, ValuesThatAreNotFiniteAreRefusedUnlessAskedFor) {
  const std::string folder = save_with(std::numeric_limits<float>::quiet_NaN());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    EXPECT_THAT(export_error(folder, {.dtype = dtype}), HasSubstr("element 7 of 'wte.weight' is nan; the model has diverged"));
  }
  Reader reader(folder);
  EXPECT_EQ(io_error_of([&] { export_weights(reader, target_, {.dtype = DType::f16, .allow_non_finite = true}); }), "no error");
}

}  // namespace
}  // namespace spillway::checkpoint
