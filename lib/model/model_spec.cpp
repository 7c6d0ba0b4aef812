// The named model shapes and the checks every shape must pass.
#include "spillway/model.h"

#include <array>
#include <cmath>

#include <fmt/format.h>

#include "base/text.h"
#include "spillway/error.h"

namespace spillway {

namespace {

// The last four are Radford et al. 2019, table 2; their sizes here are those of the published checkpoints.
constexpr std::array<std::string_view, 6> kPresetNames = {"gpt2-tiny",   "gpt2-10m",   "gpt2",
                                                          "gpt2-medium", "gpt2-large", "gpt2-xl"};

ModelSpec shape(std::string_view name, std::int64_t layers, std::int64_t channels, std::int64_t heads,
                std::int64_t vocabulary, std::int64_t context) {
  ModelSpec spec;
  spec.name = name;
  spec.layers = layers;
  spec.channels = channels;
  spec.heads = heads;
  spec.vocabulary = vocabulary;
  spec.context = context;
  return spec;
}

// The bounds are far above any model of this family, and low enough that no product of them overflows
// 64 bits.
struct FieldLimit {
  std::string_view field;
  std::int64_t value;
  std::int64_t low, high;
};

void check(const ModelSpec& spec, const FieldLimit& limit) {
  if (limit.value >= limit.low && limit.value <= limit.high) return;
  throw ConfigError(fmt::format("model \"{}\": {} is {}; allowed: {} to {}", spec.name, limit.field, limit.value,
                                limit.low, limit.high));
}

}  // namespace

std::span<const std::string_view> model_preset_names() { return kPresetNames; }

ModelSpec model_preset(std::string_view name) {
  if (name == "gpt2-tiny") return shape(name, 4, 64, 4, 256, 128);
  if (name == "gpt2-10m") return shape(name, 8, 320, 5, 256, 256);
  if (name == "gpt2") return shape(name, 12, 768, 12, 50257, 1024);
  if (name == "gpt2-medium") return shape(name, 24, 1024, 16, 50257, 1024);
  if (name == "gpt2-large") return shape(name, 36, 1280, 20, 50257, 1024);
  if (name == "gpt2-xl") return shape(name, 48, 1600, 25, 50257, 1024);
  throw ConfigError(fmt::format("no model preset is named \"{}\"{}; presets: {}", name,
                                did_you_mean(name, kPresetNames), fmt::join(kPresetNames, ", ")));
}

void validate(const ModelSpec& spec) {
  check(spec, {"layers", spec.layers, 1, 1 << 14});
  check(spec, {"channels", spec.channels, 1, 1 << 20});
  check(spec, {"heads", spec.heads, 1, spec.channels});
  check(spec, {"vocabulary", spec.vocabulary, 1, (std::int64_t{1} << 31) - 1});
  check(spec, {"context", spec.context, 1, 1 << 24});
  check(spec, {"mlp_channels", spec.mlp_channels, 0, 1 << 22});
  if (spec.channels % spec.heads != 0) {
    throw ConfigError(fmt::format("model \"{}\": channels ({}) is not a multiple of heads ({}); every head has "
                                  "channels / heads channels",
                                  spec.name, spec.channels, spec.heads));
  }
  if (!(spec.layernorm_epsilon > 0.0f) || !std::isfinite(spec.layernorm_epsilon)) {
    throw ConfigError(fmt::format("model \"{}\": layernorm_epsilon is {}; allowed: a finite number above 0",
                                  spec.name, spec.layernorm_epsilon));
  }
}

}  // namespace spillway
