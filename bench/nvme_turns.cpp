// The NVMe tier of this library as a contender of nvme_bench.py: tiles through the swap store, and whole steps of a trainer
// whose optimizer state is on disk.
//
//   nvme_turns FOLDER BYTES [BLOCK_BYTES DEPTH]    the tiles' swap file is that large; requests and queue: else the trainer's default
//
// It prints one JSON object of what it has, then answers each line of standard input by one:
//   read SECONDS, write SECONDS, mixed SECONDS   {"bytes", "seconds"}: tiles read, written, read and written back
//   restore                                      {}: all tiles are written, over what another has written there
//   alone                                        {"step_s", "update_s", "ring_bytes", "ring_s"}: see StepEngine::run_alone()
//   steps N                                      {"step_s": [...]}: of N steps in a row, from gate to gate
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "spillway/error.h"
#include "support/machine.h"
#include "support/step_engine.h"
#include "support/tile_traffic.h"

namespace spillway::bench {
namespace {

// A tile of the trainer at its default size: Adam's state of 4 Mi parameters.
constexpr std::int64_t kTileBytes = std::int64_t{12} * 4 * 1024 * 1024;

// Mostly two layers of 48 Mi parameters. One short sequence: the step is the optimizer's more than anyone's.
constexpr std::int64_t kTime = 16;
ModelSpec wide_model() {
  return {.name = "wide", .layers = 2, .channels = 2048, .heads = 16, .vocabulary = 256, .context = kTime};
}

class Contender {
 public:
  explicit Contender(const TileTrafficSetup& setup)
      : traffic_(setup), engine_({"nvme", 1, kTime, setup.folder, wide_model(), /*weights_on_device=*/true, aio_of(setup)}) {}

  std::string introduction() {
    const SwapPathHealth tiles = traffic_.health(), ring = engine_.engine().store()->health().front();
    return fmt::format(R"({{"tile_bytes": {}, "tiles_file": "{}", "tiles_begin": {}, "engine": "{}", "block_bytes": {}, "depth": {}, "parameters": {}, )"
                       R"("ring_depth": {}, "config": {}, "machine": {}}})",
                       kTileBytes, traffic_.file(), traffic_.begin(), tiles.engine, tiles.block_bytes, tiles.depth, engine_.parameters(), ring.depth,
                       engine_.config_json(), machine_json());
  }

  std::string turn(const std::string& request) {
    std::istringstream words(request);
    std::string name;
    double number = 0.0;
    words >> name >> number;
    if (name == "read") return json(traffic_.move(TilePattern::read, number));
    if (name == "write") return json(traffic_.move(TilePattern::write, number));
    if (name == "mixed") return json(traffic_.move(TilePattern::mixed, number));
    if (name == "restore") {
      traffic_.restore();
      return "{}";
    }
    if (name == "steps") return json(engine_.run(static_cast<int>(number)));
    if (name != "alone") throw Error("[bench] no turn is called '" + name + "'; there are read, write, mixed, restore, alone and steps");
    const StepAlone step = engine_.run_alone();
    return fmt::format(R"({{"step_s": {:.6f}, "update_s": {:.6f}, "ring_bytes": {}, "ring_s": {:.6f}}})", step.step_s, step.update_s, step.ring_bytes,
                       step.ring_s);
  }

 private:
  static std::string aio_of(const TileTrafficSetup& setup) {
    if (setup.block_bytes == 0) return "";
    return fmt::format(R"({{"block_size": {}, "queue_depth": {}}})", setup.block_bytes, setup.depth);
  }

  static std::string json(const Moved& moved) { return fmt::format(R"({{"bytes": {}, "seconds": {:.6f}}})", moved.bytes, moved.seconds); }

  static std::string json(const Turn& turn) {
    std::vector<double> seconds;
    for (const double ms : turn.step_ms) seconds.push_back(ms * 1e-3);
    return fmt::format(R"({{"step_s": [{:.6f}]}})", fmt::join(seconds, ", "));
  }

  TileTraffic traffic_;
  StepEngine engine_;
};

void serve(const TileTrafficSetup& setup) {
  Contender contender(setup);
  std::cout << contender.introduction() << std::endl;
  for (std::string line; std::getline(std::cin, line);) std::cout << contender.turn(line) << std::endl;
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  using namespace spillway::bench;
  TileTrafficSetup setup;
  if (argc == 3 || argc == 5) setup = {.folder = argv[1], .bytes = std::atoll(argv[2]), .tile_bytes = kTileBytes};
  if (argc == 5) {
    setup.block_bytes = std::atoll(argv[3]);
    setup.depth = std::atoi(argv[4]);
  }
  const bool usable = setup.bytes >= 16 * kTileBytes && (argc == 3 || (setup.block_bytes > 0 && setup.depth > 0));
  if (!usable) {
    std::fputs("usage: nvme_turns FOLDER BYTES [BLOCK_BYTES DEPTH]; at least 16 tiles of 48 MiB\n", stderr);
    return 2;
  }
  try {
    serve(setup);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nvme_turns: %s\n", error.what());
    return 1;
  }
}
