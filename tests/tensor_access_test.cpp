// State and weights of single parameters by name: the same values wherever they live, and a run that goes on as if it had
// always had those written.
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/state_access.h"
#include "spillway/error.h"
#include "support/tensors.h"

namespace spillway {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TensorAccess : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  static void everywhere(const std::function<void(RunSetup&, const std::string&)>& act) {
    const auto [stage, world] = GetParam();
    on_every_placement(stage, world, act);
  }
};

TEST_P(TensorAccess, ReadsTheSameOnEveryRankAndTier) {
  Tensors expected;
  std::mutex mutex;
  everywhere([&](RunSetup& mine, const std::string& where) {
    const std::unique_ptr<Engine> engine = make_engine(mine);
    step(*engine, mine, 0);
    step(*engine, mine, 1);
    const Tensors found = read_all(*engine, mine);
    for (const ParamSpec& param : params_of(mine)) {
      if (!param.trainable) continue;
      EXPECT_TRUE(same_bits(found.at("weight " + param.name), rounded(found.at("master " + param.name), DType::bf16))) << param.name << ", " << where;
    }
    const std::lock_guard lock(mutex);
    if (expected.empty()) expected = found;
    EXPECT_EQ(difference(found, expected), "") << where;
  });
}

TEST_P(TensorAccess, ReadsWhatWasWrittenAndComesBack) {
  everywhere([&](RunSetup& mine, const std::string& where) {
    const std::unique_ptr<Engine> engine = make_engine(mine);
    step(*engine, mine, 0);
    const Tensors before = read_all(*engine, mine);
    const std::uint64_t hash = engine->state_hash();
    Tensors written;
    float offset = 1.0f;
    for (const ParamSpec& param : params_of(mine)) {
      for (const StateSection section : {StateSection::exp_avg, StateSection::exp_avg_sq, StateSection::weight}) {
        if (!param.trainable && section != StateSection::weight) continue;
        const Values values = values_like(param, offset++);
        engine->write_tensor(param.name, section, values);
        written[key(section, param.name)] = section == StateSection::weight ? rounded(values, DType::bf16) : values;
        if (section == StateSection::weight && param.trainable) written[key(StateSection::master, param.name)] = values;
      }
    }
    EXPECT_EQ(difference(read_all(*engine, mine), written), "") << where;
    engine->compare_ranks();
    EXPECT_NE(engine->state_hash(), hash);
    for (const auto& [name, values] : before) {
      const std::string param = name.substr(name.find(' ') + 1);
      if (param_of(mine, param).trainable && name.starts_with("weight")) continue;
      for (const StateSection section : {StateSection::master, StateSection::exp_avg, StateSection::exp_avg_sq, StateSection::weight}) {
        if (name == key(section, param)) engine->write_tensor(param, section, values);
      }
    }
    EXPECT_EQ(difference(read_all(*engine, mine), before), "") << where;
    EXPECT_EQ(engine->state_hash(), hash) << where;
    engine->compare_ranks();
  });
}

// The seed's values, but for tensors that are given. The weight of what has a master is that.
class EditedSource final : public StateSource {
 public:
  EditedSource(const RunSetup& setup, Tensors edited) : layers_(make_layers(setup.spec, setup.frozen)), seeded_(layers_, kSeed), edited_(std::move(edited)) {}

  void read(const std::string& param, StateSection section, std::int64_t begin, std::span<float> out) override {
    auto it = edited_.find(key(section, param));
    if (section == StateSection::weight && it == edited_.end()) it = edited_.find(key(StateSection::master, param));
    if (it == edited_.end()) return seeded_.read(param, section, begin, out);
    std::copy_n(it->second.begin() + begin, out.size(), out.begin());
  }

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
  SeedSource seeded_;
  Tensors edited_;
};

