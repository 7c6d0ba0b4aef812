// Token and position tables: tokens in, activations out.
#include "model/layers.h"
#include "spillway/ops.h"

namespace spillway {

namespace {

// As the original GPT-2 initialises them.
constexpr float kTokenStddev = 0.02f;
constexpr float kPositionStddev = 0.01f;

class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(const ModelSpec& spec, const FrozenNames& frozen) : spec_(spec) {
    list_.add(token_table_, std::string(kTokenTable), {spec.vocabulary, spec.channels}, ParamInit::normal, kTokenStddev);
    list_.add(position_table_, "wpe.weight", {spec.context, spec.channels}, ParamInit::normal, kPositionStddev);
    list_.lay_out(frozen);
  }

  const std::string& name() const override { return name_; }
  LayerKind kind() const override { return LayerKind::embedding; }
  std::span<const ParamSpec> params() const override { return list_.params(); }
  std::int64_t num_elements() const override { return list_.num_elements(); }
  std::int64_t trainable_elements() const override { return list_.trainable_elements(); }
  int tied_layer() const override { return -1; }

  std::int64_t workspace_bytes(Pass, const BatchShape&, DType, const ScratchSizes&) const override { return 0; }
  double flops(Pass, const BatchShape&) const override { return 0.0; }

  void forward(const ForwardArgs& args) const override {
    const DType dtype = args.ops.dtype();
    args.ops.embedding_forward(args.stream, {.tokens = args.tokens,
                                             .token_table = element(args.weights, token_table_, dtype),
                                             .position_table = element(args.weights, position_table_, dtype),
                                             .out = args.y,
                                             .batch = args.shape.batch,
                                             .time = args.shape.time,
                                             .channels = spec_.channels});
  }

  void backward(const BackwardArgs& args) const override {
    args.ops.embedding_backward(args.stream, {.tokens = args.tokens,
                                              .dout = args.dy,
                                              .dtoken_table = args.gradient + token_table_,
                                              .dposition_table = args.gradient + position_table_,
                                              .batch = args.shape.batch,
                                              .time = args.shape.time,
                                              .channels = spec_.channels,
                                              .vocabulary = spec_.vocabulary,
                                              .positions = spec_.context});
  }

 private:
  ModelSpec spec_;
  std::string name_ = "embedding";
  ParamList list_;
  std::int64_t token_table_;
  std::int64_t position_table_;
};

}  // namespace

std::unique_ptr<Layer> make_embedding_layer(const ModelSpec& spec, const FrozenNames& frozen) {
  return std::make_unique<EmbeddingLayer>(spec, frozen);
}

}  // namespace spillway
