#include "gpu/ops.h"

#include "gpu/gemm.h"
#include "gpu/kernels/kernels.h"
#include "gpu/matrix_ops.h"
#include "gpu/storage_type.h"
#include "gpu/stream.h"

namespace spillway::cuda {

namespace {

cudaStream_t on(Stream& stream) { return static_cast<CudaStream&>(stream).handle(); }

template <class T>
class CudaOps final : public Ops {
 public:
  DType dtype() const override { return dtype_of<T>; }
  const ScratchSizes& scratch_sizes() const override { return cuda_scratch_sizes(); }

  void embedding_forward(Stream& s, const EmbeddingForward& op) override { cuda::embedding_forward<T>(on(s), op); }
  void embedding_backward(Stream& s, const EmbeddingBackward& op) override { cuda::embedding_backward<T>(on(s), op); }
  void layernorm_forward(Stream& s, const LayerNormForward& op) override { cuda::layernorm_forward<T>(on(s), op); }
  void layernorm_backward(Stream& s, const LayerNormBackward& op) override { cuda::layernorm_backward<T>(on(s), op); }
  void linear_forward(Stream& s, const LinearForward& op) override { cuda::linear_forward<T>(gemm_, on(s), op); }
  void linear_backward(Stream& s, const LinearBackward& op) override { cuda::linear_backward<T>(gemm_, on(s), op); }
  void gelu_forward(Stream& s, const GeluForward& op) override { cuda::gelu_forward<T>(on(s), op); }
  void gelu_backward(Stream& s, const GeluBackward& op) override { cuda::gelu_backward<T>(on(s), op); }
  void attention_forward(Stream& s, const AttentionForward& op) override { cuda::attention_forward<T>(on(s), op); }
  void attention_backward(Stream& s, const AttentionBackward& op) override { cuda::attention_backward<T>(on(s), op); }
  void loss_head(Stream& s, const LossHead& op) override { cuda::loss_head<T>(gemm_, on(s), op); }

  void accumulate(Stream& s, float* accumulator, const float* gradient, std::int64_t n) override {
    cuda::accumulate(on(s), accumulator, gradient, n);
  }
  void finalize_gradient(Stream& s, const FinalizeGradient& op) override { cuda::finalize_gradient(on(s), op); }
  void round(Stream& s, const float* from, void* to, DType dtype, std::int64_t n) override {
    cuda::round(on(s), from, to, dtype, n);
  }
  void sum_pieces(Stream& s, const SumPieces& op) override { cuda::sum_pieces(on(s), op); }
  void adam(Stream& s, const AdamTile& tile, const AdamParams& params) override { cuda::adam(on(s), tile, params); }

 private:
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
