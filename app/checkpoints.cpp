#include "app/checkpoints.h"

#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/folders.h"
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

namespace {

std::optional<std::string> newest_under(const std::string& root) {
  const checkpoint::Found found = checkpoint::find_newest(root);
  for (const std::string& note : found.notes) log_warning(note);
  return found.folder;
}

// A fresh run must not prune what another has saved, nor be taken for it when it is resumed.
void refuse_to_mix(const std::string& out) {
  if (out.empty()) return;
  const std::optional<std::string> newest = newest_under(out);
  if (!newest) return;
  throw ConfigError(fmt::format("--out '{}' holds the checkpoints of another run, the newest is '{}'; --resume auto goes on from there, "
                                "a fresh start needs an --out of its own",
                                out, *newest));
}

}  // namespace

std::string checkpoint_at(const std::string& path, const std::string& attempt) {
  // One that is damaged is not passed over in silence: opening it says what is wrong.
  if (std::filesystem::exists(std::filesystem::path(path) / checkpoint::kManifestName) || checkpoint::step_of(std::filesystem::path(path).filename().string())) return path;
  if (const std::optional<std::string> newest = newest_under(path)) return *newest;
  throw IoError(fmt::format("[checkpoint] {} '{}': neither a checkpoint (it has no {}) nor a folder with a complete one; "
                            "name a step-NNNNNNNN folder, or the --out of the run that saved",
                            attempt, path, checkpoint::kManifestName));
}

std::string checkpoint_to_resume(const TrainOptions& options) {
  if (options.resume.empty()) {
    refuse_to_mix(options.out);
    return {};
  }
  if (options.resume != "auto") return checkpoint_at(options.resume, "resume from");
  if (options.out.empty()) {
    throw ConfigError("--resume auto looks for checkpoints under --out, and there is no --out; add it, or name a checkpoint: --resume DIR");
  }
  if (const std::optional<std::string> newest = newest_under(options.out)) return *newest;
  log_info(fmt::format("--resume auto: no complete checkpoint under '{}'; starting afresh", options.out));
  return {};
}

Checkpoints::Checkpoints(const TrainOptions& options, World& world, Engine& engine, const Config& config, const ModelSpec& spec,
                         std::vector<checkpoint::TensorInfo> tensors)
    : options_(options),
      engine_(engine),
      writer_({options.out, spec, config.dtype, config.optimizer.state, std::move(tensors), options.keep}, world.communicator(),
              {engine.snapshot_items().begin(), engine.snapshot_items().end()}, engine.snapshot_memory()) {}

void Checkpoints::begin(const checkpoint::RunState& run) {
  last_begun_ = run.step;
  writer_.begin(run);
  engine_.snapshot_in_next_step(writer_);
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
