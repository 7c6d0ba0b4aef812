// The interface of spillway/cpu_adam.h, by that of spillway/optimizer.h.
#include "spillway/cpu_adam.h"
#include "spillway/optimizer.h"

namespace spillway {
namespace {

OptimizerTile as_optimizer_tile(const AdamTile& tile) {
  OptimizerTile result;
  result.master = tile.master;
  result.moments = {tile.exp_avg, tile.exp_avg_sq};
  result.gradient = tile.gradient;
  result.gradient_dtype = tile.gradient_dtype;
  result.weight = tile.weight;
  result.weight_dtype = tile.weight_dtype;
  result.n = tile.n;
  return result;
}

OptimizerParams as_optimizer_params(const AdamParams& params) {
  OptimizerParams result;
  result.learning_rate = params.learning_rate;
  result.beta1 = params.beta1;
  result.beta2 = params.beta2;
  result.epsilon = params.epsilon;
  result.weight_decay = params.weight_decay;
  result.decoupled_decay = params.decoupled_decay;
  result.bias_correction = params.bias_correction;
  result.step = params.step;
  result.gradient_scale = params.gradient_scale;
  return result;
}

}  // namespace

void adam_update(const AdamTile& tile, const AdamParams& params) {
  optimizer_update(as_optimizer_tile(tile), as_optimizer_params(params));
}

void adam_update_with(std::string_view isa, const AdamTile& tile, const AdamParams& params) {
  optimizer_update_with(isa, as_optimizer_tile(tile), as_optimizer_params(params));
}

}  // namespace spillway
