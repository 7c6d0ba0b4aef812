// The two texts a checkpoint is made of, as they come and as damage leaves them: nothing but an IoError may come of it.
#include <filesystem>
#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/hash.h"
#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "spillway/error.h"
#include "support/io_error.h"
#include "support/saved_run.h"
#include "support/test_folder.h"

namespace spillway::checkpoint {
namespace {

using namespace spillway::testing;
using ::testing::HasSubstr;

Manifest small_manifest() {
  Manifest manifest;
  manifest.model = model_preset("gpt2-tiny");
  manifest.model.layernorm_epsilon = 1.1e-5f;
  manifest.dtype = DType::f16;
  manifest.run = run_at(12);
  manifest.run.data = "text 'caf\u00e9'";
  manifest.tensors = {{{"a", {3, 5}, false}, {1, ~std::uint64_t{0}, 3}}, {{"b", {7}, true}, {0, 0, 0, 0, 0, 4}}};
  manifest.files = {{"one", 100}, {"two", std::int64_t{1} << 60}};
  manifest.pieces = {{0, StateSection::master, 0, 15, 1, ~std::uint64_t{0}},
                     {0, StateSection::exp_avg, 0, 15, 0, 5},
                     {0, StateSection::exp_avg_sq, 0, 9, 0, 6},
                     {0, StateSection::exp_avg_sq, 9, 15, 0, 7},
                     {1, StateSection::weight, 0, 7, 0, 8}};
  manifest.state_hash = state_hash_of(manifest.tensors, manifest.run.applied_steps);
  return manifest;
}

// The same text with a checksum that fits, as if this were what had been written.
std::string with_fitting_checksum(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const std::string error = io_error_of([&] { parse_manifest(text, "m"); });
  const std::string marker = "(checksum ";
  const std::size_t found = error.find(marker);
  if (found == std::string::npos) return text;
  const std::size_t stated = text.find("\"checksum\": \"") + 13;
  return text.replace(stated, 16, error.substr(found + marker.size(), 16));
}

TEST(CheckpointManifest, ComesBackAsItWas) {
  const Manifest manifest = small_manifest();
  const Manifest back = parse_manifest(to_json(manifest), "manifest.json");
  EXPECT_EQ(back.model, manifest.model);
  EXPECT_EQ(back.dtype, manifest.dtype);
  EXPECT_EQ(back.run, manifest.run);
  EXPECT_EQ(back.state_hash, manifest.state_hash);
  ASSERT_EQ(back.tensors.size(), manifest.tensors.size());
  for (std::size_t t = 0; t < back.tensors.size(); ++t) {
    EXPECT_EQ(static_cast<const TensorInfo&>(back.tensors[t]), manifest.tensors[t]);
    EXPECT_EQ(back.tensors[t].hashes, manifest.tensors[t].hashes);
  }
  EXPECT_EQ(to_json(back), to_json(manifest));
}

TEST(CheckpointManifest, NamesTheOptimizerAndTheFormatOfItsMoments) {
  Manifest manifest = small_manifest();
  EXPECT_EQ(parse_manifest(to_json(manifest), "m").state, StateFormat{});
  EXPECT_THAT(to_json(manifest), HasSubstr("\"version\": 1,")) << "programs that know no other state can read it";
  manifest.state = {OptimizerKind::adam, MomentFormat::block8};
  EXPECT_EQ(parse_manifest(to_json(manifest), "m").state, manifest.state);
  EXPECT_THAT(to_json(manifest), HasSubstr("\"version\": 2,"));
  manifest.state = {OptimizerKind::adagrad, MomentFormat::bf16};
  manifest.pieces = {{0, StateSection::sum, 0, 15, 1, 5}, {1, StateSection::weight, 0, 7, 0, 8}};
  const Manifest back = parse_manifest(to_json(manifest), "m");
  EXPECT_EQ(back.state, manifest.state);
  EXPECT_EQ(back.pieces[0].section, StateSection::sum);
  EXPECT_EQ(back.dtype_of(back.pieces[0]), DType::bf16);
}

// As programs wrote them that had no other optimizer.
TEST(CheckpointManifest, ThatIsOlderAndNamesNoOptimizerIsAdams) {
  std::string text = to_json(small_manifest());
  const std::size_t begin = text.find(" \"optimizer\""), end = text.find(" \"state_hash\"");
  text = with_fitting_checksum(text, text.substr(begin, end - begin), "");
  ASSERT_EQ(text.find("optimizer"), std::string::npos);
  EXPECT_EQ(parse_manifest(text, "m").state, StateFormat{});
}

TEST(CheckpointManifest, IsTheSameDocumentHoweverItIsSpaced) {
  std::string spaced;
  for (const char c : to_json(small_manifest())) spaced += c == '\n' ? std::string("\r\n  ") : std::string(1, c);
  EXPECT_EQ(to_json(parse_manifest(spaced, "m")), to_json(small_manifest()));
}

TEST(CheckpointManifest, ValuesThatCannotBeAreNamedByTheirPath) {
  const std::string text = to_json(small_manifest());
  const auto error_with = [&](const std::string& from, const std::string& to) {
    return io_error_of([&] { parse_manifest(with_fitting_checksum(text, from, to), "m.json"); });
  };
  EXPECT_THAT(error_with("\"step\": 12", "\"step\": -12"), HasSubstr("read m.json: run.step is not an integer of at least 0"));
  EXPECT_THAT(error_with("\"step\": 12", "\"step\": 18446744073709551615"), HasSubstr("run.step is not an integer"));
  EXPECT_THAT(error_with("\"step\": 12", "\"stop\": 12"), HasSubstr("run.step is not there"));
  EXPECT_THAT(error_with("\"seed\": \"fedc", "\"seed\": \"FEDC"), HasSubstr("run.seed is not 16 hexadecimal digits"));
  EXPECT_THAT(error_with("\"dtype\": \"fp16\"", "\"dtype\": \"fp17\""), HasSubstr("dtype is not fp32, bf16 or fp16"));
  EXPECT_THAT(error_with("\"kind\": \"adam\"", "\"kind\": \"adma\""), HasSubstr("optimizer.kind is not one of adam, adagrad, lion, sgd, sgd_momentum"));
  EXPECT_THAT(error_with("\"moments\": \"fp32\"", "\"moments\": \"fp16\""), HasSubstr("optimizer.moments is not one of fp32, bf16, 8bit"));
  EXPECT_THAT(error_with("\"kind\": \"adam\"", "\"kind\": \"lion\""), HasSubstr("pieces[2].section is not a section of this tensor"));
  EXPECT_THAT(error_with("\"name\": \"b\"", "\"name\": \"a\""), HasSubstr("tensors[1].name is not unique"));
  EXPECT_THAT(error_with("\"name\": \"one\"", "\"name\": \"../one\""), HasSubstr("files[0].name is not the name of a file"));
  EXPECT_THAT(error_with("\"end\": 9", "\"end\": 16"), HasSubstr("pieces[2].end is not within the tensor"));
  EXPECT_THAT(error_with("\"file\": 1", "\"file\": 2"), HasSubstr("pieces[0].file is not the number of a file"));
  EXPECT_THAT(error_with("\"section\": \"exp_avg\"", "\"section\": \"weight\""), HasSubstr("pieces[1].section is not a section of this tensor"));
  EXPECT_THAT(error_with("    3,", "    4611686018427387904,"), HasSubstr("tensors[0].shape is not a possible shape"));
  EXPECT_THAT(error_with("\"tensors\": [", "\"tensors\": 1, \"was\": ["), HasSubstr("tensors is not an array"));
}

TEST(CheckpointManifest, PiecesMustMakeUpTheTensorsExactly) {
  const auto wrong_with = [](std::size_t piece, std::int64_t begin, std::int64_t end) {
    Manifest manifest = small_manifest();
    manifest.pieces[piece].begin = begin;
    manifest.pieces[piece].end = end;
    return sort_and_check_coverage(manifest);
  };
  EXPECT_EQ(wrong_with(0, 0, 15), "");
  EXPECT_EQ(wrong_with(3, 10, 15), "exp_avg_sq of a: elements 9 to 10 are there in no piece");
  EXPECT_EQ(wrong_with(3, 8, 15), "exp_avg_sq of a: elements 8 to 9 are there in two pieces");
  EXPECT_EQ(wrong_with(3, 9, 14), "exp_avg_sq of a: elements 14 to 15 are there in no piece");
  EXPECT_EQ(wrong_with(4, 1, 7), "weight of b: elements 0 to 1 are there in no piece");
}

TEST(CheckpointManifest, DamagedTextsAreErrorsAndNothingElse) {
  const std::string text = to_json(small_manifest());
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = text;
    switch (round % 4) {
      case 0: damaged[below(text.size())] = static_cast<char>(below(256)); break;
      case 1: damaged.resize(below(text.size())); break;
      case 2: damaged.erase(below(text.size()), 1 + below(40)); break;
      case 3: damaged.insert(below(text.size()), text.substr(below(text.size()), 1 + below(40))); break;
    }
    try {
      // Only spaces may change without notice.
      accepted += to_json(parse_manifest(damaged, "m")) != text;
    } catch (const IoError&) {
    }
  }
  EXPECT_EQ(accepted, 0);
  EXPECT_THAT(io_error_of([] { parse_manifest(std::string(1'000'000, '['), "m"); }), HasSubstr("nested too deeply"));
}

TEST(CheckpointManifest, ValuesThatWereChangedBeforeTheChecksumAreErrorsAndNothingElse) {
  const std::string text = to_json(small_manifest());
  std::mt19937 random(2);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::size_t at = std::uniform_int_distribution<std::size_t>(0, text.size() - 1)(random);
    const std::string changed = with_fitting_checksum(text, text.substr(at), static_cast<char>('0' + round % 10) + text.substr(at + 1));
    try {
      Manifest manifest = parse_manifest(changed, "m");
      ++(sort_and_check_coverage(manifest).empty() ? accepted : refused);
    } catch (const IoError&) {
      ++refused;
    }
  }
  EXPECT_GT(accepted, 0);  // another digit of a hash, say
  EXPECT_GT(refused, 0);
}

