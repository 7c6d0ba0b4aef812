// Final LayerNorm, then the output projection tied to the embedding's token table, and the loss.
#include <algorithm>

#include "model/layers.h"
#include "model/workspace.h"
#include "spillway/ops.h"

namespace spillway {

namespace {

struct HeadLayout {
  Region normed;      // (rows, C) T
  Region mean, rstd;  // (rows) f32
  Region scratch;
  std::int64_t bytes;
};

class HeadLayer final : public Layer {
 public:
  HeadLayer(const ModelSpec& spec, std::int64_t token_table, const FrozenNames& frozen)
      : spec_(spec), token_table_(token_table) {
    list_.add(norm_weight_, "ln_f.weight", {spec.channels}, ParamInit::ones);
    list_.add(norm_bias_, "ln_f.bias", {spec.channels}, ParamInit::zeros);
    list_.lay_out(frozen);
  }

  const std::string& name() const override { return name_; }
  LayerKind kind() const override { return LayerKind::head; }
  std::span<const ParamSpec> params() const override { return list_.params(); }
  std::int64_t num_elements() const override { return list_.num_elements(); }
  std::int64_t trainable_elements() const override { return list_.trainable_elements(); }
  int tied_layer() const override { return kEmbeddingLayer; }

  std::int64_t workspace_bytes(Pass pass, const BatchShape& shape, DType dtype,
                               const ScratchSizes& scratch) const override {
    return layout(pass, shape, dtype, scratch).bytes;
  }

  double flops(Pass pass, const BatchShape& shape) const override {
    const double projection = 2.0 * static_cast<double>(shape.batch * shape.time) *
                              static_cast<double>(spec_.channels) * static_cast<double>(spec_.vocabulary);
    return pass == Pass::forward ? projection : 3.0 * projection;
  }

  void forward(const ForwardArgs& args) const override {
    const HeadLayout at = layout(Pass::forward, args.shape, args.ops.dtype(), args.ops.scratch_sizes());
    normalize(args, at);
    args.ops.loss_head(args.stream, loss(args, at));
  }

  void backward(const BackwardArgs& args) const override {
    const HeadLayout at = layout(Pass::backward, args.shape, args.ops.dtype(), args.ops.scratch_sizes());
    normalize(args, at);
    LossHead head = loss(args, at);
    head.gradient_scale = args.gradient_scale;
    head.dx = args.dx;  // of the LayerNorm's output; turned into that of its input in place below
    head.dweight = args.tied_gradient + token_table_;
    args.ops.loss_head(args.stream, head);
    args.ops.layernorm_backward(args.stream,
                                {.dy = args.dx,
                                 .x = args.x,
                                 .weight = element(args.weights, norm_weight_, args.ops.dtype()),
                                 .mean = at.mean.in<float>(args.workspace),
                                 .rstd = at.rstd.in<float>(args.workspace),
                                 .dresidual = nullptr,
                                 .dx = args.dx,
                                 .dweight = args.gradient + norm_weight_,
                                 .dbias = args.gradient + norm_bias_,
                                 .rows = rows(args.shape),
                                 .channels = spec_.channels,
                                 .scratch = at.scratch.span_in(args.workspace)});
  }

 private:
  static std::int64_t rows(const BatchShape& shape) { return shape.batch * shape.time; }

  LossHeadDims dims(const BatchShape& shape) const { return {rows(shape), spec_.channels, spec_.vocabulary}; }

  HeadLayout layout(Pass pass, const BatchShape& shape, DType dtype, const ScratchSizes& sizes) const {
    WorkspacePlanner planner;
    HeadLayout at;
    at.normed = planner.take(rows(shape) * spec_.channels * size_of(dtype));
    at.mean = planner.take(rows(shape) * size_of(DType::f32));
    at.rstd = planner.take(rows(shape) * size_of(DType::f32));
    std::int64_t scratch = sizes.loss_head(dtype, dims(shape));
    if (pass == Pass::backward) {
      scratch = std::max(scratch, sizes.layernorm_backward(dtype, rows(shape), spec_.channels));
    }
    at.scratch = planner.take(scratch);
    at.bytes = planner.peak();
    return at;
  }

  template <class Args>  // ForwardArgs or BackwardArgs
  void normalize(const Args& args, const HeadLayout& at) const {
    const DType dtype = args.ops.dtype();
    args.ops.layernorm_forward(args.stream, {.x = args.x,
                                             .weight = element(args.weights, norm_weight_, dtype),
                                             .bias = element(args.weights, norm_bias_, dtype),
                                             .y = at.normed.in(args.workspace),
                                             .mean = at.mean.in<float>(args.workspace),
                                             .rstd = at.rstd.in<float>(args.workspace),
                                             .rows = rows(args.shape),
                                             .channels = spec_.channels,
                                             .epsilon = spec_.layernorm_epsilon});
  }

  template <class Args>
  LossHead loss(const Args& args, const HeadLayout& at) const {
    return {.x = at.normed.in(args.workspace),
            .weight = element(args.tied_weights, token_table_, args.ops.dtype()),
            .targets = args.targets,
            .gradient_scale = 0.0f,
            .loss_sum = args.loss_sum,
            .dx = nullptr,
            .dweight = nullptr,
            .dims = dims(args.shape),
            .scratch = at.scratch.span_in(args.workspace)};
  }

  ModelSpec spec_;
  std::string name_ = "head";
  ParamList list_;
  std::int64_t token_table_;  // of the tied layer
  std::int64_t norm_weight_;
  std::int64_t norm_bias_;
};

}  // namespace

std::unique_ptr<Layer> make_head_layer(const ModelSpec& spec, std::int64_t token_table, const FrozenNames& frozen) {
  return std::make_unique<HeadLayer>(spec, token_table, frozen);
}

}  // namespace spillway
