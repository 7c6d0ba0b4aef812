#include "cuda_sim/environment.h"

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "cuda_sim/violation.h"

namespace cuda_sim {

namespace {

template <class Number>
Number number(const char* variable, std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    violation("%s: '%.*s' is no number", variable, static_cast<int>(text.size()), text.data());
  }
  return value;
}

// Calls use(key, value) for each piece "key" or "key=value" between commas.
template <class Use>
void for_each_piece(const char* variable, Use use) {
  const char* const set = std::getenv(variable);
  std::string_view rest = set == nullptr ? "" : set;
  while (!rest.empty()) {
    const std::string_view piece = rest.substr(0, rest.find(','));
    rest.remove_prefix(piece.size() == rest.size() ? piece.size() : piece.size() + 1);
    const std::size_t equals = piece.find('=');
    const std::string_view value = equals == piece.npos ? std::string_view{} : piece.substr(equals + 1);
    if (!use(piece.substr(0, equals), value)) {
      violation("%s: '%.*s' is nothing it can be", variable, static_cast<int>(piece.size()), piece.data());
    }
  }
}

bool set_mode(Settings& settings, std::string_view key, std::string_view value) {
  if (key == "delay") {
    settings.delay_seed = number<std::uint64_t>("CUDA_SIM_MODE", value);
  } else if (key == "delay_us") {
    settings.max_delay_us = number<int>("CUDA_SIM_MODE", value);
  } else if (key == "lazy") {
    settings.lazy = true;
  } else if (key == "sync") {
    settings.sync = true;
  } else if (key == "protect") {
    settings.protect = true;
  } else if (key == "racecheck") {
    settings.racecheck = true;
  } else {
    return key == "threads";
  }
  return true;
}

bool set_order(Settings& settings, std::string_view key, std::string_view value) {
  if (key == "shuffled") {
    settings.order = ThreadOrder::shuffled;
    if (!value.empty()) settings.order_seed = number<std::uint64_t>("CUDA_SIM_ORDER", value);
  } else if (key == "reverse") {
    settings.order = ThreadOrder::reverse;
  } else {
    return key == "forward";
  }
  return true;
}

bool set_device(Settings& settings, std::string_view key, std::string_view value) {
  constexpr const char* kVariable = "CUDA_SIM_DEVICE";
  if (key == "count") {
    settings.devices = number<int>(kVariable, value);
  } else if (key == "memory") {
    settings.memory_bytes = number<std::int64_t>(kVariable, value);
  } else if (key == "driver_version") {
    settings.driver_version = number<int>(kVariable, value);
  } else if (key == "absent") {
    settings.driver = Driver::absent;
  } else if (key == "stub") {
    settings.driver = Driver::stub;
  } else if (key == "none") {
    settings.driver = Driver::no_device;
  } else {
    return false;
  }
  return settings.devices >= 1 && settings.devices <= kMaxDevices;
}

bool set_fault(Settings& settings, std::string_view key, std::string_view value) {
  constexpr const char* kVariable = "CUDA_SIM_FAULT";
  if (key == "allocation") {
    settings.fail_allocation_after = number<std::int64_t>(kVariable, value);
  } else if (key == "launch") {
    settings.fail_launch = number<std::int64_t>(kVariable, value);
  } else if (key == "pinning") {
    settings.refuse_pinning = true;
  } else {
    return false;
  }
  return true;
}

}  // namespace

Settings settings_of_environment() {
  Settings settings;
  for_each_piece("CUDA_SIM_MODE", [&](auto key, auto value) { return set_mode(settings, key, value); });
  for_each_piece("CUDA_SIM_ORDER", [&](auto key, auto value) { return set_order(settings, key, value); });
  for_each_piece("CUDA_SIM_DEVICE", [&](auto key, auto value) { return set_device(settings, key, value); });
  for_each_piece("CUDA_SIM_FAULT", [&](auto key, auto value) { return set_fault(settings, key, value); });
  return settings;
}

}  // namespace cuda_sim