class SafetensorsFile : public ::testing::Test {
 protected:
  void write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  std::string error() const {
    return io_error_of([&] { read_safetensors_header(path_); });
  }
  // A file of this header and so many bytes of data.
  std::string error_of_header(const std::string& json, std::size_t data_bytes) const {
    const std::uint64_t length = json.size();
    write(std::string(reinterpret_cast<const char*>(&length), 8) + json + std::string(data_bytes, 'd'));
    return error();
  }

  const TestFolder folder_;
  const std::string path_ = folder_.path() + "/x.safetensors";
  const std::vector<SafetensorsEntry> entries_ = {{"z", DType::f32, {2, 3}, 0, 24}, {"a", DType::bf16, {5}, 24, 34}, {"e", DType::f16, {0}, 34, 34}};
};

TEST_F(SafetensorsFile, HeaderComesBackAsItWas) {
  const std::string header = safetensors_header(entries_, {{"format", "pt"}});
  EXPECT_EQ(header.size() % 8, 0u);
  write(header + std::string(34, 'd'));
  const SafetensorsHeader back = read_safetensors_header(path_);
  EXPECT_EQ(back.data_offset, static_cast<std::int64_t>(header.size()));
  ASSERT_EQ(back.entries.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(back.entries[i].name, entries_[i].name);
    EXPECT_EQ(back.entries[i].dtype, entries_[i].dtype);
    EXPECT_EQ(back.entries[i].shape, entries_[i].shape);
    EXPECT_EQ(back.entries[i].begin, entries_[i].begin);
  }
}

