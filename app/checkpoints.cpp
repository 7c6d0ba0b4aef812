#include "app/checkpoints.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/manifest.h"
#include "spillway/error.h"

namespace spillway::app {

std::vector<checkpoint::TensorInfo> tensors_of(const std::vector<std::unique_ptr<Layer>>& layers) {
  std::vector<checkpoint::TensorInfo> tensors;
  for (const auto& layer : layers) {
    for (const ParamSpec& param : layer->params()) tensors.push_back({param.name, param.shape, !param.trainable});
  }
  return tensors;
}

std::string checkpoint_to_resume(const TrainOptions& options) {
  if (options.resume.empty()) return {};
  const bool automatic = options.resume == "auto";
  if (automatic && options.out.empty()) {
    throw ConfigError("--resume auto looks for checkpoints under --out, and there is no --out; add it, or name a checkpoint: --resume DIR");
  }
  const std::string root = automatic ? options.out : options.resume;
  if (!automatic && std::filesystem::exists(std::filesystem::path(root) / checkpoint::kManifestName)) return root;
  const checkpoint::Found found = checkpoint::find_newest(root);
  for (const std::string& note : found.notes) log_warning(note);
  if (found.folder) return *found.folder;
  if (automatic) {
    log_info(fmt::format("--resume auto: no complete checkpoint under '{}'; starting afresh", root));
    return {};
  }
  throw IoError(fmt::format("[checkpoint] resume from '{}': neither a checkpoint (it has no {}) nor a folder with a complete one; "
                            "name a step-NNNNNNNN folder, or the --out of the run that saved",
                            root, checkpoint::kManifestName));
}

Checkpoints::Checkpoints(const TrainOptions& options, World& world, Engine& engine, const Config& config, const ModelSpec& spec,
                         std::vector<checkpoint::TensorInfo> tensors)
    : options_(options),
      engine_(engine),
      writer_({options.out, spec, config.dtype, std::move(tensors), options.keep}, world.communicator(),
              {engine.snapshot_items().begin(), engine.snapshot_items().end()}, engine.snapshot_memory()) {}

std::optional<checkpoint::SaveResult> Checkpoints::begin(const checkpoint::RunState& run) {
  std::optional<checkpoint::SaveResult> before = finish();
  last_begun_ = run.step;
  writer_.begin(run);
  engine_.snapshot_in_next_step(writer_);
  return before;
}

checkpoint::SaveResult Checkpoints::save_now(const checkpoint::RunState& run) {
  last_begun_ = run.step;
  writer_.begin(run);
  engine_.snapshot(writer_);
  return writer_.finish();
}

std::optional<checkpoint::SaveResult> Checkpoints::poll() {
  return writer_.busy() ? writer_.poll() : std::nullopt;
}

std::optional<checkpoint::SaveResult> Checkpoints::finish() {
  if (!writer_.busy()) return std::nullopt;
  return writer_.finish();
}

}  // namespace spillway::app
