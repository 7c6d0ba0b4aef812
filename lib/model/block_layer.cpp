// One transformer block: x + attention(ln_1(x)), then that + mlp(ln_2(that)).
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "model/layers.h"
#include "model/workspace.h"
#include "spillway/ops.h"

namespace spillway {

namespace {

constexpr float kStddev = 0.02f;

// A LayerNorm's or a linear map's two parameters, as offsets into the flat buffer.
struct Pair {
  std::int64_t weight;
  std::int64_t bias;
};

// Regions of one call; names follow the forward. Both passes start with the same ones. Shapes below
// are per row of (B, T), in the Ops' dtype unless typed.
struct BlockLayout {
  Region mean, rstd;     // (1) f32, of the LayerNorm last run
  Region log_sum_exp;    // (heads) f32
  Region normed;         // (C): ln_1's output, then ln_2's
  Region qkv;            // (3C)
  Region attended;       // (C)
  Region middle;         // (C): x + attention; backward only, forward keeps it in y
  Region hidden;         // (F): the MLP's input to GELU
  Region gelu;           // (F)
  Region dhidden;        // (F); from here on backward only
  Region dnormed2;       // (C), of ln_2
  Region dattended;      // (C)
  Region dqkv;           // (3C)
  Region dnormed1;       // (C), of ln_1
  Region scratch;        // the most any op of the pass needs
  std::int64_t bytes;
};

class BlockLayer final : public Layer {
 public:
  BlockLayer(const ModelSpec& spec, std::int64_t index, const FrozenNames& frozen)
      : spec_(spec), hidden_(hidden_channels(spec)), name_(fmt::format("block {}", index)) {
    const std::string prefix = fmt::format("h.{}.", index);
    const std::int64_t c = spec.channels;
    // Radford et al. 2019, section 2.3: the weights that feed the residual stream shrink with its depth.
    const float residual_stddev = kStddev / std::sqrt(2.0f * static_cast<float>(spec.layers));
    add_norm(norm1_, prefix + "ln_1");
    add_linear(attention_, prefix + "attn.c_attn", 3 * c, c, kStddev);
    add_linear(attention_out_, prefix + "attn.c_proj", c, c, residual_stddev);
    add_norm(norm2_, prefix + "ln_2");
    add_linear(mlp_, prefix + "mlp.c_fc", hidden_, c, kStddev);
    add_linear(mlp_out_, prefix + "mlp.c_proj", c, hidden_, residual_stddev);
    list_.lay_out(frozen);
  }

  const std::string& name() const override { return name_; }
  LayerKind kind() const override { return LayerKind::block; }
  std::span<const ParamSpec> params() const override { return list_.params(); }
  std::int64_t num_elements() const override { return list_.num_elements(); }
  std::int64_t trainable_elements() const override { return list_.trainable_elements(); }
  int tied_layer() const override { return -1; }

  std::int64_t workspace_bytes(Pass pass, const BatchShape& shape, DType dtype,
                               const ScratchSizes& scratch) const override {
    return layout(pass, shape, dtype, scratch).bytes;
  }

  double flops(Pass pass, const BatchShape& shape) const override {
    const auto c = static_cast<double>(spec_.channels), f = static_cast<double>(hidden_);
    const auto rows = static_cast<double>(shape.batch * shape.time);
    const double mlp_out = 2.0 * rows * c * f;
    const double linear = 2.0 * rows * 4.0 * c * c + 2.0 * mlp_out;
    // Two products over the T (T + 1) / 2 causal pairs of positions.
    const double attention = 2.0 * rows * c * static_cast<double>(shape.time + 1);
    if (pass == Pass::forward) return linear + attention;
    // Backward recomputes all but the last product, then does two products for each linear map and
    // five for attention, which recomputes its scores.
    return linear - mlp_out + attention + 2.0 * linear + 2.5 * attention;
  }

  void forward(const ForwardArgs& args) const override {
    const BlockLayout at = layout(Pass::forward, args.shape, args.ops.dtype(), args.ops.scratch_sizes());
    attend(args, at, args.y);
    expand(args, at, args.y, at.gelu.in(args.workspace));
    linear_forward(args, at, mlp_out_, at.gelu.in(args.workspace), args.y, args.y, out_dims(args.shape));
  }

  void backward(const BackwardArgs& args) const override {
    const BlockLayout at = layout(Pass::backward, args.shape, args.ops.dtype(), args.ops.scratch_sizes());
    void* middle = at.middle.in(args.workspace);
    attend(args, at, middle);
    expand(args, at, middle, at.gelu.in(args.workspace));
    mlp_backward(args, at);
    attention_backward(args, at);
  }

 private:
  void add_norm(Pair& norm, const std::string& name) {
    list_.add(norm.weight, name + ".weight", {spec_.channels}, ParamInit::ones);
    list_.add(norm.bias, name + ".bias", {spec_.channels}, ParamInit::zeros);
  }

