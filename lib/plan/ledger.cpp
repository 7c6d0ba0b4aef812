// The ledger and the refusal, as text.
#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "spillway/plan.h"
#include "zero/partition.h"

namespace spillway {

namespace {

std::string verdict(const TierUse& use) {
  if (!use.budget) return "no limit";
  if (use.fits()) return fmt::format("budget {}, {} left", human_bytes(*use.budget), human_bytes(*use.budget - use.peak));
  return fmt::format("budget {} ({} B): {} B too small", human_bytes(*use.budget), *use.budget, use.peak - *use.budget);
}

struct Change {
  std::string text;  // what the user writes
  std::function<bool(PlanRequest&)> apply;  // false: makes no difference here
};

std::vector<Change> possible_changes() {
  std::vector<Change> changes;
  const auto lower_optimizer = [](OffloadDevice device) {
    return [device](PlanRequest& r) {
      if (r.offload_optimizer >= device) return false;
      r.offload_optimizer = device;
      r.offload_optimizer_ratio = 1.0;
      return true;
    };
  };
  const auto lower_param = [](OffloadDevice device) {
    return [device](PlanRequest& r) {
      if (r.offload_param >= device) return false;
      r.offload_param = device;
      r.offload_param_ratio = 1.0;
      return true;
    };
  };
  changes.push_back({"zero_optimization.offload_optimizer.device: \"cpu\"", lower_optimizer(OffloadDevice::cpu)});
  changes.push_back({"zero_optimization.offload_optimizer.device: \"nvme\" (with nvme_path)", lower_optimizer(OffloadDevice::nvme)});
  changes.push_back({"zero_optimization.stage: 3 with offload_param.device: \"cpu\"", lower_param(OffloadDevice::cpu)});
  changes.push_back({"zero_optimization.stage: 3 with offload_param.device: \"nvme\" (with nvme_path)", lower_param(OffloadDevice::nvme)});
  changes.push_back({"activation_checkpointing.cpu_checkpointing: true", [](PlanRequest& r) {
                       return !std::exchange(r.activations_on_host, true);
                     }});
  changes.push_back({"half the train_micro_batch_size_per_gpu, twice the gradient_accumulation_steps", [](PlanRequest& r) {
                       if (r.shape.batch % 2 != 0) return false;
                       r.shape.batch /= 2;
                       r.accumulation_steps *= 2;
                       for (LayerShape& layer : r.layers) {
                         layer.forward_workspace = layer.forward_workspace / 2 + 4096;
                         layer.backward_workspace = layer.backward_workspace / 2 + 4096;
                       }
                       return true;
                     }});
  for (const std::int64_t tile : {std::int64_t{1} << 20, std::int64_t{1} << 16}) {
    changes.push_back({fmt::format("spillway.tile_size: {}", tile), [tile](PlanRequest& r) {
                         if (r.tile_size <= tile) return false;
                         r.tile_size = tile;
                         return true;
                       }});
  }
  changes.push_back({"spillway.prefetch_depth: 1", [](PlanRequest& r) { return std::exchange(r.prefetch_depth, 1) > 1; }});
  return changes;
}

// Single changes first, then pairs; each is planned anew, so what is printed is known to fit.
std::vector<std::string> changes_that_fit(const PlanRequest& request) {
  constexpr std::size_t kWanted = 2;
  const std::vector<Change> changes = possible_changes();
  std::vector<std::string> found;
  for (const Change& change : changes) {
    PlanRequest changed = request;
    if (found.size() < kWanted && change.apply(changed) && build_plan(changed).fits()) found.push_back(change.text);
  }
  for (std::size_t i = 0; i < changes.size() && found.empty(); ++i) {
    for (std::size_t j = i + 1; j < changes.size() && found.size() < kWanted; ++j) {
      PlanRequest changed = request;
      if (changes[i].apply(changed) && changes[j].apply(changed) && build_plan(changed).fits()) {
        found.push_back(changes[i].text + ", and " + changes[j].text);
      }
    }
  }
  return found;
}

}  // namespace

std::string ledger_text(const Plan& plan) {
  std::string text;
  for (int t = 0; t < kTiers; ++t) {
    const TierUse& use = plan.tiers[static_cast<std::size_t>(t)];
    text += fmt::format("{:<8}{:>12}   {}\n", name_of(static_cast<Tier>(t)), human_bytes(use.peak), verdict(use));
    std::int64_t listed = 0;
    for (int o = 0; o < kOwners; ++o) {
      const std::int64_t bytes = use.by_owner[static_cast<std::size_t>(o)];
      listed += bytes;
      if (bytes > 0) text += fmt::format("  {:<18}{:>12}\n", name_of(static_cast<Owner>(o)), human_bytes(bytes));
    }
    if (use.peak > listed) text += fmt::format("  {:<18}{:>12}\n", "between buffers", human_bytes(use.peak - listed));
  }
  return text;
}

std::string refusal_text(const Plan& plan) {
  std::string text = "[plan] the training state does not fit the memory budgets; nothing was started\n" + ledger_text(plan);
  text += "any one of these fits:\n";
  for (const std::string& change : changes_that_fit(plan.request)) text += "  - " + change + "\n";
  std::string raise;
  for (int t = 0; t < kTiers; ++t) {
    const TierUse& use = plan.tiers[static_cast<std::size_t>(t)];
    if (use.fits()) continue;
    raise += fmt::format("{}spillway.{}_memory: {}", raise.empty() ? "" : ", and ", name_of(static_cast<Tier>(t)), use.peak);
  }
  text += "  - " + raise;
  return text;
}

}  // namespace spillway
