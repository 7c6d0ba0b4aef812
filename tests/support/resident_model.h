// A model trained with everything resident on the host device, layer by layer through the public contracts,
// on guarded memory: the oracle for whatever moves state around.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/device.h"
#include "spillway/model.h"
#include "spillway/ops.h"
#include "support/guarded_array.h"

namespace spillway::test {

// Where a layer's backward writes dx.
enum class InputGradient { beside_dy, over_dy };

class ResidentModel {
 public:
  ResidentModel(const ModelSpec& spec, DType dtype, const BatchShape& shape,
                InputGradient input_gradient = InputGradient::over_dy, std::span<const std::string> frozen = {})
      : spec_(spec), shape_(shape), input_gradient_(input_gradient), device_(make_host_device({})),
        stream_(device_->make_stream("compute")), ops_(device_->make_ops(dtype)), layers_(make_layers(spec, frozen)) {
    for (const auto& layer : layers_) {
      const auto n = static_cast<std::size_t>(layer->num_elements());
      weights_.emplace_back(n * static_cast<std::size_t>(size_of(dtype)));
      master_.emplace_back(n, 0.0f);
      exp_avg_.emplace_back(n, 0.0f);
      exp_avg_sq_.emplace_back(n, 0.0f);
      gradients_.emplace_back(n);
    }
    for (std::size_t i = 0; i + 1 < layers_.size(); ++i) activations_.emplace_back(activation_bytes());
  }

  const std::vector<std::unique_ptr<Layer>>& layers() const { return layers_; }

  // Calls f(parameter, layer index) for every parameter.
  void for_each_param(const std::function<void(const ParamSpec&, std::size_t)>& f) const {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      for (const ParamSpec& param : layers_[i]->params()) f(param, i);
    }
  }

  // Values of each parameter come from `source`, by name.
  void load(const std::function<std::vector<float>(const ParamSpec&)>& source) {
    for_each_param([&](const ParamSpec& param, std::size_t i) {
      const std::vector<float> values = source(param);
      if (static_cast<std::int64_t>(values.size()) != param.num_elements) throw std::runtime_error(param.name);
      std::copy(values.begin(), values.end(), master_[i].begin() + param.offset);
    });
    for (std::size_t i = 0; i < layers_.size(); ++i) publish(i);
  }

  double forward(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets) {
    run_forward(tokens);
    GuardedArray<double> loss(1);
    GuardedBytes workspace = workspace_of(layers_.size() - 1, Pass::forward);
    ForwardArgs args = forward_args(layers_.size() - 1, workspace);
    args.targets = targets.data();
    args.loss_sum = loss.data();
    layers_.back()->forward(args);
    finish(workspace);
    return loss[0];
  }

  // Leaves every gradient of gradient_scale * (sum of token losses); returns that sum.
  double backward(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                  float gradient_scale) {
    run_forward(tokens);
    GuardedArray<double> loss(1);
    GuardedBytes dy(activation_bytes()), dx(activation_bytes());
    for (std::size_t i = layers_.size(); i-- > 0;) {
      GuardedBytes workspace = workspace_of(i, Pass::backward);
      const bool beside = input_gradient_ == InputGradient::beside_dy;
      layers_[i]->backward({.ops = *ops_,
                            .stream = *stream_,
                            .shape = shape_,
                            .weights = weights_[i].data(),
                            .tied_weights = i + 1 == layers_.size() ? weights_[0].data() : nullptr,
                            .tokens = i == 0 ? tokens.data() : nullptr,
                            .targets = i + 1 == layers_.size() ? targets.data() : nullptr,
                            .x = i == 0 ? nullptr : activations_[i - 1].data(),
                            .dy = i + 1 == layers_.size() ? nullptr : dy.data(),
                            .dx = i == 0 ? nullptr : (beside ? dx : dy).data(),
                            .gradient = gradients_[i].data(),
                            .tied_gradient = i + 1 == layers_.size() ? gradients_[0].data() : nullptr,
                            .gradient_scale = gradient_scale,
                            .loss_sum = loss.data(),
                            .workspace = workspace.span()});
      finish(workspace);
      if (!gradients_[i].guards_intact() || !dy.guards_intact() || !dx.guards_intact()) {
        throw std::runtime_error(layers_[i]->name() + ": backward wrote past an output");
      }
      if (beside) std::memcpy(dy.data(), dx.data(), dx.span().size());
    }
    return loss[0];
  }

