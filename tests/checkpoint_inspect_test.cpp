// What is said of a checkpoint, what verification finds in it, and how two of them differ.
#include <algorithm>
#include <cmath>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/hash.h"
#include "checkpoint/inspect.h"
#include "support/io_error.h"
#include "support/saved_run.h"
#include "support/state_formats.h"
#include "support/test_folder.h"

namespace spillway::checkpoint {
namespace {

using namespace spillway::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CheckpointInspect : public ::testing::Test {
 protected:
  std::string save(const MadeUpModel& model, std::int64_t step, int world = 1) const {
    const SaveResult result = save_once(root_.path() + "/" + std::to_string(saves_++), model, step, {.world = world});
    EXPECT_EQ(result.error, "");
    return result.folder;
  }
  const TestFolder root_;
  const MadeUpModel model_ = tiny_gpt2("wpe");
  mutable int saves_ = 0;
};

TEST_F(CheckpointInspect, SaysWhatIsInside) {
  const Reader reader(save(model_, 12, 3));
  EXPECT_THAT(describe(reader),
              AllOf(HasSubstr("test: 2 blocks, 12 channels, 3 heads, vocabulary 51, context 16\n"),
                    HasSubstr("4.6 K in 28 tensors (192 frozen), weights in bf16\n"), HasSubstr("12 (11 applied, 1 skipped)\n"),
                    HasSubstr("spillway test, 4 ranks, ZeRO stage 3\n"), HasSubstr("8 samples of 16 tokens a step"), HasSubstr("in 3 files, "),
                    HasSubstr(hex64(reader.manifest().state_hash)), HasSubstr("wte.weight"), HasSubstr("51 x 12"),
                    HasSubstr("weight (bf16), frozen\n"), HasSubstr("master, moments (fp32)\n")));
}

TEST_F(CheckpointInspect, VerificationReadsEveryByteAndFindsEveryFlippedPiece) {
  const std::string folder = save(model_, 1, 2);
  std::int64_t data_bytes = 0;
  for (const TensorInfo& tensor : model_.tensors) data_bytes += tensor.num_elements() * (tensor.frozen ? 2 : 12);
  {
    Reader reader(folder);
    const Verification sound = verify(reader);
    EXPECT_THAT(sound.problems, IsEmpty());
    EXPECT_EQ(sound.bytes, data_bytes);
  }
  for (const int rank : {1, 2}) {
    const std::string path = folder + "/state-0000" + std::to_string(rank) + "-of-00002.safetensors";
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }
  Reader reader(folder);
  EXPECT_THAT(verify(reader).problems, ElementsAre(HasSubstr("checksum"), HasSubstr("checksum")));
}

TEST_F(CheckpointInspect, VerificationFindsATensorWhoseHashIsNotThatOfItsPieces) {
  // A manifest that contradicts its pieces, though its own checksum and state hash fit: as a writer's mistake would make it.
  const std::string folder = save(model_, 1);
  Manifest manifest = Reader(folder).manifest();
  manifest.tensors[3].hashes[0] += 1;
  manifest.state_hash = state_hash_of(manifest.tensors, manifest.run.applied_steps);
  std::ofstream(folder + "/manifest.json") << to_json(manifest);
  Reader reader(folder);
  EXPECT_THAT(verify(reader).problems, ElementsAre(HasSubstr("the hash of '" + manifest.tensors[3].name + "' is not")));
}

TEST_F(CheckpointInspect, TheSameStateWrittenByAnotherWorldIsEqual) {
  Reader first(save(model_, 5, 1)), second(save(model_, 5, 4));
  const CheckpointDifference difference = compare(first, second);
  EXPECT_TRUE(difference.equal());
  EXPECT_EQ(to_text(difference), "28 tensors are equal, 0 differ\n");
}

TEST_F(CheckpointInspect, DifferencesAreNamedByFieldTensorAndSection) {
  MadeUpModel other = model_;
  other.seed = 2;
  Reader first(save(model_, 5)), second(save(other, 6, 2));
  const CheckpointDifference difference = compare(first, second);
  EXPECT_FALSE(difference.equal());
  EXPECT_EQ(difference.equal_tensors, 0);
  const std::string text = to_text(difference);
  EXPECT_THAT(text, AllOf(HasSubstr("step: 5 | 6\n"), HasSubstr("applied steps: 4 | 5\n"), HasSubstr("0 tensors are equal, 28 differ\n")));
  // Counted here from the values themselves.
  for (const StateSection section : {StateSection::master, StateSection::exp_avg_sq}) {
    double largest = 0;
    for (std::int64_t i = 0; i < 51 * 12; ++i) {
      largest = std::max(largest, std::abs(double{model_.value("wte.weight", section, i)} - double{other.value("wte.weight", section, i)}));
    }
    const auto& sections = difference.tensors[0].sections;
    const auto found = std::ranges::find(sections, section, &SectionDifference::section);
    ASSERT_NE(found, sections.end());
    EXPECT_EQ(found->differing, 51 * 12);
    EXPECT_EQ(found->largest, largest);
  }
}

TEST_F(CheckpointInspect, ATensorThatOneOfThemFrozeIsComparedByItsWeight) {
  MadeUpModel trained = tiny_gpt2();
  Reader first(save(model_, 5)), second(save(trained, 5));
  const CheckpointDifference difference = compare(first, second);
  ASSERT_EQ(difference.tensors.size(), 1u);
  EXPECT_EQ(difference.tensors[0].name, "wpe.weight");
  ASSERT_EQ(difference.tensors[0].sections.size(), 1u);
  EXPECT_EQ(difference.tensors[0].sections[0].section, StateSection::weight);
}

TEST_F(CheckpointInspect, OtherModelsAreComparedWhereTheyCanBe) {
  MadeUpModel other = model_;
  other.spec.vocabulary = 52;
  other.tensors[0].shape = {52, 12};
  other.tensors[1].name = "renamed";
  Reader first(save(model_, 5)), second(save(other, 5));
  const CheckpointDifference difference = compare(first, second);
  EXPECT_EQ(difference.equal_tensors, 26);
  EXPECT_THAT(to_text(difference), AllOf(HasSubstr("vocabulary: 51 | 52\n"), HasSubstr("wte.weight has shape (51, 12) in one and (52, 12) in the other"),
                                         HasSubstr("wpe.weight is in the first only\n"), HasSubstr("renamed is in the second only\n")));
}

// Values come back bit by bit, whoever wrote them; the sizes are those of the values.
TEST_F(CheckpointInspect, StatesOfEveryOptimizerAndFormatAreKept) {
  for (const StateFormat& format : all_state_formats()) {
    SCOPED_TRACE(text_of(format));
    MadeUpModel model = tiny_gpt2("wpe");
    model.state = format;
    const std::string folder = save(model, 5, 1), by_three = save(model, 5, 3);
    Reader reader(folder), others(by_three);
    EXPECT_EQ(reader.manifest().state, format);
    EXPECT_EQ(wrong_values(reader, model, 100), 0);
    EXPECT_EQ(wrong_values(others, model, 1000), 0);
    EXPECT_EQ(reader.manifest().state_hash, others.manifest().state_hash);
    EXPECT_TRUE(compare(reader, others).equal());
    std::int64_t expected = 0;
    for (const TensorInfo& tensor : model.tensors) {
      const std::int64_t moment = format.moments == MomentFormat::bf16 ? 2 : 4;
      expected += tensor.num_elements() * (tensor.frozen ? 2 : 4 + format.num_moments() * moment);
    }
    const Verification verification = verify(reader);
    EXPECT_TRUE(verification.ok());
    EXPECT_EQ(verification.bytes, expected);
    EXPECT_THAT(describe(reader), HasSubstr("optimizer   " + text_of(format) + "\n"));
  }
}

TEST_F(CheckpointInspect, StatesOfDifferentOptimizersAreComparedWhereTheyCanBe) {
  MadeUpModel lion = model_, rounded = model_;
  lion.state = {OptimizerKind::lion, MomentFormat::f32};
  rounded.state = {OptimizerKind::adam, MomentFormat::bf16};
  Reader adam(save(model_, 5)), of_lion(save(lion, 5)), of_rounded(save(rounded, 5));
  const CheckpointDifference difference = compare(adam, of_lion);
  EXPECT_TRUE(difference.tensors.empty()) << "master and exp_avg are the same";
  EXPECT_THAT(to_text(difference), HasSubstr("optimizer: adam with fp32 moments | lion with fp32 moments\n"));
  EXPECT_THAT(to_text(compare(of_lion, adam)), HasSubstr("optimizer: lion with fp32 moments | adam with fp32 moments\n"));
  EXPECT_THAT(to_text(compare(adam, of_rounded)),
              AllOf(HasSubstr("adam with fp32 moments | adam with bf16 moments\n"), HasSubstr("wte.weight exp_avg: "), Not(HasSubstr("master"))));
}

TEST_F(CheckpointInspect, AnotherOptimizerOrFormatIsRefusedBothNamed) {
  Reader reader(save(model_, 5));
  reader.check_optimizer({});
  EXPECT_THAT(io_error_of([&] { reader.check_optimizer({OptimizerKind::lion, MomentFormat::bf16}); }),
              AllOf(HasSubstr(reader.folder()), HasSubstr("its state is that of adam with fp32 moments, this run's would be that of lion with bf16 moments"),
                    HasSubstr("set optimizer.type and spillway.moments")));
  EXPECT_THAT(io_error_of([&] { reader.check_optimizer({OptimizerKind::adam, MomentFormat::block8}); }), HasSubstr("adam with 8bit moments"));
  std::vector<float> value(1);
  EXPECT_THAT(io_error_of([&] { reader.read("wte.weight", StateSection::sum, 0, value); }),
              AllOf(HasSubstr("read the sum of 'wte.weight'"), HasSubstr("adam with fp32 moments, which has none")));
}

}  // namespace
}  // namespace spillway::checkpoint
