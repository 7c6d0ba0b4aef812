#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <set>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/eval_windows.h"
#include "data/permutation.h"
#include "data/sampler.h"
#include "data/token_data.h"
#include "spillway/error.h"

namespace {

std::atomic<std::int64_t> allocations{0};

}  // namespace

// Every allocation of this executable is counted. Not inlined: g++ 12 would take malloc for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kBytes = 256;  // vocabulary of byte text
constexpr std::int64_t kGpt2 = 50257;

// A folder of this test alone, removed with it.
class Folder {
 public:
  Folder() {
    std::string pattern = ::testing::TempDir() + "spillway-data-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string at(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(at(name), std::ios::binary) << content;
    return at(name);
  }

 private:
  std::string path_;
};

std::string uint16_bytes(const std::vector<std::uint16_t>& tokens) {
  std::string bytes;
  for (const std::uint16_t token : tokens) {
    bytes += static_cast<char>(token & 0xff);
    bytes += static_cast<char>(token >> 8);
  }
  return bytes;
}

std::string llmc_header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::string header;
  for (const std::int32_t word : {magic, version, count}) {
    for (int byte = 0; byte < 4; ++byte)
      header += static_cast<char>(static_cast<std::uint32_t>(word) >> (8 * byte) & 0xff);
  }
  header.resize(1024);
  return header;
}

std::vector<std::int32_t> all_tokens(const TokenData& data) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(data.size()));
  data.read(0, tokens);
  return tokens;
}

// Text whose every window is recognised by its first token: token i is i.
std::string counting_tokens(std::int64_t n) {
  std::vector<std::uint16_t> tokens(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i);
  return uint16_bytes(tokens);
}

