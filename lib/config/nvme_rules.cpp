#include "config/nvme_rules.h"

#include <fmt/format.h>

namespace spillway::config {

namespace {

constexpr std::int64_t kPage = 4096;
constexpr std::string_view kActivations = "spillway.offload_activations", kGradients = "spillway.offload_gradients", kOwnFolders = "spillway.nvme_path";

class NvmeResolver {
 public:
  NvmeResolver(Settings& settings, Provenance& provenance, Problems& problems)
      : settings_(settings), config_(settings.config), provenance_(provenance), problems_(problems) {}

  void run() {
    section_folders("zero_optimization.offload_param.nvme_path", config_.offload_param, settings_.param_nvme_paths);
    section_folders("zero_optimization.offload_optimizer.nvme_path", config_.offload_optimizer, settings_.optimizer_nvme_paths);
    activations();
    gradients();
    own_folders();
    aio();
  }

 private:
  void error(std::string_view path, std::string_view text) { problems_.error(path, provenance_.line(path), text); }
  void warning(std::string_view path, std::string_view text) { problems_.warning(path, provenance_.line(path), text); }

  void section_folders(std::string_view key, OffloadConfig& offload, std::vector<std::string>& folders) {
    if (offload.device != OffloadDevice::nvme) {
      folders.clear();
    } else if (folders.empty()) {
      error(key, "device nvme needs a folder on the disk to swap to; set nvme_path, for example to \"/local_nvme\"");
    }
    offload.nvme_paths = folders;
  }

  void activations() {
    if (!settings_.cpu_checkpointing) return;
    if (!provenance_.is_set(kActivations)) {
      config_.offload_activations = OffloadDevice::cpu;
      provenance_.mark_derived(kActivations);
    } else if (config_.offload_activations == OffloadDevice::none) {
      error(kActivations, "\"none\" keeps activation checkpoints on the device, and activation_checkpointing.cpu_checkpointing is true; keep one of the two");
    }
  }

  void gradients() {
    OffloadDevice& device = config_.spillway.offload_gradients;
    if (device != OffloadDevice::nvme || config_.offload_optimizer.device != OffloadDevice::none) return;
    warning(kGradients, "the optimizer runs on the device here, beside its gradients, so none of them waits elsewhere; gradients move with "
                        "zero_optimization.offload_optimizer");
    device = OffloadDevice::cpu;
  }

  void own_folders() {
    std::vector<std::string>& folders = config_.spillway.nvme_paths;
    const bool activations = config_.offload_activations == OffloadDevice::nvme;
    if (!activations && config_.spillway.offload_gradients != OffloadDevice::nvme) return folders.clear();
    if (!folders.empty()) return;
    folders = nvme_folders(config_).paths;
    provenance_.mark_derived(kOwnFolders);
    if (!folders.empty()) return;
    error(kOwnFolders, fmt::format("{} is \"nvme\" and needs a folder on the disk, and no offload section names one; set {}, for example to \"/local_nvme\"",
                                   activations ? kActivations : kGradients, kOwnFolders));
  }

  void aio() {
    if (std::optional<std::int64_t>& block = config_.aio.block_size; block && *block % kPage != 0) {
      const std::int64_t rounded = (*block + kPage - 1) / kPage * kPage;
      warning("aio.block_size", fmt::format("{} is not a whole number of pages of {} bytes, as direct I/O needs it; using {}", *block, kPage, rounded));
      block = rounded;
    }
    if (!settings_.use_gds) return;
    warning("aio.use_gds", "taken as false: state is read to pinned host memory, where the optimizer updates it, and a path from the disk straight to the GPU "
                           "would pass that by; weights take the same way, through one more copy that overlaps compute");
    settings_.use_gds = false;
  }

  Settings& settings_;
  Config& config_;
  Provenance& provenance_;
  Problems& problems_;
};

}  // namespace

void resolve_nvme(Settings& settings, Provenance& provenance, Problems& problems) { NvmeResolver(settings, provenance, problems).run(); }

}  // namespace spillway::config
