// A profile: the rates of a machine as a JSON file.
#include <algorithm>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "spillway/cost.h"
#include "spillway/error.h"

namespace spillway {

namespace {

// The lists of fields: name, where it is, and whether 0 means something.
template <class Rates, class Visit>
void for_each_rate(Rates& rates, Visit visit) {
  visit("matmul_flops", rates.matmul_flops, false);
  visit("device_bytes", rates.device_bytes, false);
  visit("h2d_bytes", rates.h2d_bytes, false);
  visit("d2h_bytes", rates.d2h_bytes, false);
  visit("cpu_adam_bytes", rates.cpu_adam_bytes, false);
  visit("nvme_read_bytes", rates.nvme_read_bytes, false);
  visit("nvme_write_bytes", rates.nvme_write_bytes, false);
  visit("nvme_mixed_bytes", rates.nvme_mixed_bytes, false);
  visit("nvme_latency_s", rates.nvme_latency_s, true);
  visit("comm_bytes", rates.comm_bytes, false);
  visit("comm_latency_s", rates.comm_latency_s, true);
  visit("network_bytes", rates.network_bytes, true);
  visit("network_latency_s", rates.network_latency_s, true);
  visit("task_overhead_s", rates.task_overhead_s, true);
}

template <class Rates, class Visit>
void for_each_count(Rates& rates, Visit visit) {
  visit("cores", rates.cores, false);
  visit("ranks_per_node", rates.ranks_per_node, true);
}

nlohmann::json parse_profile(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw ConfigError(fmt::format("[profile] read {}: cannot open it; check spillway.profile, or remove the key to measure at start", file));
  std::stringstream text;
  text << in.rdbuf();
  nlohmann::json json = nlohmann::json::parse(text.str(), nullptr, false);
  if (!json.is_object()) throw ConfigError(fmt::format("[profile] read {}: it is not a JSON object of rates", file));
  return json;
}

}  // namespace

MachineRates load_rates(const std::string& file) {
  const nlohmann::json json = parse_profile(file);
  MachineRates rates;
  std::vector<std::string_view> names;
  // Hands a field that is there to `take`, which says whether it is what the field must be.
  const auto read = [&](std::string_view name, const std::string& allowed, auto take) {
    names.push_back(name);
    const auto it = json.find(std::string(name));
    if (it == json.end() || take(*it)) return;
    throw ConfigError(fmt::format("[profile] {} in {} is {}; it must be {}", name, file, it->dump(), allowed));
  };
  for_each_rate(rates, [&](std::string_view name, double& value, bool zero_allowed) {
    read(name, zero_allowed ? "a number of at least 0" : "a number above 0", [&](const nlohmann::json& given) {
      if (!given.is_number()) return false;
      value = given.get<double>();
      return zero_allowed ? value >= 0.0 : value > 0.0;
    });
  });
  for_each_count(rates, [&](std::string_view name, int& value, bool zero_allowed) {
    read(name, fmt::format("a whole number of at least {}", zero_allowed ? 0 : 1), [&](const nlohmann::json& given) {
      if (!given.is_number_integer()) return false;
      value = given.get<int>();
      return value >= (zero_allowed ? 0 : 1);
    });
  });
  read("device_shares_cores", "true or false", [&](const nlohmann::json& given) {
    if (given.is_boolean()) rates.device_shares_cores = given.get<bool>();
    return given.is_boolean();
  });
  for (const auto& [key, value] : json.items()) {
    if (key.starts_with('_')) continue;  // a note, as in model files
    if (std::find(names.begin(), names.end(), key) == names.end()) throw ConfigError(fmt::format("[profile] {} has an unknown field \"{}\"{}", file, key, did_you_mean(key, names)));
  }
  return rates;
}

std::string rates_json(const MachineRates& rates) {
  nlohmann::ordered_json json;
  for_each_rate(rates, [&](std::string_view name, double value, bool) { json[std::string(name)] = value; });
  for_each_count(rates, [&](std::string_view name, int value, bool) { json[std::string(name)] = value; });
  json["device_shares_cores"] = rates.device_shares_cores;
  return json.dump(2);
}

}  // namespace spillway
