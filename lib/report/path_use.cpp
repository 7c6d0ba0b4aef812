#include "report/path_use.h"

#include <nlohmann/json.hpp>

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

Json latency_json(const IoLatency& latency) {
  return {{"requests", latency.count}, {"p50_ms", latency.p50_s * 1e3}, {"p99_ms", latency.p99_s * 1e3}, {"max_ms", latency.max_s * 1e3}};
}

}  // namespace

std::string to_text(const SwapPathHealth& path, bool facts) {
  Json json = {{"path", path.folder}};
  if (facts) {
    json.update({{"file_system", path.file_system},
                 {"engine", path.engine},
                 {"buffered", path.buffered},
                 {"depth", path.depth},
                 {"block_bytes", path.block_bytes},
                 {"file_bytes", path.file_bytes}});
  }
  json.update({{"bytes_per_s", path.bytes_per_s()},
               {"busy_ms", path.busy_s * 1e3},
               {"read_bytes", path.read_bytes},
               {"write_bytes", path.write_bytes},
               {"reads", latency_json(path.read_latency)},
               {"writes", latency_json(path.write_latency)},
               {"retries", path.retries},
               {"checksum_failures", path.checksum_failures}});
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace spillway
