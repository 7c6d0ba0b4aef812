// What metrics and summary hold of each path of the NVMe tier.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "report/path_use.h"

namespace spillway {
namespace {

using Json = nlohmann::json;

SwapPathHealth path_health() {
  SwapPathHealth path;
  path.folder = "/mnt/a";
  path.file_system = "ext4";
  path.engine = "io_uring";
  path.depth = 16;
  path.block_bytes = 1 << 20;
  path.file_bytes = 8192;
  path.read_bytes = 300;
  path.write_bytes = 100;
  path.busy_s = 0.5;
  path.read_latency = {3, 0.25e-3, 1e-3, 2e-3};
  path.retries = 4;
  path.checksum_failures = 1;
  return path;
}

TEST(PathUse, HoldsEveryField) {
  const Json json = Json::parse(to_text(path_health(), true));
  EXPECT_EQ(json, Json::parse(R"({"path": "/mnt/a", "file_system": "ext4", "engine": "io_uring", "buffered": false, "depth": 16, "block_bytes": 1048576,
      "file_bytes": 8192, "bytes_per_s": 800.0, "busy_ms": 500.0, "read_bytes": 300, "write_bytes": 100,
      "reads": {"requests": 3, "p50_ms": 0.25, "p99_ms": 1.0, "max_ms": 2.0},
      "writes": {"requests": 0, "p50_ms": 0.0, "p99_ms": 0.0, "max_ms": 0.0}, "retries": 4, "checksum_failures": 1})"));
}

TEST(PathUse, OfAStepLeavesOutWhatDoesNotChange) {
  const Json json = Json::parse(to_text(path_health(), false));
  for (const char* fact : {"file_system", "engine", "buffered", "depth", "block_bytes", "file_bytes"}) EXPECT_FALSE(json.contains(fact)) << fact;
  EXPECT_EQ(json["path"], "/mnt/a");
  EXPECT_EQ(json["bytes_per_s"], 800.0);
}

TEST(PathUse, StaysJsonWhateverTheFolderIsCalled) {
  SwapPathHealth path = path_health();
  path.folder = "/mnt/\xff\"";
  EXPECT_EQ(Json::parse(to_text(path, false))["path"], "/mnt/\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace spillway