std::string error_of(const std::string& path, std::int64_t vocabulary) {
  try {
    TokenFile file(path, vocabulary);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TokenFile, ReadsBytesOfText) {
  const Folder folder;
  const TokenData data({folder.write("a.txt", "Ab\xc3\xa9\n")}, kBytes);
  EXPECT_THAT(all_tokens(data), ElementsAre('A', 'b', 0xc3, 0xa9, '\n'));
}

TEST(TokenFile, ReadsNanoGptTokens) {
  const Folder folder;
  const TokenData data({folder.write("a.bin", uint16_bytes({0, 255, 256, 50256}))}, kGpt2);
  EXPECT_THAT(all_tokens(data), ElementsAre(0, 255, 256, 50256));
}

TEST(TokenFile, ReadsLlmcTokensBehindTheirHeader) {
  const Folder folder;
  const TokenData data({folder.write("a.bin", llmc_header(20240520, 1, 3) + uint16_bytes({50256, 1, 2}))},
                       kGpt2);
  EXPECT_THAT(all_tokens(data), ElementsAre(50256, 1, 2));
}

TEST(TokenFile, AcceptsEveryUint16WhenTheVocabularyHoldsThemAll) {
  const Folder folder;
  EXPECT_EQ(TokenFile(folder.write("a.bin", uint16_bytes({65535})), 65536).size(), 1);
}

TEST(TokenFile, NamesWhatIsWrongWithThePath) {
  const Folder folder;
  const std::string missing = folder.at("missing.txt"), fifo = folder.at("fifo"), loop = folder.at("loop");
  EXPECT_THAT(error_of(missing, kBytes), AllOf(HasSubstr(missing), HasSubstr("No such file")));
  EXPECT_THAT(error_of(folder.at(""), kBytes), HasSubstr("is a directory"));
  EXPECT_THAT(error_of(folder.write("empty.txt", ""), kBytes), HasSubstr("the file is empty"));
  EXPECT_THAT(error_of(folder.write("empty.bin", ""), kGpt2), HasSubstr("the file is empty"));
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(error_of(fifo, kBytes), HasSubstr("not a regular file"));
  std::filesystem::create_symlink(loop, loop);
  EXPECT_THAT(error_of(loop, kBytes), HasSubstr("symbolic links"));
  EXPECT_THROW(TokenData({}, kBytes), DataError);
}

TEST(TokenFile, RefusesAFileItMayNotRead) {
  const Folder folder;
  const std::string path = folder.write("secret.txt", "text");
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  ASSERT_EQ(::chmod(folder.at("").c_str(), 0755), 0);
  // Root may read everything, so the child gives its privilege up.
  EXPECT_EXIT(
      {
        constexpr ::uid_t nobody = 65534;
        if (::geteuid() == 0 && ::seteuid(nobody) != 0) std::_Exit(2);
        std::_Exit(error_of(path, kBytes).find("Permission denied") != std::string::npos ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(TokenFile, RefusesBinaryContentAsText) {
  const Folder folder;
  const std::string nul = std::string("some text") + '\0' + "more";
  EXPECT_THAT(error_of(folder.write("a",
                                    "\x7f"
                                    "ELF\x02\x01"),
                       kBytes),
              HasSubstr("ELF"));
  EXPECT_THAT(error_of(folder.write("b", "\x1f\x8b\x08"), kBytes),
              AllOf(HasSubstr("gzip"), HasSubstr("unpack")));
  EXPECT_THAT(error_of(folder.write("c", "\xff\xfeh"), kBytes), HasSubstr("UTF-8"));
  EXPECT_THAT(error_of(folder.write("d", nul), kBytes),
              AllOf(HasSubstr("NUL byte at offset 9"), HasSubstr(".bin")));
  EXPECT_THAT(error_of(folder.write("e", llmc_header(20240520, 1, 0)), kBytes), HasSubstr("ends in .bin"));
}

TEST(TokenFile, NamesBothSizesOfATruncatedFile) {
  const Folder folder;
  const std::string whole = llmc_header(20240520, 1, 1000) + uint16_bytes(std::vector<std::uint16_t>(1000, 7));
  EXPECT_EQ(error_of(folder.write("whole.bin", whole), kGpt2), "no error");
  EXPECT_THAT(
      error_of(folder.write("short.bin", whole.substr(0, 3023)), kGpt2),
      AllOf(HasSubstr("short.bin"), HasSubstr("1000 tokens"), HasSubstr("3024 bytes"), HasSubstr("has 3023")));
  EXPECT_THAT(error_of(folder.write("head.bin", whole.substr(0, 100)), kGpt2),
              AllOf(HasSubstr("1024"), HasSubstr("has 100")));
  EXPECT_THAT(error_of(folder.write("long.bin", whole + "xx"), kGpt2),
              AllOf(HasSubstr("3024"), HasSubstr("has 3026")));
  EXPECT_THAT(error_of(folder.write("odd.bin", "abc"), kGpt2),
              AllOf(HasSubstr("3 bytes"), HasSubstr("uint16")));
}

TEST(TokenFile, RefusesOtherLlmcFormats) {
  const Folder folder;
  EXPECT_THAT(error_of(folder.write("v2.bin", llmc_header(20240520, 2, 1) + "xx"), kGpt2),
              HasSubstr("version 2"));
  EXPECT_THAT(error_of(folder.write("none.bin", llmc_header(20240520, 1, -1)), kGpt2), HasSubstr("-1 tokens"));
  EXPECT_THAT(error_of(folder.write("llama.bin", llmc_header(20240801, 7, 1) + "xxxx"), kGpt2),
              HasSubstr("uint32"));
}

TEST(TokenFile, NamesTheFirstTokenBeyondTheVocabulary) {
  const Folder folder;
  std::vector<std::uint16_t> tokens(3'000'000, 1);  // several parallel pieces
  tokens[2'500'000] = 60000;
  tokens[1'234'567] = 50257;
  tokens[1'234'568] = 50258;
  const std::string content = uint16_bytes(tokens);
  EXPECT_THAT(error_of(folder.write("a.bin", content), kGpt2),
              AllOf(HasSubstr("a.bin"), HasSubstr("token 50257 at offset 1234567 (byte 2469134)"),
                    HasSubstr("vocabulary of 50257")));
  EXPECT_THAT(error_of(folder.write("b.bin", llmc_header(20240520, 1, 3'000'000) + content), kGpt2),
              HasSubstr("offset 1234567 (byte 2470158)"));
  EXPECT_THAT(error_of(folder.write("c.txt",
                                    "ab\x80"
                                    "c"),
                       128),
              HasSubstr("token 128 at offset 2 (byte 2)"));
}

TEST(TokenData, ReadsAcrossFilesAsIfTheyWereOne) {
  const Folder folder;
  const std::string text = "In the beginning was the word.";
  const TokenData whole({folder.write("all", text)}, kBytes);
  const TokenData parts({folder.write("p0", text.substr(0, 1)), folder.write("p1", text.substr(1, 12)),
                         folder.write("p2", text.substr(13, 2)), folder.write("p3", text.substr(15))},
                        kBytes);
  ASSERT_EQ(parts.size(), whole.size());
  for (std::int64_t first = 0; first < whole.size(); ++first) {
    for (std::int64_t n = 0; n <= whole.size() - first; ++n) {
      std::vector<std::int32_t> expected(static_cast<std::size_t>(n)), actual(expected.size(), -7);
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = text[static_cast<std::size_t>(first) + i];
      parts.read(first, actual);
      ASSERT_EQ(actual, expected) << first << " " << n;
    }
  }
}

TEST(Permutation, IsOneForEverySize) {
  for (std::int64_t size = 1; size <= 1030; ++size) {
    const Permutation order(size, 17);
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t image = order(i);
      ASSERT_TRUE(image >= 0 && image < size);
      ASSERT_FALSE(seen[static_cast<std::size_t>(image)]) << size;
      seen[static_cast<std::size_t>(image)] = true;
    }
  }
}

TEST(Permutation, SendsEachIndexEverywhereAboutEquallyOften) {
  // Chi-square with (n-1)^2 = 100 degrees of freedom for a doubly constrained n x n table: mean 100,
  // deviation sqrt(200); the bound is six deviations. The keys are fixed, so it holds always or never.
  constexpr std::int64_t size = 11, keys = 11000;
  std::vector<int> counts(size * size);
  for (std::uint64_t key = 0; key < keys; ++key) {
    const Permutation order(size, mix_bits(key));
    for (std::int64_t i = 0; i < size; ++i) ++counts[static_cast<std::size_t>(i * size + order(i))];
  }
  double chi_square = 0.0;
  for (const int count : counts) chi_square += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_square, 185.0);
  EXPECT_GT(chi_square, 15.0);
}

// The first tokens of a rank's next `samples` samples; checks that each is a window and its shift by one.
std::vector<std::int32_t> take(Sampler& sampler, std::int64_t samples, std::int64_t time,
                               std::int64_t batch = 1) {
  std::vector<std::int32_t> starts;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch * time)), targets(tokens.size());
  for (std::int64_t taken = 0; taken < samples; taken += batch) {
    sampler.next(batch, tokens, targets);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto column = i % static_cast<std::size_t>(time);
      if (column == 0) starts.push_back(tokens[i]);
      EXPECT_EQ(tokens[i], starts.back() + static_cast<std::int32_t>(column));
      EXPECT_EQ(targets[i], tokens[i] + 1);
    }
  }
  return starts;
}

class SamplerTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kTime = 8;
  static constexpr std::int64_t kTokens = 1003;

  Folder folder_;
  TokenData data_{{folder_.write("train.bin", counting_tokens(kTokens))}, 65536};
  SamplerOptions options_{.time = kTime, .global_batch = 1, .seed = 42};
};

TEST_F(SamplerTest, VisitsEveryWindowOncePerEpochInANewOrderAndPhase) {
  Sampler sampler(data_, options_);
  std::set<std::int32_t> phases;
  std::set<std::vector<std::int32_t>> orders;
  for (std::int64_t epoch = 0; epoch < 40; ++epoch) {
    ASSERT_EQ(sampler.cursor(), (SampleCursor{epoch, 0}));
    const std::int64_t windows = sampler.windows(epoch);
    std::vector<std::int32_t> starts = take(sampler, windows, kTime);
    orders.insert(starts);
    std::ranges::sort(starts);
    const std::int32_t phase = starts.front();
    phases.insert(phase);
    for (std::size_t i = 0; i < starts.size(); ++i)
      ASSERT_EQ(starts[i], phase + static_cast<std::int32_t>(i) * kTime);
    EXPECT_LT(phase, kTime);
    EXPECT_LT(kTokens - 1 - (starts.back() + kTime), kTime) << "no room for another window";
  }
  EXPECT_EQ(phases.size(), static_cast<std::size_t>(kTime)) << "40 epochs reach all 8 phases";
  EXPECT_EQ(orders.size(), 40u);
}

TEST_F(SamplerTest, DependsOnTheSeedAlone) {
  Sampler a(data_, options_), b(data_, options_);
  options_.seed = 43;
  Sampler c(data_, options_);
  const auto order = take(a, 300, kTime);
  EXPECT_EQ(take(b, 300, kTime), order);
  EXPECT_NE(take(c, 300, kTime), order);
}

