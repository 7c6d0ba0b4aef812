#include "config/nvme_folders.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "spillway/config.h"

namespace spillway {

namespace {

// A slash at the end is an empty last component, which is dropped.
std::filesystem::path real_path(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::weakly_canonical(std::filesystem::absolute(folder, error), error);
  if (error) path = std::filesystem::path(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

namespace config {

std::size_t position_of_folder(std::span<const std::string> folders, const std::string& folder) {
  const std::filesystem::path path = real_path(folder);
  const auto found = std::find_if(folders.begin(), folders.end(), [&](const std::string& other) { return other == folder || real_path(other) == path; });
  return static_cast<std::size_t>(found - folders.begin());
}

}  // namespace config

NvmeFolders nvme_folders(const Config& config) {
  NvmeFolders folders;
  const auto indices_of = [&](OffloadDevice device, const std::vector<std::string>& paths) {
    std::vector<int> indices;
    if (device != OffloadDevice::nvme) return indices;
    for (const std::string& path : paths) {
      const std::size_t index = config::position_of_folder(folders.paths, path);
      if (index == folders.paths.size()) folders.paths.push_back(path);
      indices.push_back(static_cast<int>(index));
    }
    return indices;
  };
  folders.weights = indices_of(config.offload_param.device, config.offload_param.nvme_paths);
  folders.optimizer_state = indices_of(config.offload_optimizer.device, config.offload_optimizer.nvme_paths);
  folders.gradients = indices_of(config.spillway.offload_gradients, config.spillway.nvme_paths);
  folders.activations = indices_of(config.offload_activations, config.spillway.nvme_paths);
  return folders;
}

}  // namespace spillway
