// A model's shape from a JSON file: our names, nanoGPT's, or a Hugging Face GPT-2 config.json as it is.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/text.h"
#include "config/field.h"
#include "config/json_value.h"
#include "config/problems.h"
#include "config/source.h"
#include "spillway/config.h"
#include "spillway/error.h"

namespace spillway {

namespace {

using config::Field;
using config::Member;
using config::Value;

// What the rows below bind to.
struct Shape {
  ModelSpec spec;
  double epsilon = 1e-5;
};

struct ModelKey {
  std::string_view name;                  // ours
  std::vector<std::string_view> aliases;
  bool required;
  config::Range range;
  Field (*bind)(Shape& shape);
};

// One accepted value of a key that a GPT-2 has but Spillway does not vary; empty: any value, without effect.
struct FixedKey {
  std::string_view name;
  std::vector<std::string_view> allowed;  // as JSON
};

const std::vector<ModelKey>& model_keys() {
  static const std::vector<ModelKey> keys = {
      {"name", {}, false, {}, [](Shape& s) -> Field { return &s.spec.name; }},
      {"layers", {"n_layer", "num_layers", "num_hidden_layers"}, true, {.low = 1},
       [](Shape& s) -> Field { return &s.spec.layers; }},
      {"channels", {"n_embd", "hidden_size", "d_model"}, true, {.low = 1},
       [](Shape& s) -> Field { return &s.spec.channels; }},
      {"heads", {"n_head", "num_heads", "num_attention_heads"}, true, {.low = 1},
       [](Shape& s) -> Field { return &s.spec.heads; }},
      {"vocabulary", {"vocab_size"}, true, {.low = 1}, [](Shape& s) -> Field { return &s.spec.vocabulary; }},
      {"context", {"n_positions", "n_ctx", "block_size", "max_position_embeddings"}, true, {.low = 1},
       [](Shape& s) -> Field { return &s.spec.context; }},
      {"mlp_channels", {"n_inner", "intermediate_size"}, false, {.low = 0},
       [](Shape& s) -> Field { return &s.spec.mlp_channels; }},
      {"layernorm_epsilon", {"layer_norm_epsilon", "layer_norm_eps"}, false, {.low = 0, .low_allowed = false},
       [](Shape& s) -> Field { return &s.epsilon; }},
  };
  return keys;
}

const std::vector<FixedKey>& fixed_keys() {
  static const std::vector<FixedKey> keys = {
      {"model_type", {"\"gpt2\""}},
      {"activation_function", {"\"gelu_new\"", "\"gelu_pytorch_tanh\""}},
      {"bias", {"true"}},
      {"tie_word_embeddings", {"true"}},
      {"scale_attn_weights", {"true"}},
      {"scale_attn_by_inverse_layer_idx", {"false"}},
      {"reorder_and_upcast_attn", {}},
      {"dropout", {}},
      {"attn_pdrop", {}},
      {"embd_pdrop", {}},
      {"resid_pdrop", {}},
      {"initializer_range", {}},
      {"architectures", {}},
      {"bos_token_id", {}},
      {"eos_token_id", {}},
      {"pad_token_id", {}},
      {"gradient_checkpointing", {}},
      {"summary_activation", {}},
      {"summary_first_dropout", {}},
      {"summary_proj_to_labels", {}},
      {"summary_type", {}},
      {"summary_use_proj", {}},
      {"task_specific_params", {}},
      {"torch_dtype", {}},
      {"dtype", {}},
      {"transformers_version", {}},
      {"use_cache", {}},
  };
  return keys;
}

const ModelKey* find_model_key(std::string_view name) {
  for (const ModelKey& key : model_keys()) {
    if (key.name == name || std::find(key.aliases.begin(), key.aliases.end(), name) != key.aliases.end()) return &key;
  }
  return nullptr;
}

const FixedKey* find_fixed_key(std::string_view name) {
  for (const FixedKey& key : fixed_keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::string suggestion(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ModelKey& key : model_keys()) {
    names.push_back(key.name);
    names.insert(names.end(), key.aliases.begin(), key.aliases.end());
  }
  for (const FixedKey& key : fixed_keys()) names.push_back(key.name);
  return did_you_mean(name, names);
}

void check_fixed(const FixedKey& key, const Member& member, config::Problems& problems) {
  const std::string json = to_json(member.value);
  if (key.allowed.empty() || std::find(key.allowed.begin(), key.allowed.end(), json) != key.allowed.end()) return;
  problems.error(member.key, member.line, fmt::format("{} is not what a GPT-2 has; allowed: {}", json,
                                                      fmt::join(key.allowed, ", ")));
}

struct GivenAs {
  const ModelKey* key;
  const Member* member;
};

// Two names of one field (n_positions and n_ctx, say) may both be there when they agree.
bool already_given(const ModelKey* key, const Member& member, const std::vector<GivenAs>& given,
                   config::Problems& problems) {
  for (const GivenAs& other : given) {
    if (other.key != key) continue;
    if (to_json(other.member->value) != to_json(member.value)) {
      problems.error(member.key, member.line, fmt::format("is {} but {}, the same thing, is {}", to_json(member.value),
                                                          other.member->key, to_json(other.member->value)));
    }
    return true;
  }
  return false;
}

}  // namespace

ModelSpec load_model_spec(const std::string& file) {
  const config::Object document = config::parse_object(config::read_text(file, "model"), file);
  config::Problems problems(file);
  Shape shape;
  shape.spec.name = std::filesystem::path(file).stem().string();
  std::vector<GivenAs> given;
  for (const Member& member : document) {
    if (member.key.starts_with('_') || member.key.starts_with("//")) continue;
    if (const FixedKey* fixed = find_fixed_key(member.key)) {
      check_fixed(*fixed, member, problems);
    } else if (const ModelKey* key = find_model_key(member.key)) {
      if (member.value.is_null() || already_given(key, member, given, problems)) continue;
      given.push_back({key, &member});
      read_field(key->bind(shape), key->range, member.value, {member.key, member.line, problems});
    } else {
      problems.error(member.key, member.line, "unknown key" + suggestion(member.key));
    }
  }
  for (const ModelKey& key : model_keys()) {
    const bool found = std::any_of(given.begin(), given.end(), [&](const GivenAs& g) { return g.key == &key; });
    if (key.required && !found) {
      problems.error(key.name, 0, fmt::format("is missing (also known as {})", fmt::join(key.aliases, ", ")));
    }
  }
  problems.throw_errors();
  shape.spec.layernorm_epsilon = static_cast<float>(shape.epsilon);
  return shape.spec;
}

}  // namespace spillway