TEST_F(SafetensorsFile, ImpossibleHeadersAreNamed) {
  write("");
  EXPECT_THAT(error(), HasSubstr("it has 0 bytes, fewer than a header"));
  write(std::string(8, '\xff'));
  EXPECT_THAT(error(), HasSubstr("header is said to have 18446744073709551615 bytes, the file has 8"));
  EXPECT_THAT(error_of_header("[]", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of_header(R"({"t":{"shape":[1],"data_offsets":[0,4]}})", 4), HasSubstr("gives no dtype for 't'"));
  EXPECT_THAT(error_of_header(R"({"t":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", 8), HasSubstr("a dtype that is not F32, BF16 or F16"));
  EXPECT_THAT(error_of_header(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4), HasSubstr("has 2 elements and 4 bytes"));
  EXPECT_THAT(error_of_header(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 8), HasSubstr("has 1 elements and 8 bytes"));
  EXPECT_THAT(error_of_header(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8), HasSubstr("begins at byte 4, where the one before it ends at 0"));
  EXPECT_THAT(error_of_header(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8), HasSubstr("holds 8 bytes of data, its header names 4"));
  EXPECT_THAT(error_of_header(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})", 8), HasSubstr("bytes 8 to 4 of 8"));
  EXPECT_THAT(error_of_header(R"({"t":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,4]}})", 4), HasSubstr("larger than the file"));
  EXPECT_THAT(error_of_header(R"({"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4), HasSubstr("no valid size"));
  EXPECT_THAT(error_of_header(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", 4), HasSubstr("no valid size"));
  EXPECT_THAT(error_of_header(R"({"t":[]})", 0), HasSubstr("gives no dtype"));
}

TEST_F(SafetensorsFile, DamagedFilesAreErrorsOrRead) {
  const std::string good = safetensors_header(entries_, {{"format", "pt"}}) + std::string(34, 'd');
  std::mt19937 random(4);
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = good;
    if (round % 2 == 0) damaged[below(good.size())] = static_cast<char>(below(256));
    if (round % 2 == 1) damaged.resize(below(good.size()));
    write(damaged);
    try {
      std::int64_t end = 0;
      for (const SafetensorsEntry& entry : read_safetensors_header(path_).entries) end = entry.end;
      EXPECT_EQ(end, 34);
    } catch (const IoError&) {
    }
  }
}

TEST_F(SafetensorsFile, WhatIsNoFileIsNotReadAsOne) {
  EXPECT_THAT(error(), HasSubstr("No such file or directory"));
  std::filesystem::create_directory(path_);
  EXPECT_THAT(error(), HasSubstr("it is a folder"));
}

// A header that says something else than the manifest, in a file of the right size.
TEST(CheckpointFiles, TheDtypeOfTheManifestIsTheDtypeOfTheFile) {
  const TestFolder root;
  const std::string path = save_once(root.path(), tiny_gpt2(), 1).folder;
  std::fstream file(path + "/state-00001-of-00001.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  std::string start(4000, '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  const std::size_t at = start.find("\"F32\",\"shape\":[12]");
  ASSERT_NE(at, std::string::npos) << start;
  file.seekp(static_cast<std::streamoff>(at));
  file << "\"F16\",\"shape\":[24]";
  file.close();
  EXPECT_THAT(io_error_of([&] { Reader{path}; }), HasSubstr("(fp16, 48 bytes), the manifest says otherwise"));
}

TEST(CheckpointNames, OnlyOurOwnAreRecognised) {
  EXPECT_EQ(folder_name(100), "step-00000100");
  EXPECT_EQ(folder_name(1'234'567'890), "step-1234567890");
  EXPECT_EQ(step_of("step-00000100"), 100);
  EXPECT_EQ(step_of("step-1234567890"), 1'234'567'890);
  for (const char* name : {"step-100", "step-", "step-0000010x", "step-+0000100", "step--0000100", "Step-00000100", "step-00000100.bak",
                           "step-99999999999999999999", ".step-00000100"}) {
    EXPECT_FALSE(step_of(name)) << name;
  }
  EXPECT_EQ(name_behind(".step-00000100.partial-0123456789abcdef"), "step-00000100");
  EXPECT_EQ(name_behind(".step-00000100.removed-0123456789abcdef"), "step-00000100");
  for (const char* name : {"step-00000100.partial-0123456789abcdef", ".step-00000100.partial-0123456789abcde", ".partial-0123456789abcdef",
                           ".step-00000100.partial-0123456789abcdeg", ".step-00000100"}) {
    EXPECT_FALSE(name_behind(name)) << name;
  }
}

}  // namespace
}  // namespace spillway::checkpoint
