// The key table as a whole: every key is suggested for its misspellings, accepts "auto" and null, and is reported.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/key_table.h"
#include "spillway/config.h"
#include "spillway/error.h"
#include "support/config_text.h"

namespace spillway {
namespace {

using config::Effect;
using config::Key;
using ::testing::HasSubstr;
using testing::error_of;

// {"a": {"b": {"<name>": <value>}}} for section a.b.
std::string document(std::string_view section, std::string_view name, std::string_view value) {
  const std::string member = fmt::format("{{\"{}\": {}}}", name, value);
  if (section.empty()) return member;
  const std::size_t dot = section.rfind('.');
  if (dot == std::string_view::npos) return document("", section, member);
  return document(section.substr(0, dot), section.substr(dot + 1), member);
}

std::vector<std::string_view> names_of(const Key& key) {
  std::vector<std::string_view> names = {key.name()};
  if (!key.alias.empty()) names.push_back(key.alias);
  return names;
}

std::set<std::string> with_one_letter_removed(std::string_view name) {
  std::set<std::string> results;
  for (std::size_t at = 0; at < name.size(); ++at) results.insert(std::string(name).erase(at, 1));
  return results;
}

TEST(ConfigKeys, EveryKeyIsSuggestedWhenALetterIsMissing) {
  int typos = 0;
  for (const Key& key : config::key_table()) {
    for (const std::string_view name : names_of(key)) {
      for (const std::string& typo : with_one_letter_removed(name)) {
        if (config::find_key(key.section(), typo) != nullptr) continue;  // cpu_offload_params without its s
        // "f16" is as close to fp16 as to bf16: any key that this typo can come from is a right answer, by any
        // of its names.
        std::vector<std::string> right;
        for (const std::string_view other : config::key_names(key.section())) {
          if (other.size() != typo.size() + 1 || !with_one_letter_removed(other).contains(typo)) continue;
          for (const std::string_view answer : names_of(*config::find_key(key.section(), other))) {
            right.push_back(fmt::format("did you mean \"{}\"?", answer));
          }
        }
        const std::string error = error_of(document(key.section(), typo, "1"));
        const std::string path = key.section().empty() ? typo : fmt::format("{}.{}", key.section(), typo);
        EXPECT_THAT(error, HasSubstr(fmt::format("ds.json:1: {}: unknown key", path)));
        EXPECT_TRUE(std::any_of(right.begin(), right.end(),
                                [&](const std::string& text) { return error.find(text) != std::string::npos; }))
            << error;
        EXPECT_LE(right.size(), 4u) << typo;
        ++typos;
      }
    }
  }
  EXPECT_GT(typos, 2000);
}

TEST(ConfigKeys, NamesAreUniqueWithinASectionAndSectionsExist) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const Key& key : config::key_table()) {
    for (const std::string_view name : names_of(key)) {
      EXPECT_TRUE(seen.insert({key.section(), name}).second) << key.path;
    }
    if (key.section().empty()) continue;
    const bool has_section = std::any_of(
        config::key_table().begin(), config::key_table().end(),
        [&](const Key& other) { return other.path == key.section() && other.effect == Effect::section; });
    EXPECT_TRUE(has_section) << key.path;
    EXPECT_EQ(key.bind != nullptr, key.effect == Effect::used) << key.path;
    EXPECT_TRUE(key.bind != nullptr || key.effect == Effect::section || !key.note.empty()) << key.path;
  }
}

TEST(ConfigKeys, AutoAndNullLeaveTheDefaultInEverySlot) {
  const Config defaults = parse_config("{}", "ds.json", {});
  for (const Key& key : config::key_table()) {
    for (const std::string_view value : {"\"auto\"", "null"}) {
      const Config config = parse_config(document(key.section(), key.name(), value), "ds.json", {});
      EXPECT_EQ(config.effective_json, defaults.effective_json) << key.path << " " << value;
      for (const KeyReport& row : config.keys) {
        if (row.path != key.path || value == "null") continue;
        EXPECT_EQ(row.source, KeyReport::Source::automatic) << key.path;
      }
    }
  }
}

