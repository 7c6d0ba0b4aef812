// What a configuration says about several ranks: batch sizes, buckets, groups.
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/batch_triangle.h"
#include "spillway/config.h"
#include "spillway/error.h"
#include "support/config_text.h"

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::error_of;
using testing::parse;

constexpr ConfigContext kFourRanks = {.world_size = 4, .total_steps = 0};

TEST(BatchTriangle, CompletesEveryConsistentSubsetOfTheThreeSizes) {
  for (std::int64_t world = 1; world <= 4; ++world) {
    for (std::int64_t micro = 1; micro <= 6; ++micro) {
      for (std::int64_t accumulation = 1; accumulation <= 6; ++accumulation) {
        const config::BatchSizes full{micro * accumulation * world, micro, accumulation};
        const config::BatchSizes pairs[] = {
            full, {full.train, micro, {}}, {full.train, {}, accumulation}, {{}, micro, accumulation}};
        for (config::BatchSizes given : pairs) {
          EXPECT_EQ(config::complete(given, world), "");
          EXPECT_EQ(given, full);
        }
        config::BatchSizes train_only{full.train, {}, {}};
        EXPECT_EQ(config::complete(train_only, world), "");
        EXPECT_EQ(train_only, (config::BatchSizes{full.train, micro * accumulation, 1}));
        config::BatchSizes micro_only{{}, micro, {}};
        EXPECT_EQ(config::complete(micro_only, world), "");
        EXPECT_EQ(micro_only, (config::BatchSizes{micro * world, micro, 1}));
      }
    }
  }
}

// The two-rank cases of DeepSpeed's tests/unit/runtime/test_ds_config_dict.py: (train, micro, accumulation).
TEST(BatchTriangle, AcceptsAndRefusesAsDeepSpeedDoes) {
  config::BatchSizes sizes{32, 16, 1};
  EXPECT_EQ(config::complete(sizes, 2), "");
  sizes = {32, 8, 2};
  EXPECT_EQ(config::complete(sizes, 2), "");
  sizes = {33, 17, 2};
  EXPECT_NE(config::complete(sizes, 2), "");
  sizes = {32, 18, 1};
  EXPECT_NE(config::complete(sizes, 2), "");
}

TEST(BatchTriangle, ExplainsAllFourNumbersAndOffersChangesThatFit) {
  EXPECT_EQ(error_of(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4})",
                     kFourRanks),
            "ds.json:1: train_batch_size: train_batch_size 32 is not train_micro_batch_size_per_gpu 4 x "
            "gradient_accumulation_steps 4 x 4 ranks = 64; any one of these fits: train_batch_size 64, or "
            "train_micro_batch_size_per_gpu 2, or gradient_accumulation_steps 2, or 2 ranks");
  EXPECT_THAT(error_of(R"({"train_batch_size": 10, "gradient_accumulation_steps": 4})", kFourRanks),
              AllOf(HasSubstr("train_batch_size 10 is not"), HasSubstr("(any)"), HasSubstr("fits: train_batch_size 16")));
  EXPECT_THAT(error_of(R"({"train_micro_batch_size_per_gpu": 2147483647, "gradient_accumulation_steps": 2147483647})",
                       kFourRanks), HasSubstr("more than 2^63"));
}

// A change that an error offers: "<key> <number>", or "<number> ranks".
struct Fix {
  std::string key;
  std::int64_t number = 0;
};

std::vector<Fix> fixes_in(const std::string& error) {
  std::vector<Fix> fixes;
  const std::string separator = ", or ";
  std::string text = error.substr(error.find("fits: ") + 6) + separator;
  while (!text.empty()) {
    const std::string change = text.substr(0, text.find(separator));
    text.erase(0, change.size() + separator.size());
    const std::size_t space = change.find(' ');
    const std::string first = change.substr(0, space), second = change.substr(space + 1);
    if (second.starts_with("rank")) {
      fixes.push_back({"ranks", std::stoll(first)});
    } else {
      fixes.push_back({first, std::stoll(second)});
    }
  }
  return fixes;
}

TEST(BatchTriangle, EveryChangeThatAnErrorOffersIsOneThatFits) {
  int refused = 0;
  for (std::int64_t world = 1; world <= 9; ++world) {
    for (std::int64_t train = 1; train <= 40; ++train) {
      for (std::int64_t micro = 0; micro <= 5; ++micro) {           // 0: not given
        for (std::int64_t accumulation = 0; accumulation <= 5; ++accumulation) {
          const config::BatchSizes given{train, micro > 0 ? std::optional(micro) : std::nullopt,
                                         accumulation > 0 ? std::optional(accumulation) : std::nullopt};
          config::BatchSizes sizes = given;
          const std::string error = config::complete(sizes, world);
          if (error.empty()) continue;
          ++refused;
          ASSERT_THAT(error, AllOf(HasSubstr("train_batch_size " + std::to_string(train)),
                                   HasSubstr(micro > 0 ? "per_gpu " + std::to_string(micro) : "per_gpu (any)"),
                                   HasSubstr(accumulation > 0 ? "steps " + std::to_string(accumulation) : "steps (any)"),
                                   HasSubstr(config::ranks(world))));
          const std::vector<Fix> fixes = fixes_in(error);
          ASSERT_FALSE(fixes.empty()) << error;
          for (const Fix& fix : fixes) {
            config::BatchSizes fixed = given;
            if (fix.key == "train_batch_size") fixed.train = fix.number;
            if (fix.key == "train_micro_batch_size_per_gpu") fixed.micro = fix.number;
            if (fix.key == "gradient_accumulation_steps") fixed.accumulation = fix.number;
            ASSERT_EQ(config::complete(fixed, fix.key == "ranks" ? fix.number : world), "") << error;
          }
        }
      }
    }
  }
  EXPECT_GT(refused, 5000);
}