// The tied table, a frozen weight, a matrix by its weight, a vector by its master, and moments. NVMe verifies checksums.
TEST_P(TensorAccess, TrainsAsARunThatStartedWithWhatIsWritten) {
  everywhere([&](RunSetup& mine, const std::string& where) {
    Tensors edited;
    const std::unique_ptr<Engine> engine = make_engine(mine);
    const auto edit = [&](const std::string& name, StateSection section, StateSection kept, float offset) {
      edited[key(kept, name)] = values_like(param_of(mine, name), offset);
      engine->write_tensor(name, section, edited[key(kept, name)]);
    };
    edit("wte.weight", StateSection::master, StateSection::master, 0.02f);
    edit("h.0.mlp.c_proj.weight", StateSection::weight, StateSection::weight, 0.03f);
    edit("h.1.attn.c_attn.weight", StateSection::weight, StateSection::master, 0.01f);
    edit("h.1.mlp.c_fc.bias", StateSection::master, StateSection::master, 0.04f);
    edit("h.1.mlp.c_fc.bias", StateSection::exp_avg, StateSection::exp_avg, 0.05f);
    edit("h.1.mlp.c_fc.bias", StateSection::exp_avg_sq, StateSection::exp_avg_sq, 0.06f);
    EditedSource source(mine, edited);
    RunSetup started = mine;
    started.source = &source;
    const std::unique_ptr<Engine> other = make_engine(started);
    for (int s = 0; s < 2; ++s) {
      const StepResult here = step(*engine, mine, s), there = step(*other, started, s);
      EXPECT_EQ(here.verdict.loss, there.verdict.loss) << where;
      EXPECT_EQ(here.verdict.gradient_norm, there.verdict.gradient_norm) << where;
    }
    EXPECT_EQ(engine->state_hash(), other->state_hash()) << where;
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TensorAccess, ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Values(1, 3)),
                         [](const auto& info) { return "Stage" + std::to_string(std::get<0>(info.param)) + "World" + std::to_string(std::get<1>(info.param)); });

// Groups of two that share a layer, each of them the other's replica.
TEST(Tensors, AreWrittenToEveryReplica) {
  for (const OffloadDevice device : {OffloadDevice::none, OffloadDevice::cpu}) {
    RunSetup setup = placed(tensor_run(3), device, "");
    setup.config.hpz_partition_size = 2;
    on_ranks(setup, 4, [&](RunSetup& mine) {
      const std::unique_ptr<Engine> engine = make_engine(mine);
      for (const ParamSpec& param : params_of(mine)) engine->write_tensor(param.name, StateSection::weight, values_like(param, 0.01f));
      engine->compare_ranks();
      for (const ParamSpec& param : params_of(mine)) {
        EXPECT_TRUE(same_bits(read(*engine, param, StateSection::weight), rounded(values_like(param, 0.01f), DType::bf16))) << param.name;
      }
    });
  }
}

TEST(Tensors, MayBeSmallerThanTheWorld) {
  for (const int stage : {1, 3}) {
    RunSetup setup = tensor_run(stage);
    setup.spec = {"odd", 1, 2, 1, 7, 8};
    setup.spec.mlp_channels = 3;
    setup.time = 8;
    setup.frozen = {"h.0.ln_2.weight"};
    on_ranks(setup, 3, [&](RunSetup& mine) {
      const std::unique_ptr<Engine> engine = make_engine(mine);
      for (const ParamSpec& param : params_of(mine)) {
        const Values values = rounded(values_like(param, 3.0f), DType::bf16);
        engine->write_tensor(param.name, StateSection::weight, values);
        EXPECT_TRUE(same_bits(read(*engine, param, StateSection::weight), values)) << param.name;
      }
      engine->compare_ranks();
    });
  }
}

// More than what is exchanged at a time.
TEST(Tensors, AreSharedInPieces) {
  RunSetup setup = tensor_run(3);
  setup.spec.vocabulary = 20'000;
  setup.config.micro_batch_size = 1;
  on_ranks(setup, 2, [&](RunSetup& mine) {
    const std::unique_ptr<Engine> engine = make_engine(mine);
    const ParamSpec table = param_of(mine, "wte.weight");
    engine->write_tensor(table.name, StateSection::exp_avg, values_like(table, 1.0f));
    EXPECT_TRUE(same_bits(read(*engine, table, StateSection::exp_avg), values_like(table, 1.0f)));
  });
}

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Tensors, AreRefusedIfTheyAreNotThere) {
  const RunSetup setup = tensor_run(3);
  const std::unique_ptr<Engine> engine = make_engine(setup);
  const std::uint64_t hash = engine->state_hash();
  Values values(16);
  EXPECT_THAT(error_of([&] { engine->read_tensor("h.1.ln_1.wieght", StateSection::master, values); }),
              AllOf(HasSubstr("read the master of \"h.1.ln_1.wieght\""), HasSubstr("did you mean \"h.1.ln_1.weight\"?")));
  EXPECT_THAT(error_of([&] { engine->write_tensor("wpe.weight", StateSection::exp_avg, values); }),
              AllOf(HasSubstr("write the exp_avg of \"wpe.weight\""), HasSubstr("found 16 values, expected 256"), HasSubstr("(16, 16)")));
  EXPECT_THAT(error_of([&] { engine->read_tensor("h.0.ln_1.bias", StateSection::master, values); }), HasSubstr("frozen, it has only a weight"));
  EXPECT_EQ(engine->state_hash(), hash);
}

TEST(Tensors, AreRefusedIfRanksWriteDifferentValues) {
  EXPECT_THAT(error_of([] {
                on_ranks(tensor_run(1), 3, [](RunSetup& mine) {
                  const std::unique_ptr<Engine> engine = make_engine(mine);
                  engine->write_tensor("h.1.ln_1.weight", StateSection::master, Values(16, mine.world->rank() == 2 ? 1.0f : 2.0f));
                });
              }),
              AllOf(HasSubstr("write the master of \"h.1.ln_1.weight\" on rank 0: rank 2"), HasSubstr("the same values")));
}

}  // namespace
}  // namespace spillway
