// Any world's checkpoint, read by any range; and every way in which one can be damaged.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "runtime/state_hash.h"
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

class CheckpointOfWorld : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CheckpointOfWorld, ::testing::Values(1, 2, 3, 5, 8));

TEST_P(CheckpointOfWorld, GivesBackEveryBitByAnyRange) {
  const TestFolder folder;
  const MadeUpModel model = odd_model();
  const SaveResult saved =
      save_once(folder.path(), model, 100, {.world = GetParam(), .slots = 1 + GetParam() % 3, .tile_elements = 300'001});
  ASSERT_EQ(saved.error, "");
  EXPECT_EQ(saved.folder, folder.path() + "/step-00000100");
  Reader reader(saved.folder);
  EXPECT_EQ(wrong_values(reader, model, kMaxPieceElements + 3), 0);
  EXPECT_EQ(wrong_values(reader, model, 4099), 0);
}

TEST(CheckpointReader, TheStateHashDoesNotDependOnTheWorldThatWrote) {
  const MadeUpModel model = odd_model();
  std::uint64_t sum = 0;
  for (const SnapshotItem& item : items_of(model, 0, 1, 1 << 30)) {
    AlignedBuffer bytes(item.bytes());
    fill_item(model, item, bytes.span());
    sum += item_hash(item, model.dtype, bytes.span());
  }
  const std::uint64_t expected = combine_state_hash(sum, run_at(7).applied_steps);
  for (const int world : {1, 3, 4}) {
    const TestFolder folder;
    const SaveResult saved = save_once(folder.path(), model, 7, {.world = world, .tile_elements = 400'000});
    EXPECT_EQ(saved.state_hash, expected) << world;
    EXPECT_EQ(Reader(saved.folder).manifest().state_hash, expected) << world;
  }
}

// A checkpoint of two ranks that a test may damage.
class DamagedCheckpoint : public ::testing::Test {
 protected:
  DamagedCheckpoint() : saved_(save_once(root_.path(), model_, 5, {.world = 2})), path_(saved_.folder) {}

  std::string file(int rank) const { return path_ + "/state-0000" + std::to_string(rank + 1) + "-of-00002.safetensors"; }
  std::string open_error() const {
    return io_error_of([&] { Reader{path_}; });
  }
  void flip_bit(const std::string& path, std::int64_t byte) const {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(byte);
    const char flipped = static_cast<char>(file.get() ^ 4);
    file.seekp(byte);
    file.put(flipped);
  }
  void replace_in_manifest(const std::string& from, const std::string& to) const {
    std::stringstream text;
    text << std::ifstream(path_ + "/manifest.json").rdbuf();
    std::string changed = text.str();
    ASSERT_NE(changed.find(from), std::string::npos) << from;
    changed.replace(changed.find(from), from.size(), to);
    std::ofstream(path_ + "/manifest.json") << changed;
  }

  const TestFolder root_;
  const MadeUpModel model_ = tiny_gpt2("wpe");
  const SaveResult saved_;
  const std::string path_;
};

TEST_F(DamagedCheckpoint, AFlippedBitIsAnErrorThatNamesFileTensorAndRange) {
  flip_bit(file(1), static_cast<std::int64_t>(std::filesystem::file_size(file(1))) - 1);
  Reader reader(path_);
  const TensorInfo& last = model_.tensors.back();
  std::vector<float> values(static_cast<std::size_t>(last.num_elements()));
  reader.read(last.name, StateSection::master, 0, values);
  const std::string error = io_error_of([&] { reader.read(last.name, StateSection::exp_avg_sq, 0, values); });
  EXPECT_THAT(error, AllOf(HasSubstr(file(1)), HasSubstr("exp_avg_sq of '" + last.name + "', elements "), HasSubstr("checksum")));
  // Also when asked again: what is wrong is not kept.
  EXPECT_EQ(io_error_of([&] { reader.read(last.name, StateSection::exp_avg_sq, 0, values); }), error);
}

TEST_F(DamagedCheckpoint, AMissingFileIsNamed) {
  std::filesystem::remove(file(0));
  EXPECT_THAT(open_error(), AllOf(HasSubstr(file(0)), HasSubstr("No such file")));
}

TEST_F(DamagedCheckpoint, ACutFileIsNamedWithBothSizes) {
  const auto size = std::filesystem::file_size(file(1));
  std::filesystem::resize_file(file(1), size - 1);
  EXPECT_THAT(open_error(), AllOf(HasSubstr(file(1)), HasSubstr(std::to_string(size - 1) + " bytes, the manifest says " + std::to_string(size))));
}

TEST_F(DamagedCheckpoint, AFolderInPlaceOfAFileIsSaidToBeOne) {
  std::filesystem::remove(file(1));
  std::filesystem::create_directory(file(1));
  EXPECT_THAT(open_error(), AllOf(HasSubstr(file(1)), HasSubstr("it is a folder")));
}

TEST_F(DamagedCheckpoint, FilesThatChangedPlacesAreNotWhatTheManifestSays) {
  const TestFolder other;
  MadeUpModel renamed = model_;
  for (TensorInfo& tensor : renamed.tensors) tensor.name.front() = 'z';
  const SaveResult saved = save_once(other.path(), renamed, 5, {.world = 2});
  std::filesystem::copy_file(saved.folder + "/state-00001-of-00002.safetensors", file(0), std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(open_error(), AllOf(HasSubstr(file(0)), HasSubstr("the manifest knows nothing of it")));
}

TEST_F(DamagedCheckpoint, WithoutAManifestItIsNoCheckpoint) {
  std::filesystem::remove(path_ + "/manifest.json");
  EXPECT_THAT(open_error(), HasSubstr("has no manifest.json"));
}

TEST_F(DamagedCheckpoint, AManifestCutShortIsSaidToBe) {
  std::filesystem::resize_file(path_ + "/manifest.json", 1000);
  EXPECT_THAT(open_error(), AllOf(HasSubstr("manifest.json"), HasSubstr("cut short or damaged")));
  std::filesystem::resize_file(path_ + "/manifest.json", 0);
  EXPECT_THAT(open_error(), AllOf(HasSubstr("manifest.json"), HasSubstr("cut short or damaged")));
}

TEST_F(DamagedCheckpoint, AnAlteredManifestIsFoundByItsChecksum) {
  replace_in_manifest("\"step\": 5", "\"step\": 6");
  EXPECT_THAT(open_error(), AllOf(HasSubstr("manifest.json"), HasSubstr("was altered")));
}

TEST_F(DamagedCheckpoint, AnotherVersionOfTheFormatIsNamed) {
  replace_in_manifest("\"version\": 1", "\"version\": 3");
  EXPECT_THAT(open_error(), HasSubstr("version 3 of the format is unknown, this program reads versions 1 to 2"));
}

TEST_F(DamagedCheckpoint, AnotherKindOfManifestIsNotOurs) {
  std::ofstream(path_ + "/manifest.json") << "{\"format\": \"webapp\", \"version\": 1}";
  EXPECT_THAT(open_error(), HasSubstr("not the manifest of a Spillway checkpoint"));
}

TEST_F(DamagedCheckpoint, AnotherModelIsRefusedByField) {
  const Reader reader(path_);
  ModelSpec wider = model_.spec;
  wider.channels = 24;
  EXPECT_THAT(io_error_of([&] { reader.check_model(wider, DType::bf16); }), HasSubstr("channels is 12 in the checkpoint and 24 in this run"));
  EXPECT_THAT(io_error_of([&] { reader.check_model(model_.spec, DType::f16); }),
              HasSubstr("the dtype of weights is bf16 in the checkpoint and fp16 in this run"));
  ModelSpec renamed = model_.spec;
  renamed.name = "another name";
  renamed.mlp_channels = 4 * renamed.channels;  // what 0 stands for
  EXPECT_EQ(io_error_of([&] { reader.check_model(renamed, DType::bf16); }), "no error");
}

TEST_F(DamagedCheckpoint, WhatIsNotThereCannotBeRead) {
  Reader reader(path_);
  std::vector<float> two(2);
  EXPECT_THAT(io_error_of([&] { reader.read("nothing", StateSection::master, 0, two); }), HasSubstr("no such parameter"));
  const TensorInfo& last = model_.tensors.back();
  EXPECT_THAT(io_error_of([&] { reader.read(last.name, StateSection::master, last.num_elements() - 1, two); }), HasSubstr("it has "));
}

TEST_F(DamagedCheckpoint, WhatIsNotKeptFollowsFromWhatIs) {
  Reader reader(path_);
  float value[3];
  reader.read("wte.weight", StateSection::weight, 7, value);  // trained: its master, rounded
  for (int i = 0; i < 3; ++i) EXPECT_EQ(value[i], round_to<bf16>(model_.value("wte.weight", StateSection::master, 7 + i)));
  reader.read("wpe.weight", StateSection::master, 7, value);  // frozen: its weight
  for (int i = 0; i < 3; ++i) EXPECT_EQ(value[i], model_.value("wpe.weight", StateSection::weight, 7 + i));
  reader.read("wpe.weight", StateSection::exp_avg_sq, 7, value);
  EXPECT_THAT(value, ElementsAre(0.0f, 0.0f, 0.0f));
}

TEST(CheckpointCatalog, TheNewestCompleteOneIsFoundAndOthersAreNoted) {
  const TestFolder root;
  EXPECT_FALSE(find_newest(root.path() + "/not there").folder);
  EXPECT_FALSE(find_newest(root.path()).folder);
  const MadeUpModel model = tiny_gpt2();
  for (const int step : {9, 10, 11}) ASSERT_TRUE(save_once(root.path(), model, step).ok());
  EXPECT_EQ(find_newest(root.path()).folder, root.path() + "/step-00000011");
  std::filesystem::remove(root.path() + "/step-00000011/manifest.json");
  std::filesystem::create_directory(root.path() + "/.step-00000012.partial-0123456789abcdef");
  std::filesystem::create_directory(root.path() + "/step-13");
  const Found found = find_newest(root.path());
  EXPECT_EQ(found.folder, root.path() + "/step-00000010");
  EXPECT_THAT(found.notes, ElementsAre(AllOf(HasSubstr("step-00000011"), HasSubstr("no manifest.json")),
                                       AllOf(HasSubstr(".step-00000012"), HasSubstr("not finished"))));
}

}  // namespace
}  // namespace spillway::checkpoint
