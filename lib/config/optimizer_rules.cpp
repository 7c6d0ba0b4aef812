#include "config/optimizer_rules.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway::config {

namespace {

using Parameters = OptimizerParameters;
using Pair = std::array<double, 2>;

constexpr std::string_view kTypes[] = {"AdamW", "Adam", "Adagrad", "Lion", "SGD"};

constexpr Parameters kAdam = {.lr = 1e-3, .betas = Pair{0.9, 0.999}, .eps = 1e-8, .weight_decay = 0.0, .bias_correction = true, .adam_w_mode = true};

// In the order of kTypes: the defaults of the parameters that each takes, which are DeepSpeed's where it has an
// implementation of its own, else PyTorch's.
constexpr Parameters kDefaults[] = {
    kAdam,
    kAdam,
    {.lr = 1e-2, .eps = 1e-10, .weight_decay = 0.0, .lr_decay = 0.0, .initial_accumulator_value = 0.0},
    {.lr = 1e-3, .betas = Pair{0.9, 0.99}, .weight_decay = 0.0},
    {.lr = 1e-3, .weight_decay = 0.0, .momentum = 0.0, .dampening = 0.0, .nesterov = false},
};

// Calls visit(name, member) for every parameter.
template <class Visit>
void for_each_parameter(Visit visit) {
  visit("lr", &Parameters::lr);
  visit("betas", &Parameters::betas);
  visit("eps", &Parameters::eps);
  visit("weight_decay", &Parameters::weight_decay);
  visit("bias_correction", &Parameters::bias_correction);
  visit("adam_w_mode", &Parameters::adam_w_mode);
  visit("momentum", &Parameters::momentum);
  visit("dampening", &Parameters::dampening);
  visit("nesterov", &Parameters::nesterov);
  visit("lr_decay", &Parameters::lr_decay);
  visit("initial_accumulator_value", &Parameters::initial_accumulator_value);
}

std::string path_of(std::string_view name) { return fmt::format("optimizer.params.{}", name); }

class OptimizerResolver {
 public:
  OptimizerResolver(Settings& settings, Provenance& provenance, Problems& problems)
      : settings_(settings),
        given_(settings.optimizer),
        optimizer_(settings.config.optimizer),
        defaults_(kDefaults[std::ranges::find(kTypes, optimizer_.type) - std::begin(kTypes)]),
        provenance_(provenance),
        problems_(problems) {}

  void run() {
    take_parameters();
    decay_mode();
    fill_in();
    accumulator();
    momentum();
    optimizer_.state.kind = kind();
    moments();
    if (!provenance_.is_set("optimizer")) {
      warning("optimizer", fmt::format("no optimizer is given; using AdamW with lr {}, betas [{}, {}], eps {}, weight_decay {}", optimizer_.learning_rate,
                                       optimizer_.beta1, optimizer_.beta2, optimizer_.epsilon, optimizer_.weight_decay));
    }
  }

 private:
  void error(std::string_view path, std::string_view text) { problems_.error(path, provenance_.line(path), text); }
  void warning(std::string_view path, std::string_view text) { problems_.warning(path, provenance_.line(path), text); }

  void take_parameters() {
    std::vector<std::string_view> taken;
    for_each_parameter([&](std::string_view name, auto member) {
      if (defaults_.*member) taken.push_back(name);
    });
    for_each_parameter([&](std::string_view name, auto member) {
      auto& slot = given_.*member;
      if (defaults_.*member) {
        if (!slot) slot = defaults_.*member;
        return;
      }
      const std::string path = path_of(name);
      // Spelled out by habit, or by a program that writes all it knows: it asks for nothing.
      const bool harmless = !slot || std::ranges::any_of(kDefaults, [&](const Parameters& other) { return other.*member == slot; });
      const std::string text = fmt::format("{} has no such parameter; it takes {}", optimizer_.type, fmt::join(taken, ", "));
      if (!harmless) error(path, text + "; remove it, or choose an optimizer that has it");
      if (harmless && provenance_.find(path) != nullptr) warning(path, text);
      slot.reset();
    });
  }

  // DeepSpeed's: Adam is AdamW unless adam_w_mode is false, AdamW always.
  void decay_mode() {
    if (optimizer_.type != "AdamW" || *given_.adam_w_mode) return;
    warning(path_of("adam_w_mode"), "has no effect on AdamW, which always decouples weight decay; use type Adam for L2 decay");
    given_.adam_w_mode = true;
  }

