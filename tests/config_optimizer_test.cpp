// optimizer.type, its parameters and the format of its moments: what is taken, what it comes to, what is refused.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spillway/config.h"
#include "support/config_text.h"

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::error_of;
using testing::parse;

std::string of(const std::string& type, const std::string& params = "", const std::string& rest = "") {
  return R"({"train_batch_size": 1, "optimizer": {"type": ")" + type + R"(", "params": {)" + params + "}}" + rest + "}";
}

// DeepSpeed's: effective mode = the type is AdamW, or adam_w_mode, which is true by default.
TEST(Optimizer, DecouplesDecayAsDeepSpeedDoes) {
  const struct {
    const char *type, *mode;
    bool decoupled;
  } rows[] = {
      {"Adam", "", true},   {"adam", "\"adam_w_mode\": true", true},  {"ADAM", "\"adam_w_mode\": false", false},
      {"AdamW", "", true},  {"adamw", "\"adam_w_mode\": true", true}, {"AdamW", "\"adam_w_mode\": false", true},
  };
  for (const auto& [type, mode, expected] : rows) {
    const Config config = parse(of(type, mode));
    EXPECT_EQ(config.optimizer.decoupled_decay, expected) << type << " " << mode;
    EXPECT_EQ(config.optimizer.state, StateFormat{}) << type << " " << mode;
  }
  EXPECT_THAT(parse(of("AdamW", "\"adam_w_mode\": false")).warnings, ElementsAre(HasSubstr("always decouples weight decay")));
}

TEST(Optimizer, HasTheDefaultsOfItsType) {
  const OptimizerConfig adam = parse(of("AdamW")).optimizer, adagrad = parse(of("adagrad")).optimizer, lion = parse(of("LION")).optimizer,
                        sgd = parse(of("sgd")).optimizer;
  EXPECT_EQ(adam.state.kind, OptimizerKind::adam);
  EXPECT_EQ(adam.learning_rate, 1e-3);
  EXPECT_EQ(adam.beta2, 0.999);
  EXPECT_EQ(adam.epsilon, 1e-8);
  EXPECT_EQ(adagrad.type, "Adagrad");
  EXPECT_EQ(adagrad.state.kind, OptimizerKind::adagrad);
  EXPECT_EQ(adagrad.learning_rate, 1e-2);
  EXPECT_EQ(adagrad.epsilon, 1e-10);
  EXPECT_EQ(lion.state.kind, OptimizerKind::lion);
  EXPECT_EQ(lion.learning_rate, 1e-3);
  EXPECT_EQ(lion.beta1, 0.9);
  EXPECT_EQ(lion.beta2, 0.99);
  EXPECT_EQ(sgd.state.kind, OptimizerKind::sgd);
  EXPECT_EQ(sgd.learning_rate, 1e-3);
  for (const OptimizerConfig& optimizer : {adam, adagrad, lion, sgd}) EXPECT_EQ(optimizer.weight_decay, 0.0);
}

TEST(Optimizer, TakesItsParameters) {
  const OptimizerConfig sgd = parse(of("SGD", R"("lr": 0.5, "momentum": 0.75, "nesterov": true, "weight_decay": 0.25)")).optimizer;
  EXPECT_EQ(sgd.state.kind, OptimizerKind::sgd_momentum);
  EXPECT_EQ(sgd.learning_rate, 0.5);
  EXPECT_EQ(sgd.momentum, 0.75);
  EXPECT_TRUE(sgd.nesterov);
  EXPECT_EQ(sgd.weight_decay, 0.25);
  EXPECT_EQ(parse(of("SGD", R"("momentum": 0.5, "dampening": 0.25)")).optimizer.dampening, 0.25);
  EXPECT_EQ(parse(of("Adagrad", R"("lr_decay": 0.125, "initial_accumulator_value": 0)")).optimizer.learning_rate_decay, 0.125);
  const OptimizerConfig lion = parse(of("Lion", R"("betas": [0.5, 0.25])")).optimizer;
  EXPECT_EQ(lion.beta1, 0.5);
  EXPECT_EQ(lion.beta2, 0.25);
}