TEST(Ranks, KeysHaveDeepSpeedsDefaultsAndBothTheirNames) {
  const Config defaults = parse("{}");
  EXPECT_EQ(defaults.reduce_bucket_size, 500000000);
  EXPECT_EQ(defaults.allgather_bucket_size, 500000000);
  EXPECT_EQ(defaults.prefetch_bucket_size, 50000000);
  EXPECT_EQ(defaults.max_reuse_distance, 1000000000);
  EXPECT_EQ(defaults.hpz_partition_size, 1);
  EXPECT_TRUE(defaults.overlap_comm);
  for (const std::string prefix : {"", "stage3_"}) {
    const Config config = parse(R"({"zero_optimization": {"reduce_bucket_size": 1048576, "allgather_bucket_size": 5e7, ")" +
                                prefix + R"(prefetch_bucket_size": 943718.4, ")" + prefix +
                                R"(max_reuse_distance": "2Mi", "overlap_comm": false}})");
    EXPECT_EQ(config.reduce_bucket_size, 1048576);
    EXPECT_EQ(config.allgather_bucket_size, 50000000);
    EXPECT_EQ(config.prefetch_bucket_size, 943718) << "0.9 hidden^2, as Transformers writes it";
    EXPECT_EQ(config.max_reuse_distance, 2097152);
    EXPECT_FALSE(config.overlap_comm);
  }
  EXPECT_TRUE(parse(R"({"zero_optimization": {"stage": 1, "overlap_comm": null}})").overlap_comm);
}

TEST(Ranks, ABucketOfZeroHasNoBoundAndNoBoundOverflows) {
  for (const std::string size : {"0", "1e19", "9223372036854775807"}) {
    const Config config = parse(R"({"zero_optimization": {"reduce_bucket_size": )" + size +
                                R"(, "allgather_bucket_size": )" + size + "}}");
    EXPECT_GE(config.reduce_bucket_size, std::int64_t{1} << 60) << size;
    EXPECT_LE(config.reduce_bucket_size, std::numeric_limits<std::int64_t>::max() / 4) << "its bytes can be counted";
    EXPECT_EQ(config.allgather_bucket_size, config.reduce_bucket_size);
  }
  const Config none = parse(R"({"zero_optimization": {"prefetch_bucket_size": 0, "max_reuse_distance": 0}})");
  EXPECT_EQ(none.prefetch_bucket_size, 0);
  EXPECT_EQ(none.max_reuse_distance, 0);
  EXPECT_THAT(error_of(R"({"zero_optimization": {"reduce_bucket_size": -1}})"), HasSubstr("allowed: at least 0"));
}

TEST(Ranks, PartitionGroupsDivideTheWorld) {
  const auto at = [](int stage, int size) {
    return R"({"zero_optimization": {"stage": )" + std::to_string(stage) + R"(, "zero_hpz_partition_size": )" +
           std::to_string(size) + "}}";
  };
  for (std::int64_t world = 1; world <= 12; ++world) {
    for (int size = 1; size <= 13; ++size) {
      const ConfigContext context{.world_size = world, .total_steps = 0};
      if (world % size == 0) {
        EXPECT_EQ(parse(at(3, size), context).hpz_partition_size, size);
      } else {
        EXPECT_THAT(error_of(at(1, size), context), AllOf(HasSubstr("zero_optimization.zero_hpz_partition_size: groups of "),
                                                          HasSubstr(" " + std::to_string(size) + " do not divide")));
      }
    }
  }
  EXPECT_EQ(error_of(at(2, 4), {.world_size = 6, .total_steps = 0}),
            "ds.json:1: zero_optimization.zero_hpz_partition_size: groups of 4 do not divide the 6 ranks of this run; "
            "allowed: 1, 2, 3, 6, where 1 means all ranks");
  const Config unsharded = parse(at(0, 4), kFourRanks);
  EXPECT_EQ(unsharded.hpz_partition_size, 1);
  EXPECT_THAT(unsharded.warnings, Contains(AllOf(HasSubstr("zero_hpz_partition_size"), HasSubstr("stage is 0"))));
  EXPECT_THAT(error_of(at(1, 0)), HasSubstr("at least 1"));
}

}  // namespace
}  // namespace spillway