  void fill_in() {
    optimizer_.learning_rate = *given_.lr;
    optimizer_.weight_decay = *given_.weight_decay;
    if (given_.betas) {
      optimizer_.beta1 = given_.betas->front();
      optimizer_.beta2 = given_.betas->back();
    }
    optimizer_.epsilon = given_.eps.value_or(optimizer_.epsilon);
    optimizer_.bias_correction = given_.bias_correction.value_or(optimizer_.bias_correction);
    optimizer_.decoupled_decay = given_.adam_w_mode.value_or(optimizer_.decoupled_decay);
    optimizer_.momentum = given_.momentum.value_or(0.0);
    optimizer_.dampening = given_.dampening.value_or(0.0);
    optimizer_.nesterov = given_.nesterov.value_or(false);
    optimizer_.learning_rate_decay = given_.lr_decay.value_or(0.0);
  }

  void accumulator() {
    if (given_.initial_accumulator_value.value_or(0.0) == 0.0) return;
    error(path_of("initial_accumulator_value"), fmt::format("{} is not supported: the sum of squares starts at 0; leave it out", *given_.initial_accumulator_value));
  }

  void momentum() {
    if (optimizer_.nesterov && (optimizer_.momentum == 0.0 || optimizer_.dampening != 0.0)) {
      error(path_of("nesterov"), fmt::format("needs momentum above 0 and dampening 0, found momentum {} and dampening {}; change those, or set nesterov to false",
                                             optimizer_.momentum, optimizer_.dampening));
    } else if (optimizer_.dampening != 0.0 && optimizer_.momentum == 0.0) {
      warning(path_of("dampening"), "has no effect without momentum");
      optimizer_.dampening = *(given_.dampening = 0.0);
    }
  }

  OptimizerKind kind() const {
    if (optimizer_.type == "Adagrad") return OptimizerKind::adagrad;
    if (optimizer_.type == "Lion") return OptimizerKind::lion;
    if (optimizer_.type == "SGD") return optimizer_.momentum == 0.0 ? OptimizerKind::sgd : OptimizerKind::sgd_momentum;
    return OptimizerKind::adam;
  }

  // Three keys may say it; they have to agree.
  void moments() {
    struct Request {
      std::string_view path;
      MomentFormat format;
    };
    std::vector<Request> requests;
    constexpr std::string_view own = "spillway.moments", states = "bf16.bf16_optimizer_states";
    const std::string fp32_states = path_of("fp32_optimizer_states");
    const DType dtype = settings_.config.dtype;
    if (provenance_.is_set(own)) requests.push_back({own, settings_.moments});
    if (settings_.bf16_optimizer_states.value_or(false)) {
      if (dtype != DType::bf16) error(states, fmt::format("needs bf16.enabled, and training is in {}; use {}: \"bf16\" instead", name_of(dtype), own));
      requests.push_back({states, MomentFormat::bf16});
    }
    if (settings_.fp32_optimizer_states) {
      const bool as_parameters = !*settings_.fp32_optimizer_states;
      if (as_parameters && dtype != DType::bf16) {
        error(fp32_states, fmt::format("false means moments in the dtype of the parameters, which is {} here and is not offered; leave it out, and set {} to "
                                       "\"bf16\" or \"8bit\" for fewer bytes",
                                       name_of(dtype), own));
      }
      requests.push_back({fp32_states, as_parameters ? MomentFormat::bf16 : MomentFormat::f32});
    }
    for (const Request& request : requests) {
      if (request.format == requests[0].format) continue;
      return error(request.path, fmt::format("asks for {} moments, and {} for {}; keep one of the two", name_of(request.format), requests[0].path,
                                             name_of(requests[0].format)));
    }
    if (!requests.empty()) settings_.moments = requests[0].format;
    if (optimizer_.state.num_moments() > 0) {
      optimizer_.state.moments = settings_.moments;
    } else if (settings_.moments != MomentFormat::f32) {
      warning(requests[0].path, "has no effect on SGD without momentum, which keeps no moments");
      settings_.moments = MomentFormat::f32;
      settings_.bf16_optimizer_states.reset();
      settings_.fp32_optimizer_states.reset();
    }
  }

  Settings& settings_;
  Parameters& given_;
  OptimizerConfig& optimizer_;
  const Parameters& defaults_;
  Provenance& provenance_;
  Problems& problems_;
};

}  // namespace

std::span<const std::string_view> optimizer_types() { return kTypes; }

void resolve_optimizer(Settings& settings, Provenance& provenance, Problems& problems) {
  OptimizerResolver(settings, provenance, problems).run();
}

}  // namespace spillway::config
