// Engines for step benchmarks: a model in one placement, and turns of a few steps whose times are taken
// from gate to gate, or of one step by itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine.h"
#include "spillway/model.h"

namespace spillway::bench {

struct StepSetup {
  std::string_view offload;  // "none", "cpu", "nvme": of weights and optimizer state alike
  std::int64_t micro_batch;
  std::int64_t time;         // tokens of a sequence
  std::string folder;        // of the swap file
  ModelSpec model = model_preset("gpt2-10m");
  bool weights_on_device = false;  // `offload` is then of optimizer state alone
  std::string aio = {};            // section of the configuration; empty: none
};

// What some steps in a row took. The first step after a pause is left out: it has no step before it to
// overlap with.
struct Turn {
  std::vector<double> step_ms;
  double bytes_per_step = 0.0;  // read and written on NVMe
};

// What one step took that had the machine to itself, from start to drained.
struct StepAlone {
  double step_s = 0.0;    // from its first task's start to its last one's end
  double update_s = 0.0;  // from the end of its gate, so of the optimizer alone
  // Of the ring of optimizer tiles, from the end of the gate to that of the last write: bytes of tiles that were read, but for
  // what had been read before, and written.
  double ring_s = 0.0;
  std::int64_t ring_bytes = 0;
};

class StepEngine {
 public:
  explicit StepEngine(const StepSetup& setup);

  // Runs one step that is not timed and `steps` that are, then drains.
  Turn run(int steps);

  StepAlone run_alone();

  Engine& engine() { return *engine_; }
  // The configuration as JSON, as a user would write it.
  const std::string& config_json() const { return config_json_; }
  std::int64_t parameters() const;
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