TEST_F(SamplerTest, StepsSeeTheSameSamplesForEveryWorldSizeAndMicroBatch) {
  constexpr std::int64_t global_batch = 60, steps = 8;  // crosses the end of an epoch in the middle of a step
  options_.global_batch = global_batch;
  std::vector<std::int32_t> expected;
  std::vector<SampleCursor> cursors;  // after each step
  Sampler alone(data_, options_);
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto batch = take(alone, global_batch, kTime);
    expected.insert(expected.end(), batch.begin(), batch.end());
    cursors.push_back(alone.cursor());
  }
  EXPECT_GE(alone.cursor().epoch, 3);
  for (std::int64_t world_size = 1; world_size <= 6; ++world_size) {
    const std::int64_t slice = global_batch / world_size;
    for (std::int64_t micro_batch = 1; micro_batch <= slice; ++micro_batch) {
      if (slice % micro_batch != 0) continue;
      std::vector<std::int32_t> merged(expected.size());
      for (std::int64_t rank = 0; rank < world_size; ++rank) {
        options_.world_size = world_size;
        options_.rank = rank;
        Sampler sampler(data_, options_);
        for (std::int64_t step = 0; step < steps; ++step) {
          const auto part = take(sampler, slice, kTime, micro_batch);
          std::ranges::copy(part, merged.begin() + step * global_batch + rank * slice);
          EXPECT_EQ(sampler.cursor(), cursors[static_cast<std::size_t>(step)]) << "rank " << rank << " of " << world_size;
        }
      }
      EXPECT_EQ(merged, expected) << world_size << " ranks, micro-batch " << micro_batch;
    }
  }
}

TEST_F(SamplerTest, ContinuesFromASavedCursor) {
  options_.global_batch = 10;
  Sampler whole(data_, options_);
  take(whole, 130, kTime);  // 124 or 125 samples are an epoch
  const SampleCursor saved = whole.cursor();
  EXPECT_EQ(saved.epoch, 1);
  Sampler resumed(data_, options_, saved);
  EXPECT_EQ(take(resumed, 200, kTime), take(whole, 200, kTime));
}

TEST_F(SamplerTest, CursorMovesOnlyWhenTheStepIsComplete) {
  options_.global_batch = 4;
  Sampler sampler(data_, options_);
  take(sampler, 3, kTime);
  EXPECT_EQ(sampler.cursor(), (SampleCursor{0, 0}));
  take(sampler, 1, kTime);
  EXPECT_EQ(sampler.cursor(), (SampleCursor{0, 4}));
}

TEST_F(SamplerTest, AllocatesNothing) {
  Sampler sampler(data_, options_);
  EvalWindows windows(data_, kTime);
  std::vector<std::int32_t> tokens(4 * kTime), targets(tokens.size());
  const std::int64_t before = allocations;
  for (int step = 0; step < 100; ++step) {  // into the next epochs
    sampler.next(4, tokens, targets);
    windows.next(4, tokens, targets);
  }
  EXPECT_EQ(allocations, before);
  EXPECT_GT(before, 0);
}

TEST_F(SamplerTest, WrapsDataSmallerThanOneBatch) {
  const TokenData tiny({folder_.write("tiny.bin", counting_tokens(kTime + 1))}, 65536);
  options_.global_batch = 5;
  Sampler sampler(tiny, options_);
  EXPECT_THAT(take(sampler, 5, kTime), Each(0));
  EXPECT_EQ(sampler.cursor(), (SampleCursor{5, 0}));
}

TEST_F(SamplerTest, RefusesDataShorterThanOneSample) {
  const TokenData tiny({folder_.write("tiny.bin", counting_tokens(kTime))}, 65536);
  try {
    Sampler sampler(tiny, options_);
    FAIL() << "accepted";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("tiny.bin"), HasSubstr("8 tokens"), HasSubstr("sample of 9")));
  }
}

TEST_F(SamplerTest, RefusesACursorOfOtherData) {
  EXPECT_THROW(Sampler(data_, options_, SampleCursor{0, 1000}), DataError);
  EXPECT_THROW(Sampler(data_, options_, SampleCursor{-1, 0}), DataError);
  EXPECT_THROW(Sampler(data_, options_, SampleCursor{0, -1}), DataError);
}

}  // namespace
}  // namespace spillway
