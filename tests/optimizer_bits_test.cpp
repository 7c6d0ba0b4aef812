// The bits of updates, frozen: what is equal on one processor has to be so between processors, too. These are from x86-64;
// tests/neon runs the same on aarch64.
#include <cmath>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "base/stochastic_rounding.h"
#include "spillway/optimizer.h"
#include "support/optimizer_arrays.h"

namespace spillway {
namespace {

using test::OptimizerArrays;
using test::OptimizerVariant;

// In [-1, 1), by nothing that a library might form differently elsewhere.
float number(std::uint64_t i) { return static_cast<float>(static_cast<std::int64_t>(mix64(i)) >> 40) * 0x1p-23f; }

void fill(OptimizerArrays& arrays) {
  for (std::int64_t i = 0; i < arrays.n; ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    arrays.set_master(i, number(4 * at) * 0.1f);
    arrays.set_gradient(i, std::ldexp(number(4 * at + 1), static_cast<int>(mix64(at) % 24) - 20));
  }
  for (std::size_t m = 0; m < arrays.variant.num_moments(); ++m) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < arrays.n; ++i) values.push_back(std::fabs(number(4 * static_cast<std::uint64_t>(i) + 2 + m)) * 1e-3f);
    arrays.set_moments(m, values);
  }
}

// FNV-1a.
void add(std::uint64_t& hash, const test::OffsetBytes& array) {
  for (std::size_t i = 0; i < array.size(); ++i) hash = (hash ^ array.data()[i]) * 0x100000001b3u;
}

// Of all that three steps leave, with every dtype of gradients and form of weights.
std::uint64_t hash_of(std::string_view isa, OptimizerKind kind, MomentFormat format) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const OptimizerVariant& variant : test::variants_of(kind, format)) {
    OptimizerArrays arrays(variant, 3 * kMomentBlock + 21, 1);
    fill(arrays);
    for (std::int64_t step = 1; step <= 3; ++step) optimizer_update_with(isa, arrays.tile(), test::lively_params(kind, step));
    for (const test::OffsetBytes* array : {&arrays.master, &arrays.low, &arrays.weight}) add(hash, *array);
    for (std::size_t m = 0; m < arrays.moments.size(); ++m) {
      add(hash, arrays.moments[m]);
      add(hash, arrays.scales[m]);
    }
  }
  return hash;
}

class OptimizerBits : public ::testing::TestWithParam<std::string_view> {};

TEST_P(OptimizerBits, AreTheSameOnEveryProcessor) {
  static const std::map<std::string, std::uint64_t> kFrozen = {
      {"adam fp32", 0xbdd759aaca888b7cu},
      {"adam bf16", 0xcf600d701c7c42d1u},
      {"adam 8bit", 0xaf950c56d4921f05u},
      {"adagrad fp32", 0x74ca924835bf137du},
      {"adagrad bf16", 0xc88bd68d957325d0u},
      {"adagrad 8bit", 0x4d81eb65d1965f45u},
      {"lion fp32", 0x43be0e8eac714891u},
      {"lion bf16", 0x093c691114f9c2b1u},
      {"lion 8bit", 0x246ba9af1fba8e0fu},
      {"sgd fp32", 0x4fdcf464d0157762u},
      {"sgd_momentum fp32", 0x32e996c5615976d5u},
      {"sgd_momentum bf16", 0xf8915957995d9a4bu},
      {"sgd_momentum 8bit", 0x39611c04e0ad1ae1u},
  };
  std::size_t checked = 0;
  for (const OptimizerKind kind : test::kAllKinds) {
    for (const MomentFormat format : {MomentFormat::f32, MomentFormat::bf16, MomentFormat::block8}) {
      if (!test::exists(kind, format)) continue;
      const std::string name = std::string(traits_of(kind).name) + " " + std::string(name_of(format));
      const auto frozen = kFrozen.find(name);
      ASSERT_NE(frozen, kFrozen.end()) << name;
      EXPECT_EQ(hash_of(GetParam(), kind, format), frozen->second) << name;
      ++checked;
    }
  }
  EXPECT_EQ(checked, kFrozen.size());
}

INSTANTIATE_TEST_SUITE_P(Available, OptimizerBits, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace spillway
