#include <nlohmann/json.hpp>

#include "report/rank_record.h"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const TierBytes& bytes) { return {{"device", bytes.device}, {"host", bytes.host}, {"nvme", bytes.nvme}}; }

TierBytes tier_bytes(const Json& json) {
  return {json.at("device").get<std::int64_t>(), json.at("host").get<std::int64_t>(), json.at("nvme").get<std::int64_t>()};
}

}  // namespace

std::string to_text(const RankRecord& r) {
  const Json json = {{"rank", r.rank},
                     {"host", r.host},
                     {"peak_bytes", to_json(r.peak)},
                     {"planned_bytes", to_json(r.planned)},
                     {"rss_peak", r.rss_peak},
                     {"sent_bytes", r.sent_bytes}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

RankRecord rank_record_of(const std::string& text) {
  const Json json = Json::parse(text);
  return {json.at("rank").get<int>(),      json.at("host").get<std::string>(),      tier_bytes(json.at("peak_bytes")),
          tier_bytes(json.at("planned_bytes")), json.at("rss_peak").get<std::int64_t>(), json.at("sent_bytes").get<std::int64_t>()};
}

}  // namespace spillway
