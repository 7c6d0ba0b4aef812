// When and where a run saves, and what becomes of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/options.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "runtime/engine.h"
#include "spillway/communicator.h"
#include "spillway/model.h"

namespace spillway::app {

// The tensors of a model, as a checkpoint lists them.
std::vector<checkpoint::TensorInfo> tensors_of(const std::vector<std::unique_ptr<Layer>>& layers);

// The checkpoint that a path means: itself, or the newest complete one in the folder it is. `attempt` ("resume from")
// begins the text of the IoError thrown where there is none.
std::string checkpoint_at(const std::string& path, const std::string& attempt);

// The checkpoint that --resume means: a folder of one, the newest under a folder of several or, for "auto", under --out;
// empty: a fresh start. Throws ConfigError or IoError.
std::string checkpoint_to_resume(const TrainOptions& options);

// Every member but poll() is collective.
class Checkpoints {
 public:
  // Saves to the run's --out; borrows the engine.
  Checkpoints(const TrainOptions& options, World& world, Engine& engine, const Config& config, const ModelSpec& spec,
              std::vector<checkpoint::TensorInfo> tensors);

  bool due(std::int64_t step) const { return options_.save_every > 0 && step % options_.save_every == 0; }
  std::int64_t last_begun() const { return last_begun_; }

  // Saves the state as it is now while the coming step runs. The save before has been finished.
  void begin(const checkpoint::RunState& run);

  // Saves the state as it is now, and waits for that: between steps.
  checkpoint::SaveResult save_now(const checkpoint::RunState& run);

  // The result of a save that has ended by now.
  std::optional<checkpoint::SaveResult> poll();

  // Waits for the save that is going on, if one is.
  std::optional<checkpoint::SaveResult> finish();

 private:
  const TrainOptions& options_;
  Engine& engine_;
  checkpoint::Writer writer_;
  std::int64_t last_begun_ = -1;
};

}  // namespace spillway::app
