// Evaluation data: every target once, over one rank or several, and the same number of batches for all of them.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/eval_windows.h"
#include "data/token_data.h"
#include "spillway/error.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::TestFolder;

TokenData data_of(const TestFolder& folder, const std::string& name, const std::string& content, std::int64_t vocabulary) {
  const std::string path = folder.path() + "/" + name;
  std::ofstream(path, std::ios::binary) << content;
  return TokenData({path}, vocabulary);
}

TokenData text(const TestFolder& folder, const std::string& content) { return data_of(folder, "eval.txt", content, 256); }

// Token i is i, in nanoGPT's format.
TokenData counting(const TestFolder& folder, std::int64_t size) {
  std::string bytes;
  for (std::int64_t i = 0; i < size; ++i) {
    bytes += static_cast<char>(i & 0xff);
    bytes += static_cast<char>(i >> 8);
  }
  return data_of(folder, "eval.bin", bytes, 65536);
}

TEST(EvalWindows, MakesEveryTokenATargetOnceAndPadsTheRest) {
  const TestFolder folder;
  const TokenData data = text(folder, "abcdefg");
  EvalWindows windows(data, 4);
  EXPECT_EQ(windows.windows(), 2);
  EXPECT_EQ(windows.num_targets(), 6);
  std::vector<std::int32_t> tokens(4), targets(4);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(windows.next(1, tokens, targets), 4);
    EXPECT_THAT(tokens, ElementsAre('a', 'b', 'c', 'd'));
    EXPECT_THAT(targets, ElementsAre('b', 'c', 'd', 'e'));
    EXPECT_EQ(windows.next(1, tokens, targets), 2);
    EXPECT_THAT(tokens, ElementsAre('e', 'f', 0, 0));
    EXPECT_THAT(targets, ElementsAre('f', 'g', -1, -1));
    EXPECT_EQ(windows.next(1, tokens, targets), 0);
    EXPECT_THAT(targets, Each(-1));
    windows.rewind();
  }
}

TEST(EvalWindows, PadsABatchThatReachesBehindTheEnd) {
  const TestFolder folder;
  const TokenData data = text(folder, "abcd");
  EvalWindows windows(data, 2);
  std::vector<std::int32_t> tokens(6), targets(6);
  EXPECT_EQ(windows.next(3, tokens, targets), 3);
  EXPECT_THAT(tokens, ElementsAre('a', 'b', 'c', 0, 0, 0));
  EXPECT_THAT(targets, ElementsAre('b', 'c', 'd', -1, -1, -1));
}

TEST(EvalWindows, RanksHaveEqualNumbersOfBatchesAndTogetherEveryTargetOnce) {
  constexpr std::int64_t time = 3;
  const TestFolder folder;
  for (std::int64_t size = 2; size <= 40; ++size) {  // fewer windows than ranks, uneven, even
    const TokenData data = counting(folder, size);
    for (std::int64_t world_size = 1; world_size <= 5; ++world_size) {
      for (std::int64_t batch = 1; batch <= 3; ++batch) {
        std::vector<std::int32_t> seen;
        const std::int64_t windows = (size - 1 + time - 1) / time;
        const std::int64_t batches = (windows + batch * world_size - 1) / (batch * world_size);
        for (std::int64_t rank = 0; rank < world_size; ++rank) {
          EvalWindows mine(data, time, rank, world_size);
          EXPECT_EQ(mine.windows(), windows);
          std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch * time), -7), targets(tokens.size(), -7);
          std::int64_t taken = 0;
          for (; !mine.at_end(); ++taken) {
            const std::int64_t real = mine.next(batch, tokens, targets);
            ASSERT_EQ(std::ranges::count_if(targets, [](std::int32_t t) { return t >= 0; }), real);
            for (std::size_t i = 0; i < tokens.size(); ++i) {
              const bool padding = static_cast<std::int64_t>(i) >= real;
              ASSERT_EQ(targets[i], padding ? -1 : tokens[i] + 1);
              if (padding) {
                ASSERT_EQ(tokens[i], 0);
              } else {
                seen.push_back(targets[i]);
              }
            }
          }
          ASSERT_EQ(taken, batches) << size << " tokens, rank " << rank << " of " << world_size;
          EXPECT_EQ(mine.next(batch, tokens, targets), 0) << "behind the end there is only padding";
          EXPECT_THAT(targets, Each(-1));
        }
        std::ranges::sort(seen);
        ASSERT_EQ(seen.size(), static_cast<std::size_t>(size - 1));
        for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], static_cast<std::int32_t>(i + 1));
      }
    }
  }
}

// So an evaluation that stops early has seen the front of the data, whatever the number of ranks.
TEST(EvalWindows, RanksTakeBatchesInTurnFromTheFront) {
  const TestFolder folder;
  const TokenData data = counting(folder, 21);
  EvalWindows first(data, 2, 0, 2), second(data, 2, 1, 2);
  std::vector<std::int32_t> tokens(4), targets(4);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(first.next(2, tokens, targets), 4);
    EXPECT_THAT(tokens, ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(second.next(2, tokens, targets), 4);
    EXPECT_THAT(tokens, ElementsAre(4, 5, 6, 7));
    EXPECT_EQ(first.next(2, tokens, targets), 4);
    EXPECT_THAT(tokens, ElementsAre(8, 9, 10, 11));
    first.rewind();
    second.rewind();
  }
}

TEST(EvalWindows, RefusesASingleToken) {
  const TestFolder folder;
  const TokenData data = text(folder, "a");
  EXPECT_THROW(EvalWindows(data, 4), DataError);
}

}  // namespace
}  // namespace spillway
