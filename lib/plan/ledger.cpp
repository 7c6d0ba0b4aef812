// The ledger and the refusal, as text.
#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "plan/lower.h"
#include "spillway/plan.h"
#include "zero/partition.h"

namespace spillway {

namespace {

std::string verdict(const TierUse& use) {
  if (!use.budget) return "no limit";
  if (use.fits()) return fmt::format("budget {}, {} left", human_bytes(*use.budget), human_bytes(*use.budget - use.peak));
  return fmt::format("budget {} ({} B): {} B too small", human_bytes(*use.budget), *use.budget, use.peak - *use.budget);
}

// Changes the request and returns what the user writes for it; empty if it makes no difference here.
using Change = std::function<std::string(PlanRequest&)>;

Change lower_optimizer(OffloadDevice device, std::string text) {
  return [device, text](PlanRequest& r) {
    if (r.offload_optimizer >= device) return std::string();
    r.offload_optimizer = device;
    r.offload_optimizer_ratio = 1.0;
    return text;
  };
}

Change lower_param(OffloadDevice device, std::string text) {
  return [device, text](PlanRequest& r) {
    if (r.offload_param >= device) return std::string();
    r.offload_param = device;
    r.offload_param_ratio = 1.0;
    return text;
  };
}

Change lower_activations(OffloadDevice device, std::string text) {
  return [device, text](PlanRequest& r) {
    if (r.offload_activations >= device) return std::string();
    r.offload_activations = device;
    return text;
  };
}

// The same global batch in micro-batches of another size.
std::string rebatch(PlanRequest& r, std::int64_t batch, std::int64_t accumulation) {
  if (!r.layers_for || batch < 1 || batch == r.shape.batch) return {};
  r.shape.batch = batch;
  r.accumulation_steps = accumulation;
  r.layers = r.layers_for(r.shape);
  return fmt::format("train_micro_batch_size_per_gpu: {} with gradient_accumulation_steps: {}", batch, accumulation);
}

Change smaller_tiles(std::int64_t size) {
  return [size](PlanRequest& r) {
    if (r.tile_size <= size) return std::string();
    r.tile_size = size;
    return fmt::format("spillway.tile_size: {}", size);
  };
}

std::vector<Change> possible_changes() {
  return {
      lower_optimizer(OffloadDevice::cpu, "zero_optimization.offload_optimizer.device: \"cpu\""),
      lower_optimizer(OffloadDevice::nvme, "zero_optimization.offload_optimizer.device: \"nvme\" (with nvme_path)"),
      lower_param(OffloadDevice::cpu, "zero_optimization.stage: 3 with offload_param.device: \"cpu\""),
      lower_param(OffloadDevice::nvme, "zero_optimization.stage: 3 with offload_param.device: \"nvme\" (with nvme_path)"),
      lower_activations(OffloadDevice::cpu, "activation_checkpointing.cpu_checkpointing: true"),
      lower_activations(OffloadDevice::nvme, "spillway.offload_activations: \"nvme\" (with nvme_path)"),
      [](PlanRequest& r) {
        if (r.offload_optimizer == OffloadDevice::none || r.offload_gradients == OffloadDevice::nvme) return std::string();
        r.offload_gradients = OffloadDevice::nvme;
        return std::string("spillway.offload_gradients: \"nvme\" (with nvme_path)");
      },
      [](PlanRequest& r) {
        return r.shape.batch % 2 == 0 ? rebatch(r, r.shape.batch / 2, r.accumulation_steps * 2) : std::string();
      },
      [](PlanRequest& r) { return rebatch(r, r.shape.batch * r.accumulation_steps, 1); },
      smaller_tiles(1 << 20),
      smaller_tiles(1 << 16),
      [](PlanRequest& r) { return std::string(std::exchange(r.prefetch_depth, 1) > 1 ? "spillway.prefetch_depth: 1" : ""); },
  };
}

std::int64_t excess_bytes(const Plan& plan) {
  std::int64_t excess = 0;
  for (const TierUse& use : plan.tiers) excess += use.fits() ? 0 : use.peak - *use.budget;
  return excess;
}

// Changes taken one after the other, each if it brings the plan closer, until it fits; empty if it never does.
std::string combined_change(const PlanRequest& request, const std::vector<Change>& changes) {
  constexpr int kRounds = 4;
  PlanRequest current = request;
  std::int64_t excess = excess_bytes(sized_plan(current));
  std::vector<std::string> texts(changes.size());
  for (int round = 0; round < kRounds && excess > 0; ++round) {
    for (std::size_t i = 0; i < changes.size() && excess > 0; ++i) {
      PlanRequest changed = current;
      const std::string text = changes[i](changed);
      if (text.empty()) continue;
      const std::int64_t left = excess_bytes(sized_plan(changed));
      if (left >= excess) continue;
      current = changed;
      excess = left;
      texts[i] = text;
    }
  }
  if (excess > 0) return {};
  std::erase(texts, std::string());
  return fmt::format("{}", fmt::join(texts, ", and "));
}

// Single changes first; if none is enough, several together. Each is planned anew, so what is printed is known
// to fit.
std::vector<std::string> changes_that_fit(const PlanRequest& request) {
  constexpr std::size_t kWanted = 2;
  const std::vector<Change> changes = possible_changes();
  std::vector<std::string> found;
  for (const Change& change : changes) {
    PlanRequest changed = request;
    if (found.size() == kWanted) break;
    const std::string text = change(changed);
    if (!text.empty() && sized_plan(changed).fits()) found.push_back(text);
  }
  if (found.empty()) {
    const std::string combined = combined_change(request, changes);
    if (!combined.empty()) found.push_back(combined);
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