  void add_linear(Pair& linear, const std::string& name, std::int64_t outputs, std::int64_t inputs, float stddev) {
    list_.add(linear.weight, name + ".weight", {outputs, inputs}, ParamInit::normal, stddev);
    list_.add(linear.bias, name + ".bias", {outputs}, ParamInit::zeros);
  }

  static std::int64_t rows(const BatchShape& shape) { return shape.batch * shape.time; }
  AttentionDims heads(const BatchShape& shape) const {
    return {shape.batch, shape.time, spec_.heads, spec_.channels / spec_.heads};
  }
  MatmulDims qkv_dims(const BatchShape& shape) const { return {rows(shape), 3 * spec_.channels, spec_.channels}; }
  MatmulDims square_dims(const BatchShape& shape) const { return {rows(shape), spec_.channels, spec_.channels}; }
  MatmulDims in_dims(const BatchShape& shape) const { return {rows(shape), hidden_, spec_.channels}; }
  MatmulDims out_dims(const BatchShape& shape) const { return {rows(shape), spec_.channels, hidden_}; }

  BlockLayout layout(Pass pass, const BatchShape& shape, DType dtype, const ScratchSizes& sizes) const {
    const std::int64_t stat = rows(shape) * size_of(DType::f32);
    const std::int64_t narrow = rows(shape) * spec_.channels * size_of(dtype);  // (C) per row
    const std::int64_t wide = rows(shape) * hidden_ * size_of(dtype);           // (F) per row
    WorkspacePlanner planner;
    BlockLayout at;
    at.mean = planner.take(stat);
    at.rstd = planner.take(stat);
    at.scratch = planner.take(scratch_bytes(pass, shape, dtype, sizes));
    at.normed = planner.take(narrow);
    if (pass == Pass::forward) {
      const std::int64_t attention = planner.mark();
      at.log_sum_exp = planner.take(stat * spec_.heads);
      at.qkv = planner.take(3 * narrow);
      at.attended = planner.take(narrow);
      planner.release_to(attention);
      at.hidden = planner.take(wide);
      at.gelu = planner.take(wide);
    } else {
      at.log_sum_exp = planner.take(stat * spec_.heads);
      at.qkv = planner.take(3 * narrow);
      at.attended = planner.take(narrow);
      at.middle = planner.take(narrow);
      const std::int64_t mlp = planner.mark();
      at.hidden = planner.take(wide);
      at.dhidden = planner.take(wide);
      const std::int64_t gelu = planner.mark();
      at.gelu = planner.take(wide);
      planner.release_to(gelu);
      at.dnormed2 = planner.take(narrow);
      planner.release_to(mlp);
      at.dqkv = planner.take(3 * narrow);
      at.dattended = planner.take(narrow);
      at.dnormed1 = at.dattended;  // the one is read for the last time before the other is written
    }
    at.bytes = planner.peak();
    return at;
  }

  std::int64_t scratch_bytes(Pass pass, const BatchShape& shape, DType dtype, const ScratchSizes& sizes) const {
    const MatmulDims linears[] = {qkv_dims(shape), square_dims(shape), in_dims(shape), out_dims(shape)};
    std::int64_t bytes = sizes.attention_forward(dtype, heads(shape));
    for (const MatmulDims& dims : linears) bytes = std::max(bytes, sizes.linear_forward(dtype, dims));
    if (pass == Pass::forward) return bytes;
    bytes = std::max(bytes, sizes.attention_backward(dtype, heads(shape)));
    for (const MatmulDims& dims : linears) bytes = std::max(bytes, sizes.linear_backward(dtype, dims));
    return std::max(bytes, sizes.layernorm_backward(dtype, rows(shape), spec_.channels));
  }

  // The steps below serve both passes: Args is ForwardArgs or BackwardArgs.

  template <class Args>
  void norm_forward(const Args& args, const BlockLayout& at, const Pair& norm, const void* x) const {
    const DType dtype = args.ops.dtype();
    args.ops.layernorm_forward(args.stream, {.x = x,
                                             .weight = element(args.weights, norm.weight, dtype),
                                             .bias = element(args.weights, norm.bias, dtype),
                                             .y = at.normed.in(args.workspace),
                                             .mean = at.mean.template in<float>(args.workspace),
                                             .rstd = at.rstd.template in<float>(args.workspace),
                                             .rows = rows(args.shape),
                                             .channels = spec_.channels,
                                             .epsilon = spec_.layernorm_epsilon});
  }

  template <class Args>
  void linear_forward(const Args& args, const BlockLayout& at, const Pair& linear, const void* x,
                      const void* residual, void* y, const MatmulDims& dims, void* gelu = nullptr) const {
    const DType dtype = args.ops.dtype();
    args.ops.linear_forward(args.stream, {.x = x,
                                          .weight = element(args.weights, linear.weight, dtype),
                                          .bias = element(args.weights, linear.bias, dtype),
                                          .residual = residual,
                                          .y = y,
                                          .dims = dims,
                                          .scratch = at.scratch.span_in(args.workspace),
                                          .gelu = gelu});
  }