TEST(ConfigKeys, NoSlotTakesAValueOfAnotherType) {
  for (const Key& key : config::key_table()) {
    if (key.kind == config::Kind::any && key.effect != Effect::used && key.effect != Effect::section) continue;
    for (const std::string_view alias : names_of(key)) {
      const std::string error = error_of(document(key.section(), alias, "[[\"{{template}}\"]]"));
      EXPECT_THAT(error, HasSubstr(std::string("ds.json:1: ").append(key.path) + ": ")) << alias;
    }
  }
}

TEST(ConfigKeys, KeysWithoutEffectAcceptTheirDefaultAndSayWhy) {
  for (const Key& key : config::key_table()) {
    if (key.effect != Effect::no_effect && key.effect != Effect::refused) continue;
    const Config config = parse_config(document(key.section(), key.name(), key.default_value), "ds.json", {});
    const auto row = std::find_if(config.keys.begin(), config.keys.end(),
                                  [&](const KeyReport& report) { return report.path == key.path; });
    ASSERT_NE(row, config.keys.end()) << key.path;
    EXPECT_THAT(row->note, HasSubstr(std::string(key.note)));
    EXPECT_EQ(row->value, key.default_value) << key.path;
  }
}

TEST(ConfigKeys, RefusedKeysNameTheReason) {
  for (const Key& key : config::key_table()) {
    if (key.effect != Effect::refused) continue;
    const std::string_view value = key.kind == config::Kind::boolean ? (key.default_value == "true" ? "false" : "true")
                                   : key.kind == config::Kind::number ? "7"
                                   : key.kind == config::Kind::string ? "\"sum\""
                                                                      : "{\"enabled\": true}";
    const std::string error = error_of(document(key.section(), key.name(), value));
    if (value == "false") {
      EXPECT_EQ(error, "ds.json:1: " + std::string(key.path) + ": false cannot be used: " + std::string(key.note));
    } else {
      EXPECT_THAT(error, ::testing::AllOf(HasSubstr(std::string(key.path)), HasSubstr(std::string(key.note))));
    }
    EXPECT_EQ(error_of(document(key.section(), key.name(), key.default_value)), "no error");
  }
}

TEST(ConfigKeys, MisplacedKeysAreToldTheirSection) {
  EXPECT_THAT(error_of(R"({"offload_optimizer": {"device": "cpu"}})"), HasSubstr("belongs in zero_optimization"));
  EXPECT_THAT(error_of(R"({"zero_optimization": {"gradient_clipping": 1}})"), HasSubstr("belongs at the top level"));
  EXPECT_THAT(error_of(R"({"zero_optimization": {"stage3_param_persitance_threshold": 1}})"),
              HasSubstr("did you mean \"stage3_param_persistence_threshold\"?"));
  EXPECT_THAT(error_of(R"({"fp16 ": {"enabled": true}})"), HasSubstr("did you mean \"fp16\"?"));
}

TEST(ConfigKeys, AllErrorsOfAFileComeTogether) {
  const std::string error = error_of(
      "{\"train_batch_sise\": 8,\n\"fp16\": {\"enabled\": 3},\n\"amp\": {\"enabled\": true}}");
  EXPECT_THAT(error, HasSubstr("3 errors in ds.json:"));
  EXPECT_THAT(error, HasSubstr("ds.json:1: train_batch_sise"));
  EXPECT_THAT(error, HasSubstr("ds.json:2: fp16.enabled: expected true or false, found 3"));
  EXPECT_THAT(error, HasSubstr("ds.json:3: amp"));
}

