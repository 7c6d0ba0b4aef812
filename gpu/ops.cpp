#include "gpu/ops.h"

#include "gpu/gemm.h"
#include "gpu/kernels/kernels.h"
#include "gpu/matrix_ops.h"
#include "gpu/storage_type.h"
#include "gpu/stream.h"
#include "spillway/error.h"

namespace spillway::cuda {

namespace {

template <class... Params, class... Args>
void enqueue(Stream& stream, void (*launch)(cudaStream_t, Params...), const Args&... args) {
  cuda_stream(stream).enqueue([&](cudaStream_t on) { launch(on, args...); });
}

template <class T>
class CudaOps final : public Ops {
 public:
  DType dtype() const override { return dtype_of<T>; }
  const ScratchSizes& scratch_sizes() const override { return cuda_scratch_sizes(); }

  void embedding_forward(Stream& s, const EmbeddingForward& op) override { enqueue(s, cuda::embedding_forward<T>, op); }
  void embedding_backward(Stream& s, const EmbeddingBackward& op) override { enqueue(s, cuda::embedding_backward<T>, op); }
  void layernorm_forward(Stream& s, const LayerNormForward& op) override { enqueue(s, cuda::layernorm_forward<T>, op); }
  void layernorm_backward(Stream& s, const LayerNormBackward& op) override { enqueue(s, cuda::layernorm_backward<T>, op); }
  void linear_forward(Stream& s, const LinearForward& op) override { enqueue_products(s, cuda::linear_forward<T>, op); }
  void linear_backward(Stream& s, const LinearBackward& op) override { enqueue_products(s, cuda::linear_backward<T>, op); }
  void gelu_forward(Stream& s, const GeluForward& op) override { enqueue(s, cuda::gelu_forward<T>, op); }
  void gelu_backward(Stream& s, const GeluBackward& op) override { enqueue(s, cuda::gelu_backward<T>, op); }
  void attention_forward(Stream& s, const AttentionForward& op) override { enqueue(s, cuda::attention_forward<T>, op); }
  void attention_backward(Stream& s, const AttentionBackward& op) override { enqueue(s, cuda::attention_backward<T>, op); }
  void loss_head(Stream& s, const LossHead& op) override { enqueue_products(s, cuda::loss_head<T>, op); }

  void accumulate(Stream& s, float* accumulator, const float* gradient, std::int64_t n) override {
    enqueue(s, cuda::accumulate, accumulator, gradient, n);
  }
  void finalize_gradient(Stream& s, const FinalizeGradient& op) override { enqueue(s, cuda::finalize_gradient, op); }
  void round(Stream& s, const float* from, void* to, DType dtype, std::int64_t n) override { enqueue(s, cuda::round, from, to, dtype, n); }
  void sum_pieces(Stream& s, const SumPieces& op) override { enqueue(s, cuda::sum_pieces, op); }
  void optimizer_update(Stream& s, const OptimizerTile& tile, const OptimizerParams& params) override {
    const bool implemented = params.kind == OptimizerKind::adam && tile.moment_format == MomentFormat::f32;
    if (!implemented) throw DeviceError("[cuda] update parameters: only Adam with fp32 moments is there; use --device host");
    enqueue(s, cuda::adam,
            AdamTile{tile.master, static_cast<float*>(tile.moments[0]), static_cast<float*>(tile.moments[1]), tile.gradient, tile.gradient_dtype,
                     tile.weight, tile.weight_dtype, tile.n},
            AdamParams{params.learning_rate, params.beta1, params.beta2, params.epsilon, params.weight_decay, params.decoupled_decay,
                       params.bias_correction, params.step, params.gradient_scale});
  }

 private:
  template <class Op>
  void enqueue_products(Stream& stream, void (*launch)(Gemm&, cudaStream_t, const Op&), const Op& op) {
    cuda_stream(stream).enqueue([&](cudaStream_t on) { launch(gemm_, on, op); });
  }

  Gemm gemm_;
};

}  // namespace

std::unique_ptr<Ops> make_ops(DType dtype) {
  switch (dtype) {
    case DType::f32: return std::make_unique<CudaOps<float>>();
    case DType::bf16: return std::make_unique<CudaOps<__nv_bfloat16>>();
    case DType::f16: return std::make_unique<CudaOps<__half>>();
  }
  return nullptr;
}

}  // namespace spillway::cuda
