// The tasks at the gate: what all ranks have counted becomes one verdict.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/values.h"
#include "runtime/gradient_access.h"
#include "runtime/task_actions.h"

namespace spillway {

// Gathers the square sums of all layers in order, wherever they were taken, and adds up.
WorldStatistics PlanActions::gather_statistics(const Task& task) {
  const auto* statistics = pointer<const double>(task, Role::square_sums);
  const auto* host_sums = pointer<const double>(task, Role::host_square_sums);
  std::size_t at = 0;
  WorldStatistics mine{0.0, 0.0, counted_tokens_, ask_flags_ ? ask_flags_() : 0};
  for (const LayerPlan& layer : plan_.layers) {
    const double* sums = (layer.square_sums_on_host ? host_sums : statistics) + layer.first_piece;
    for (std::int64_t i = 0; i < norm_pieces(layer.slice.size()); ++i) {
      square_sums_[at++] = sums[i];
      mine.square_sum += sums[i];
    }
  }
  for (std::int64_t m = 0; m < plan_.request.accumulation_steps; ++m) mine.loss_sum += statistics[m];
  return mine;
}

void PlanActions::exchange(const Task& task) {
  const WorldStatistics mine = gather_statistics(task);
  links_->control().exchange(std::as_bytes(std::span(&mine, 1)), memory_.bytes(*find_access(task, Role::world_statistics)));
}

void PlanActions::decide(const Task& task) {
  const WorldStatistics mine = links_ == nullptr ? gather_statistics(task) : WorldStatistics{};
  const WorldStatistics* ranks = links_ == nullptr ? &mine : pointer<const WorldStatistics>(task, Role::world_statistics);
  GateInput input{0.0, 0, planned_tokens(), links_ == nullptr ? square_sums_ : rank_sums_};
  flags_ = 0;
  for (std::size_t r = 0; r < rank_sums_.size(); ++r) {
    flags_ |= ranks[r].flags;
    input.loss_sum += ranks[r].loss_sum;
    input.tokens += ranks[r].tokens;
    rank_sums_[r] = ranks[r].square_sum;
  }
  if (rehearsal_) {
    verdict_ = GateVerdict{};
  } else {
    if (before_update_) show_gradients(input);
    verdict_ = gate_.decide(input);
    if (verdict_.first_bad_piece >= 0) name_bad_tensor();
  }
  gate_ns_ = device_.now_ns();
}

// Norm, clipping and verdict follow what the hook changes. Other ranks' sums were exchanged before it.
void PlanActions::show_gradients(const GateInput& input) {
  GradientAccess gradients(plan_, gradients_, {plan_, layers_, links_}, gate_.gradient_factor(input), square_sums_);
  before_update_(gradients);
  gradients_.settle();
  if (links_ == nullptr || !gradients.edited()) return;
  double mine = 0.0;
  for (const double sum : square_sums_) mine += sum;
  links_->control().exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(rank_sums_)));
}

// All ranks come to the same verdict, and so all of them come here: the first that has a value which is not finite
// tells the others whose it is.
void PlanActions::name_bad_tensor() {
  const std::string mine = bad_tensor_here();
  first_bad_tensor_ = mine;
  if (links_ == nullptr) return;
  for (const std::string& name : links_->control().exchange(mine)) {
    if (name.empty()) continue;
    first_bad_tensor_ = name;
    return;
  }
}

// The tensor of the first value that is not finite in this rank's slices; empty if there is none. Its piece is known,
// the value is looked for.
std::string PlanActions::bad_tensor_here() {
  const auto bad = std::find_if(square_sums_.begin(), square_sums_.end(), [](double sum) { return !std::isfinite(sum); });
  if (bad == square_sums_.end()) return {};
  std::int64_t piece = bad - square_sums_.begin();
  std::size_t l = 0;
  for (; piece >= norm_pieces(plan_.layers[l].slice.size()); ++l) piece -= norm_pieces(plan_.layers[l].slice.size());
  const LayerPlan& layer = plan_.layers[l];
  const std::int64_t begin = layer.slice.begin + piece * kNormPiece, end = std::min(begin + kNormPiece, layer.slice.end);
  std::vector<float> values(static_cast<std::size_t>(end - begin));
  widen(layer.gradient_dtype, gradients_.read(layer, {begin, end}), values);
  gradients_.settle();
  std::int64_t element = begin;
  while (element + 1 < end && std::isfinite(values[static_cast<std::size_t>(element - begin)])) ++element;
  for (const ParamSpec& param : layers_[l]->params()) {
    if (element >= param.offset && element < param.offset + param.num_elements) return param.name;
  }
  return layer.name;
}

}  // namespace spillway