  // middle = x + attention(ln_1(x))
  template <class Args>
  void attend(const Args& args, const BlockLayout& at, void* middle) const {
    norm_forward(args, at, norm1_, args.x);
    void* qkv = at.qkv.in(args.workspace);
    linear_forward(args, at, attention_, at.normed.in(args.workspace), nullptr, qkv, qkv_dims(args.shape));
    args.ops.attention_forward(args.stream, {.qkv = qkv,
                                             .y = at.attended.in(args.workspace),
                                             .log_sum_exp = at.log_sum_exp.template in<float>(args.workspace),
                                             .dims = heads(args.shape),
                                             .scratch = at.scratch.span_in(args.workspace)});
    linear_forward(args, at, attention_out_, at.attended.in(args.workspace), args.x, middle,
                   square_dims(args.shape));
  }

  // hidden = c_fc(ln_2(middle)), gelu = GELU(hidden)
  template <class Args>
  void expand(const Args& args, const BlockLayout& at, const void* middle, void* gelu) const {
    norm_forward(args, at, norm2_, middle);
    linear_forward(args, at, mlp_, at.normed.in(args.workspace), nullptr, at.hidden.in(args.workspace),
                   in_dims(args.shape), gelu);
  }

  void norm_backward(const BackwardArgs& args, const BlockLayout& at, const Pair& norm, const void* dy,
                     const void* x, const void* dresidual) const {
    args.ops.layernorm_backward(args.stream, {.dy = dy,
                                              .x = x,
                                              .weight = element(args.weights, norm.weight, args.ops.dtype()),
                                              .mean = at.mean.in<float>(args.workspace),
                                              .rstd = at.rstd.in<float>(args.workspace),
                                              .dresidual = dresidual,
                                              .dx = args.dx,
                                              .dweight = args.gradient + norm.weight,
                                              .dbias = args.gradient + norm.bias,
                                              .rows = rows(args.shape),
                                              .channels = spec_.channels,
                                              .scratch = at.scratch.span_in(args.workspace)});
  }

  void linear_backward(const BackwardArgs& args, const BlockLayout& at, const Pair& linear, const void* dy,
                       const void* x, void* dx, const MatmulDims& dims, const void* gelu_input = nullptr) const {
    args.ops.linear_backward(args.stream, {.dy = dy,
                                           .x = x,
                                           .weight = element(args.weights, linear.weight, args.ops.dtype()),
                                           .dx = dx,
                                           .dweight = args.gradient + linear.weight,
                                           .dbias = args.gradient + linear.bias,
                                           .dims = dims,
                                           .scratch = at.scratch.span_in(args.workspace),
                                           .gelu_input = gelu_input});
  }

  // From dy to the gradient of `middle`, which is left in args.dx.
  void mlp_backward(const BackwardArgs& args, const BlockLayout& at) const {
    void* hidden = at.hidden.in(args.workspace);
    void* dhidden = at.dhidden.in(args.workspace);
    void* dnormed = at.dnormed2.in(args.workspace);
    linear_backward(args, at, mlp_out_, args.dy, at.gelu.in(args.workspace), dhidden, out_dims(args.shape), hidden);
    linear_backward(args, at, mlp_, dhidden, at.normed.in(args.workspace), dnormed, in_dims(args.shape));
    norm_backward(args, at, norm2_, dnormed, at.middle.in(args.workspace), args.dy);
  }

  // From the gradient of `middle` in args.dx to that of x, in place.
  void attention_backward(const BackwardArgs& args, const BlockLayout& at) const {
    void* attended = at.attended.in(args.workspace);
    void* dattended = at.dattended.in(args.workspace);
    void* dqkv = at.dqkv.in(args.workspace);
    void* dnormed = at.dnormed1.in(args.workspace);
    linear_backward(args, at, attention_out_, args.dx, attended, dattended, square_dims(args.shape));
    args.ops.attention_backward(args.stream, {.dy = dattended,
                                              .qkv = at.qkv.in(args.workspace),
                                              .y = attended,
                                              .log_sum_exp = at.log_sum_exp.in<float>(args.workspace),
                                              .dqkv = dqkv,
                                              .dims = heads(args.shape),
                                              .scratch = at.scratch.span_in(args.workspace)});
    // ln_1 once more: cheaper than keeping its output alive through the MLP.
    norm_forward(args, at, norm1_, args.x);
    linear_backward(args, at, attention_, dqkv, at.normed.in(args.workspace), dnormed,
                    qkv_dims(args.shape));
    norm_backward(args, at, norm1_, dnormed, args.x, args.dx);
  }

  ModelSpec spec_;
  std::int64_t hidden_;
  std::string name_;
  ParamList list_;
  Pair norm1_, attention_, attention_out_, norm2_, mlp_, mlp_out_;
};

}  // namespace

std::unique_ptr<Layer> make_block_layer(const ModelSpec& spec, std::int64_t index, const FrozenNames& frozen) {
  return std::make_unique<BlockLayer>(spec, index, frozen);
}

}  // namespace spillway