TEST(Optimizer, RefusesParametersItDoesNotHave) {
  const struct {
    const char *type, *params, *name, *takes;
  } rows[] = {
      {"Lion", "\"eps\": 1e-6", "eps", "Lion has no such parameter; it takes lr, betas, weight_decay"},
      {"AdamW", "\"momentum\": 0.9", "momentum", "AdamW has no such parameter; it takes lr, betas, eps, weight_decay, bias_correction, adam_w_mode"},
      {"Adam", "\"nesterov\": true", "nesterov", "Adam has no"},
      {"Adagrad", "\"betas\": [0.9, 0.95]", "betas", "Adagrad has no such parameter; it takes lr, eps, weight_decay, lr_decay, initial_accumulator_value"},
      {"SGD", "\"bias_correction\": false", "bias_correction", "SGD has no such parameter; it takes lr, weight_decay, momentum, dampening, nesterov"},
      {"SGD", "\"adam_w_mode\": false", "adam_w_mode", "SGD has no"},
      {"Lion", "\"lr_decay\": 0.1", "lr_decay", "Lion has no"},
  };
  for (const auto& [type, params, name, takes] : rows) {
    EXPECT_THAT(error_of(of(type, params)), AllOf(HasSubstr(std::string("optimizer.params.") + name + ": " + takes), HasSubstr("remove it"))) << params;
  }
}

// What a program writes that knows all parameters, and null, ask for nothing.
TEST(Optimizer, WarnsOfParametersItDoesNotHaveThatAskForNothing) {
  for (const char* params : {"\"eps\": 1e-8", "\"eps\": null", "\"eps\": \"auto\"", "\"momentum\": 0", "\"nesterov\": false", "\"bias_correction\": true"}) {
    EXPECT_THAT(parse(of("Lion", params)).warnings, ElementsAre(AllOf(HasSubstr("optimizer.params."), HasSubstr("Lion has no such parameter")))) << params;
  }
  EXPECT_THAT(parse(of("SGD", "\"betas\": [0.9, 0.999]")).warnings, ElementsAre(HasSubstr("SGD has no such parameter")));
  EXPECT_THAT(parse(of("Lion", "\"lr\": 0.5")).warnings, IsEmpty());
}

TEST(Optimizer, RefusesWhatItCannotDo) {
  EXPECT_THAT(error_of(of("Adagrad", "\"initial_accumulator_value\": 0.1")), HasSubstr("optimizer.params.initial_accumulator_value: 0.1 is not supported"));
  EXPECT_THAT(error_of(of("SGD", "\"nesterov\": true")), AllOf(HasSubstr("optimizer.params.nesterov: needs momentum above 0"), HasSubstr("found momentum 0")));
  EXPECT_THAT(error_of(of("SGD", "\"nesterov\": true, \"momentum\": 0.9, \"dampening\": 0.5")), HasSubstr("dampening 0, found momentum 0.9 and dampening 0.5"));
  EXPECT_THAT(error_of(of("SGD", "\"momentum\": -1")), HasSubstr("at least 0"));
  EXPECT_THAT(parse(of("SGD", "\"dampening\": 0.5")).warnings, ElementsAre(HasSubstr("no effect without momentum")));
  EXPECT_THAT(error_of(of("Lion", "\"amsgrad\": true")), HasSubstr("AMSGrad"));
}

TEST(Optimizer, OthersAreRefusedByNameWithTheList) {
  EXPECT_EQ(error_of(R"({"optimizer": {"params": {"var_freeze_step": 3}, "type": "ZeroOneAdam"}})"),
            "ds.json:1: optimizer.type: \"ZeroOneAdam\" is not supported; allowed: AdamW, Adam, Adagrad, Lion, SGD")
      << "one error, not one for every parameter of the unknown type";
  EXPECT_THAT(error_of(R"({"optimizer": {"type": "Adma"}})"), HasSubstr("did you mean"));
  EXPECT_THAT(error_of(R"({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}})"),
              HasSubstr("gradient_clipping"));
  EXPECT_THAT(error_of(R"({"optimizer": {"type": "Adam", "params": {"amsgrad": true}}})"), HasSubstr("AMSGrad"));
}

TEST(Optimizer, MissingSectionMeansAdamWWithAWarning) {
  const Config config = parse("{\"train_batch_size\": 1}");
  EXPECT_EQ(config.optimizer.type, "AdamW");
  EXPECT_EQ(config.optimizer.learning_rate, 1e-3);
  EXPECT_THAT(config.warnings, Contains(AllOf(HasSubstr("no optimizer"), HasSubstr("AdamW with lr 0.001"))));
  EXPECT_THAT(parse(R"({"train_batch_size": 1, "optimizer": {"type": "AdamW"}})").warnings, IsEmpty());
}

MomentFormat moments_of(const std::string& text) { return parse(text).optimizer.state.moments; }