  void update(const OptimizerParams& params) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      ops_->optimizer_update(*stream_, {.master = master_[i].data(),
                                        .moments = {exp_avg_[i].data(), exp_avg_sq_[i].data()},
                                        .gradient = gradients_[i].data(),
                                        .gradient_dtype = DType::f32,
                                        .weight = weights_[i].data(),
                                        .weight_dtype = ops_->dtype(),
                                        .n = layers_[i]->num_elements()}, params);
    }
    stream_->synchronize();
  }

  // (B*T, V) f32 models only, after a forward or backward: the head's product without its loss.
  std::vector<float> logits() {
    const std::int64_t rows = shape_.batch * shape_.time, c = spec_.channels, v = spec_.vocabulary;
    const auto at = [&](std::size_t layer, std::string_view name) {
      const auto params = layers_[layer]->params();
      const auto param = std::find_if(params.begin(), params.end(), [&](const ParamSpec& p) { return p.name == name; });
      return weights_[layer].data() + param->offset * size_of(ops_->dtype());
    };
    const std::size_t head = layers_.size() - 1;
    GuardedBytes normed(activation_bytes());
    GuardedArray<float> mean(static_cast<std::size_t>(rows)), rstd(static_cast<std::size_t>(rows));
    ops_->layernorm_forward(*stream_, {.x = activations_.back().data(),
                                       .weight = at(head, "ln_f.weight"),
                                       .bias = at(head, "ln_f.bias"),
                                       .y = normed.data(),
                                       .mean = mean.data(),
                                       .rstd = rstd.data(),
                                       .rows = rows,
                                       .channels = c,
                                       .epsilon = spec_.layernorm_epsilon});
    const MatmulDims dims{rows, v, c};
    GuardedArray<float> out(static_cast<std::size_t>(rows * v));
    GuardedBytes scratch(static_cast<std::size_t>(ops_->scratch_sizes().linear_forward(ops_->dtype(), dims)));
    ops_->linear_forward(*stream_, {.x = normed.data(),
                                    .weight = at(0, "wte.weight"),
                                    .bias = nullptr,
                                    .residual = nullptr,
                                    .y = out.data(),
                                    .dims = dims,
                                    .scratch = scratch.span()});
    stream_->synchronize();
    return out.values();
  }

  std::vector<float> master(const ParamSpec& param, std::size_t layer) const {
    const auto begin = master_[layer].begin() + param.offset;
    return {begin, begin + param.num_elements};
  }
  std::vector<float> gradient(const ParamSpec& param, std::size_t layer) {
    const float* begin = gradients_[layer].data() + param.offset;
    return {begin, begin + param.num_elements};
  }

 private:
  std::size_t activation_bytes() const {
    return static_cast<std::size_t>(shape_.batch * shape_.time * spec_.channels * size_of(ops_->dtype()));
  }

  GuardedBytes workspace_of(std::size_t i, Pass pass) const {
    return GuardedBytes(static_cast<std::size_t>(
        layers_[i]->workspace_bytes(pass, shape_, ops_->dtype(), ops_->scratch_sizes())));
  }

  ForwardArgs forward_args(std::size_t i, GuardedBytes& workspace) {
    return {.ops = *ops_,
            .stream = *stream_,
            .shape = shape_,
            .weights = weights_[i].data(),
            .tied_weights = i + 1 == layers_.size() ? weights_[0].data() : nullptr,
            .tokens = nullptr,
            .targets = nullptr,
            .x = i == 0 ? nullptr : activations_[i - 1].data(),
            .y = i + 1 == layers_.size() ? nullptr : activations_[i].data(),
            .loss_sum = nullptr,
            .workspace = workspace.span()};
  }

  void run_forward(const std::vector<std::int32_t>& tokens) {
    for (std::size_t i = 0; i + 1 < layers_.size(); ++i) {
      GuardedBytes workspace = workspace_of(i, Pass::forward);
      ForwardArgs args = forward_args(i, workspace);
      args.tokens = i == 0 ? tokens.data() : nullptr;
      layers_[i]->forward(args);
      finish(workspace);
      if (!activations_[i].guards_intact()) throw std::runtime_error(layers_[i]->name() + ": wrote past y");
    }
  }

  void finish(GuardedBytes& workspace) {
    stream_->synchronize();
    if (!workspace.guards_intact()) throw std::runtime_error("a layer wrote past its workspace");
  }

  void publish(std::size_t i) {
    for (std::size_t k = 0; k < master_[i].size(); ++k) {
      const float x = master_[i][k];
      switch (ops_->dtype()) {
        case DType::f32: reinterpret_cast<float*>(weights_[i].data())[k] = x; break;
        case DType::bf16: reinterpret_cast<bf16*>(weights_[i].data())[k] = from_float<bf16>(x); break;
        case DType::f16: reinterpret_cast<f16*>(weights_[i].data())[k] = from_float<f16>(x); break;
      }
    }
  }

  ModelSpec spec_;
  BatchShape shape_;
  InputGradient input_gradient_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Ops> ops_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<GuardedBytes> weights_;
  std::vector<std::vector<float>> master_, exp_avg_, exp_avg_sq_;
  std::vector<GuardedArray<float>> gradients_;
  std::vector<GuardedBytes> activations_;  // outputs of all layers but the head
};

}  // namespace spillway::test
