#include "checkpoint/session.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "base/log.h"
#include "checkpoint/catalog.h"
#include "spillway/error.h"

namespace spillway::checkpoint {

namespace {

// Runs an action and returns what it fails with.
template <class Action>
std::string error_of(Action action) {
  try {
    action();
    return {};
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string file_name(int rank, int size) { return fmt::format("state-{:05}-of-{:05}.safetensors", rank + 1, size); }

}  // namespace

Agreement agree(Communicator& communicator, const std::string& text, const std::string& error) {
  Agreement agreement;
  agreement.texts = communicator.exchange(error.empty() ? "+" + text : "-" + error);
  for (std::size_t rank = 0; rank < agreement.texts.size(); ++rank) {
    std::string& said = agreement.texts[rank];
    const bool failed = !said.starts_with('+');
    if (!said.empty()) said.erase(0, 1);
    if (failed && agreement.error.empty()) {
      agreement.error = agreement.texts.size() == 1 ? said : fmt::format("{} (on rank {})", said, rank);
    }
  }
  return agreement;
}

Session::Session(Communicator& communicator, const WriterOptions& options, const RankLayout& layout, const Totals& totals,
                 std::span<std::byte> buffer, const RunState& run)
    : communicator_(communicator),
      options_(options),
      layout_(layout),
      totals_(totals),
      run_(run),
      target_(options.root + "/" + folder_name(run.step)) {
  std::string name;
  if (communicator.rank() == 0) {
    error_ = error_of([&] {
      reserve();
      name = name_in_parent(folder_->path());
    });
  }
  const Agreement agreement = agree(communicator, name, error_);
  error_ = agreement.error;
  if (failed()) return;
  started_ = true;
  const std::string path = options.root + "/" + agreement.texts[0] + "/" + file_name(communicator.rank(), communicator.size());
  error_ = error_of([&] { file_.emplace(layout, path, buffer); });
  buffered_ = file_ && file_->buffered();
}

// Makes the folder. Space is looked up before the first byte is written, and taken for the manifest as RankFile takes it
// for the rest, so that a disk which others fill meanwhile does no harm.
void Session::reserve() {
  // A piece takes less than four times as much of the manifest as of its file's header.
  const auto without_pieces = static_cast<std::int64_t>(to_json(manifest_of_ranks({})).size());
  const std::int64_t manifest_bytes = without_pieces + 4 * totals_.header_bytes + 256 * communicator_.size();
  constexpr std::int64_t kRoundingBytes = 8192;  // of a file, to blocks
  const std::int64_t needed = totals_.file_bytes + manifest_bytes + kRoundingBytes * (communicator_.size() + 1);
  require_space(fmt::format("save step {} under {}", run_.step, options_.root), options_.root, needed);
  folder_.emplace(target_);
  reserve_file(manifest_path(), manifest_bytes);
}

std::string Session::manifest_path() const { return fmt::format("{}/{}", folder_->path(), kManifestName); }

void Session::add(std::size_t item, std::span<const std::byte> bytes) {
  if (failed()) return;
  error_ = error_of([&] { file_->add(item, bytes); });
  if (failed()) file_.reset();
}

SaveResult Session::failure(const std::string& error) {
  file_.reset();
  folder_.reset();
  SaveResult result;
  result.folder = target_;
  result.step = run_.step;
  result.error = error;
  return result;
}

SaveResult Session::commit() {
  if (!started_) return failure(error_);
  std::string contribution;
  if (!failed()) error_ = error_of([&] { contribution = to_text(file_->finish()); });
  file_.reset();
  const Agreement written = agree(communicator_, contribution, error_);
  if (!written.error.empty()) return failure(written.error);

  // Every rank puts the manifest together, so that all know the hash; rank 0 writes it.
  const Manifest manifest = manifest_of_ranks(written.texts);
  if (communicator_.rank() == 0) error_ = error_of([&] { publish(manifest); });
  const Agreement published = agree(communicator_, "", error_);
  if (!published.error.empty()) return failure(published.error);
  folder_.reset();
  if (communicator_.rank() == 0) {
    // The save has succeeded, whatever comes of this.
    const std::string kept = error_of([&] { prune(options_.root, options_.keep, target_); });
    if (!kept.empty()) log_warning(fmt::format("{} (old checkpoints stay)", kept));
  }

  SaveResult result;
  result.folder = target_;
  result.step = run_.step;
  result.bytes = totals_.file_bytes;
  result.state_hash = manifest.state_hash;
  return result;
}

Manifest Session::manifest_of_ranks(const std::vector<std::string>& contributions) const {
  Manifest manifest;
  manifest.model = options_.model;
  manifest.dtype = options_.dtype;
  manifest.state = options_.state;
  manifest.run = run_;
  for (const TensorInfo& tensor : options_.tensors) manifest.tensors.push_back({tensor, {}});
  for (std::size_t rank = 0; rank < contributions.size(); ++rank) {
    Contribution part = parse_contribution(contributions[rank], manifest.tensors.size());
    manifest.files.push_back({file_name(static_cast<int>(rank), communicator_.size()), part.file_bytes});
    for (Piece& piece : part.pieces) {
      piece.file = rank;
      manifest.pieces.push_back(piece);
    }
    for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
      for (std::size_t s = 0; s < part.hashes[t].size(); ++s) manifest.tensors[t].hashes[s] += part.hashes[t][s];
    }
  }
  manifest.state_hash = state_hash_of(manifest.tensors, run_.applied_steps);
  return manifest;
}

void Session::publish(const Manifest& manifest) {
  Manifest sorted = manifest;
  // Our own mistake; better found now than when the run has died and the state is needed.
  if (const std::string wrong = sort_and_check_coverage(sorted); !wrong.empty()) {
    throw IoError(fmt::format("[checkpoint] save step {}: {}; the ranks' parts do not make up the model, report this", run_.step, wrong));
  }
  write_durably(manifest_path(), to_json(sorted));
  put_in_place(manifest.state_hash);
}

// Usually nothing has the name. A run that went on from an earlier checkpoint may come by here again.
void Session::put_in_place(std::uint64_t state_hash) {
  if (folder_->publish(false)) return;
  const std::string flaw = flaw_of(target_);
  if (flaw.empty()) {
    const std::string refused = error_of([&] { folder_->publish(true); });
    // A file system that cannot swap two folders: the old one will do if it says the same.
    if (!refused.empty() && state_hash_at(target_) != state_hash) throw IoError(refused);
    return;
  }
  if (!std::filesystem::exists(fmt::format("{}/{}", target_, kManifestName))) {
    throw IoError(fmt::format("[checkpoint] save step {}: {} is there and is no checkpoint; move it away", run_.step, target_));
  }
  const std::string aside = fmt::format("{}/damaged-{}-{}", options_.root, folder_name(run_.step), unique_suffix());
  if (std::rename(target_.c_str(), aside.c_str()) != 0) throw_system_error("rename the damaged checkpoint", target_, errno);
  log_warning(fmt::format("[checkpoint] {} is damaged and was renamed to {}: {}", target_, aside, flaw));
  if (!folder_->publish(false)) throw_system_error("rename the finished folder to", target_, EEXIST);
}

}  // namespace spillway::checkpoint
