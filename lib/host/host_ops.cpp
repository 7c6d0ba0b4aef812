#include "host/host_ops.h"

#include "host/dtype_of.h"
#include "host/host_stream.h"
#include "host/kernels.h"

namespace spillway {

const ScratchSizes& host_scratch_sizes() {
  static constexpr ScratchSizes sizes{
      .layernorm_backward = host::layernorm_backward_scratch_bytes,
      .linear_forward = host::linear_forward_scratch_bytes,
      .linear_backward = host::linear_backward_scratch_bytes,
      .attention_forward = host::attention_forward_scratch_bytes,
      .attention_backward = host::attention_backward_scratch_bytes,
      .loss_head = host::loss_head_scratch_bytes,
  };
  return sizes;
}

namespace host {

namespace {

template <class F>
void enqueue(Stream& stream, F&& work) {
  static_cast<HostStream&>(stream).enqueue(std::forward<F>(work));
}

// Arguments are copied into the stream's queue.
template <class T>
class HostOps final : public Ops {
 public:
  DType dtype() const override { return dtype_of<T>; }
  const ScratchSizes& scratch_sizes() const override { return host_scratch_sizes(); }

  void embedding_forward(Stream& s, const EmbeddingForward& op) override {
    enqueue(s, [op] { host::embedding_forward<T>(op); });
  }
  void embedding_backward(Stream& s, const EmbeddingBackward& op) override {
    enqueue(s, [op] { host::embedding_backward<T>(op); });
  }
  void layernorm_forward(Stream& s, const LayerNormForward& op) override {
    enqueue(s, [op] { host::layernorm_forward<T>(op); });
  }
  void layernorm_backward(Stream& s, const LayerNormBackward& op) override {
    enqueue(s, [op] { host::layernorm_backward<T>(op); });
  }
  void linear_forward(Stream& s, const LinearForward& op) override {
    enqueue(s, [op] { host::linear_forward<T>(op); });
  }
  void linear_backward(Stream& s, const LinearBackward& op) override {
    enqueue(s, [op] { host::linear_backward<T>(op); });
  }
  void gelu_forward(Stream& s, const GeluForward& op) override {
    enqueue(s, [op] { host::gelu_forward<T>(op); });
  }
  void gelu_backward(Stream& s, const GeluBackward& op) override {
    enqueue(s, [op] { host::gelu_backward<T>(op); });
  }
  void attention_forward(Stream& s, const AttentionForward& op) override {
    enqueue(s, [op] { host::attention_forward<T>(op); });
  }
  void attention_backward(Stream& s, const AttentionBackward& op) override {
    enqueue(s, [op] { host::attention_backward<T>(op); });
  }
  void loss_head(Stream& s, const LossHead& op) override {
    enqueue(s, [op] { host::loss_head<T>(op); });
  }
  void accumulate(Stream& s, float* accumulator, const float* gradient, std::int64_t n) override {
    enqueue(s, [=] { accumulate_on_host(accumulator, gradient, n); });
  }
  void finalize_gradient(Stream& s, const FinalizeGradient& op) override {
    enqueue(s, [op] { finalize_gradient_on_host(op); });
  }
  void round(Stream& s, const float* from, void* to, DType dtype, std::int64_t n) override {
    enqueue(s, [=] { host::round(from, to, dtype, n); });
  }
  void sum_pieces(Stream& s, const SumPieces& op) override {
    enqueue(s, [op] { host::sum_pieces(op); });
  }
  void optimizer_update(Stream& s, const OptimizerTile& tile, const OptimizerParams& params) override {
    enqueue(s, [tile, params] { optimizer_update_parallel(tile, params); });
  }
};

}  // namespace

std::unique_ptr<Ops> make_host_ops(DType dtype) {
  switch (dtype) {
    case DType::f32: return std::make_unique<HostOps<float>>();
    case DType::bf16: return std::make_unique<HostOps<bf16>>();
    case DType::f16: return std::make_unique<HostOps<f16>>();
  }
  return nullptr;
}

}  // namespace host

}  // namespace spillway
