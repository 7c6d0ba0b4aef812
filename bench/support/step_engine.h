// Engines for step benchmarks: gpt2-10m in one placement, and turns of a few steps whose times are taken
// from gate to gate.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine.h"

namespace spillway::bench {

struct StepSetup {
  std::string_view offload;  // "none", "cpu", "nvme": of weights and optimizer state alike
  std::int64_t micro_batch;
  std::int64_t time;         // tokens of a sequence
  std::string folder;        // of the swap file
};

// What some steps in a row took. The first step after a pause is left out: it has no step before it to
// overlap with.
struct Turn {
  std::vector<double> step_ms;
  double bytes_per_step = 0.0;  // read and written on NVMe
};

class StepEngine {
 public:
  explicit StepEngine(const StepSetup& setup);

  // Runs one step that is not timed and `steps` that are, then drains.
  Turn run(int steps);

  Engine& engine() { return *engine_; }
  // The configuration as JSON, as a user would write it.
  const std::string& config_json() const { return config_json_; }
  double predicted_ms() const { return engine_->prediction().step_s * 1e3; }

 private:
  void fill_batch();

  std::string config_json_;
  Config config_;
  std::int64_t vocabulary_;
  std::unique_ptr<Engine> engine_;
  std::uint64_t step_ = 0;
};

}  // namespace spillway::bench
