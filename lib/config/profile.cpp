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

// The one list of fields: name and where it is.
template <class Rates, class Visit>
void for_each_rate(Rates& rates, Visit visit) {
  visit("matmul_flops", rates.matmul_flops);
  visit("device_bytes", rates.device_bytes);
  visit("h2d_bytes", rates.h2d_bytes);
  visit("d2h_bytes", rates.d2h_bytes);
  visit("cpu_adam_bytes", rates.cpu_adam_bytes);
  visit("nvme_read_bytes", rates.nvme_read_bytes);
  visit("nvme_write_bytes", rates.nvme_write_bytes);
  visit("nvme_mixed_bytes", rates.nvme_mixed_bytes);
  visit("nvme_latency_s", rates.nvme_latency_s);
  visit("comm_bytes", rates.comm_bytes);
  visit("comm_latency_s", rates.comm_latency_s);
  visit("task_overhead_s", rates.task_overhead_s);
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
  std::vector<std::string_view> names = {"cores", "device_shares_cores"};
  for_each_rate(rates, [&](std::string_view name, double& value) {
    names.push_back(name);
    const auto it = json.find(std::string(name));
    if (it == json.end()) return;
    if (!it->is_number() || it->get<double>() < 0.0) throw ConfigError(fmt::format("[profile] {} in {} is {}; it must be a number of at least 0", name, file, it->dump()));
    value = it->get<double>();
  });
  for (const auto& [key, value] : json.items()) {
    if (std::find(names.begin(), names.end(), key) == names.end()) throw ConfigError(fmt::format("[profile] {} has an unknown field \"{}\"{}", file, key, did_you_mean(key, names)));
  }
  if (const auto it = json.find("cores"); it != json.end()) {
    if (!it->is_number_integer() || it->get<int>() < 1) throw ConfigError(fmt::format("[profile] cores in {} is {}; it must be a whole number of at least 1", file, it->dump()));
    rates.cores = it->get<int>();
  }
  if (const auto it = json.find("device_shares_cores"); it != json.end()) {
    if (!it->is_boolean()) throw ConfigError(fmt::format("[profile] device_shares_cores in {} is {}; it must be true or false", file, it->dump()));
    rates.device_shares_cores = it->get<bool>();
  }
  return rates;
}

std::string rates_json(const MachineRates& rates) {
  nlohmann::ordered_json json;
  for_each_rate(rates, [&](std::string_view name, double value) { json[std::string(name)] = value; });
  json["cores"] = rates.cores;
  json["device_shares_cores"] = rates.device_shares_cores;
  return json.dump(2);
}

}  // namespace spillway