constexpr const char* kBf16 = R"(, "bf16": {"enabled": true})";
constexpr const char* kBf16States = R"(, "bf16": {"enabled": true, "bf16_optimizer_states": true})";

TEST(Moments, AreFp32UnlessAKeyNamesAnotherFormat) {
  EXPECT_EQ(moments_of(of("Adam")), MomentFormat::f32);
  EXPECT_EQ(moments_of(of("Adam", "", R"(, "spillway": {"moments": "fp32"})")), MomentFormat::f32);
  EXPECT_EQ(moments_of(of("Adam", "", R"(, "spillway": {"moments": "BF16"})")), MomentFormat::bf16);
  EXPECT_EQ(moments_of(of("Adam", "", R"(, "spillway": {"moments": "8bit"})")), MomentFormat::block8);
  EXPECT_EQ(moments_of(of("Adam", "", kBf16States)), MomentFormat::bf16);
  EXPECT_EQ(moments_of(of("Adam", "", R"(, "bf16": {"enabled": true, "bf16_optimizer_states": false})")), MomentFormat::f32);
  EXPECT_EQ(moments_of(of("Adam", "\"fp32_optimizer_states\": false", kBf16)), MomentFormat::bf16);
  EXPECT_EQ(moments_of(of("Adam", "\"fp32_optimizer_states\": true", kBf16)), MomentFormat::f32);
  EXPECT_EQ(moments_of(of("Adam", "\"fp32_optimizer_states\": false", std::string(kBf16States) + R"(, "spillway": {"moments": "bf16"})")), MomentFormat::bf16);
  EXPECT_THAT(error_of(of("Adam", "", R"(, "spillway": {"moments": "8bits"})")), AllOf(HasSubstr("did you mean \"8bit\"?"), HasSubstr("fp32, bf16, 8bit")));
}

TEST(Moments, ThatKeysContradictEachOtherAboutAreRefused) {
  EXPECT_THAT(error_of(of("Adam", "", std::string(kBf16States) + R"(, "spillway": {"moments": "8bit"})")),
              HasSubstr("bf16.bf16_optimizer_states: asks for bf16 moments, and spillway.moments for 8bit; keep one of the two"));
  EXPECT_THAT(error_of(of("Adam", "\"fp32_optimizer_states\": true", kBf16States)),
              HasSubstr("optimizer.params.fp32_optimizer_states: asks for fp32 moments, and bf16.bf16_optimizer_states for bf16"));
  EXPECT_THAT(error_of(of("Adam", "\"fp32_optimizer_states\": false", std::string(kBf16) + R"(, "spillway": {"moments": "fp32"})")),
              HasSubstr("optimizer.params.fp32_optimizer_states: asks for bf16 moments, and spillway.moments for fp32"));
}

TEST(Moments, OfADtypeThatIsNotOfferedAreRefused) {
  EXPECT_THAT(error_of(of("Adam", "\"fp32_optimizer_states\": false", R"(, "fp16": {"enabled": true})")),
              AllOf(HasSubstr("which is fp16 here and is not offered"), HasSubstr("set spillway.moments to \"bf16\" or \"8bit\"")));
  EXPECT_THAT(error_of(of("Adam", "\"fp32_optimizer_states\": false")), HasSubstr("which is fp32 here"));
  EXPECT_THAT(error_of(of("Adam", "", R"(, "bf16": {"bf16_optimizer_states": true})")), AllOf(HasSubstr("needs bf16.enabled"), HasSubstr("spillway.moments")));
  EXPECT_THAT(error_of(of("Adam", "", R"(, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true})")),
              AllOf(HasSubstr("master weights stay fp32"), HasSubstr("bf16_optimizer_states does not need it"), HasSubstr("8bit")));
}

TEST(Moments, OfAnOptimizerThatHasNoneAreIgnoredWithAWarning) {
  const Config config = parse(of("SGD", "", R"(, "spillway": {"moments": "8bit"})"));
  EXPECT_EQ(config.optimizer.state, (StateFormat{OptimizerKind::sgd, MomentFormat::f32}));
  EXPECT_THAT(config.warnings, ElementsAre(AllOf(HasSubstr("spillway.moments"), HasSubstr("SGD without momentum"))));
  EXPECT_EQ(parse(of("SGD", "\"momentum\": 0.9", R"(, "spillway": {"moments": "8bit"})")).optimizer.state,
            (StateFormat{OptimizerKind::sgd_momentum, MomentFormat::block8}));
}

}  // namespace
}  // namespace spillway
