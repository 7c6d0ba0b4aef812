// Every configuration key that Spillway knows, as data: what it means here, and which slot it fills. To add a
// key, add its line to the list in key_table.cpp; reading, reporting, writing and suggestions follow.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "config/field.h"
#include "config/settings.h"

namespace spillway::config {

enum class Effect : std::uint8_t {
  section,    // an object whose members are keys of their own
  used,       // bound to a slot
  no_effect,  // accepted; `note` says why nothing changes
  refused,    // only its default, or a value that switches it off, is accepted; `note` says why
};

// Type of a key without a slot.
enum class Kind : std::uint8_t { boolean, number, string, any };

struct Key {
  std::string_view path;     // canonical: "zero_optimization.offload_optimizer.device"
  Effect effect;
  Kind kind = Kind::any;
  std::string_view default_value = {};  // as JSON; of keys without a slot
  std::string_view note = {};
  std::string_view alias = {};  // another name in the same section; empty: none
  Range range = {};
  Field (*bind)(Settings& settings) = nullptr;

  std::string_view section() const {
    const std::size_t dot = path.rfind('.');
    return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
  }
  std::string_view name() const {
    const std::size_t dot = path.rfind('.');
    return dot == std::string_view::npos ? path : path.substr(dot + 1);
  }
};

std::span<const Key> key_table();

// The key called `name` (or by that alias) in `section` ("" is the top level); nullptr if there is none.
const Key* find_key(std::string_view section, std::string_view name);

// Names and aliases of the keys of a section.
std::vector<std::string_view> key_names(std::string_view section);

}  // namespace spillway::config