TEST(ConfigKeys, NumbersAreTakenInEveryCommonSpelling) {
  const auto threshold = [](std::string_view value) {
    return parse_config(document("zero_optimization", "stage3_param_persistence_threshold", value), "ds.json", {})
        .param_persistence_threshold;
  };
  EXPECT_EQ(threshold("5e8"), 500000000);
  EXPECT_EQ(threshold("5E+8"), 500000000);
  EXPECT_EQ(threshold("500000000.0"), 500000000);
  EXPECT_EQ(threshold("1e14"), 100000000000000);
  EXPECT_EQ(threshold("15099494.4"), 15099494);
  EXPECT_EQ(threshold("\"8\""), 8);
  EXPECT_EQ(threshold("\"4Ki\""), 4096);
  EXPECT_EQ(threshold("0"), 0);
  EXPECT_EQ(threshold("9007199254740993"), 9007199254740993) << "above 2^53, where a double would round";
  const auto learning_rate = [](std::string_view value) {
    return parse_config(document("optimizer.params", "lr", value), "ds.json", {}).optimizer.learning_rate;
  };
  EXPECT_EQ(learning_rate("\"1e-5\""), 1e-5);
  EXPECT_EQ(learning_rate("1e-05"), 1e-5);
  EXPECT_EQ(parse_config(R"({"steps_per_print": inf})", "ds.json", {}).steps_per_print,
            std::numeric_limits<std::int64_t>::max());
}

TEST(ConfigKeys, ListsOfStringsMayBeOneString) {
  const auto frozen = [](std::string_view value) {
    return parse_config(document("spillway", "frozen", value), "ds.json", {}).spillway.frozen;
  };
  EXPECT_THAT(frozen("[]"), ::testing::IsEmpty());
  EXPECT_THAT(frozen("null"), ::testing::IsEmpty());
  EXPECT_THAT(frozen("\"wte.*\""), ::testing::ElementsAre("wte.*"));
  EXPECT_THAT(frozen("[\"wte.*\", \"h.?.ln_1.bias\"]"), ::testing::ElementsAre("wte.*", "h.?.ln_1.bias"));
  for (const std::string_view value : {"1", "[1]", "\"\"", "[\"wte.*\", \"\"]", "{\"wte.*\": true}", "[\"a\", [\"b\"]]"}) {
    EXPECT_THAT(error_of(document("spillway", "frozen", value)), HasSubstr("spillway.frozen: expected a list")) << value;
  }
}

TEST(ConfigKeys, NumbersThatMakeNoSenseAreRefused) {
  for (const std::string_view value :
       {"-1000", "0", "1.5", "NaN", "inf", "-inf", "\"eight\"", "\"\"", "true", "[8]", "1e30"}) {
    EXPECT_THAT(error_of(document("", "train_batch_size", value)), HasSubstr("ds.json:1: train_batch_size: ")) << value;
  }
  for (const std::string_view value : {"-1", "NaN", "Infinity", "\"{{lr}}\""}) {
    EXPECT_THAT(error_of(document("optimizer.params", "lr", value)), HasSubstr("optimizer.params.lr: ")) << value;
  }
  for (const std::string_view value : {"[0.9]", "[0.9, 1.0]", "[0.9, -0.1]", "0.9", "[0.9, \"x\"]"}) {
    EXPECT_THAT(error_of(document("optimizer.params", "betas", value)), HasSubstr("optimizer.params.betas: ")) << value;
  }
  EXPECT_THAT(error_of(document("zero_optimization", "stage", "4")), HasSubstr("allowed: at least 0 and at most 3"));
}

TEST(ConfigKeys, TwoNamesOfOneKeyAreRefusedTogether) {
  EXPECT_THAT(error_of(R"({"zero_optimization": {"prefetch_bucket_size": 1, "stage3_prefetch_bucket_size": 1}})"),
              HasSubstr("names the same setting"));
  EXPECT_THAT(error_of(R"({"bf16": {"enabled": true}, "bfloat16": {"enabled": true}})"), HasSubstr("keep one"));
}

}  // namespace
}  // namespace spillway
