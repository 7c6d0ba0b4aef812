// The linear layer, forward and backward: as few passes as cuBLASLt's epilogues allow.
#include <algorithm>

#include "gpu/gemm.h"
#include "gpu/kernels/kernels.h"
#include "gpu/matrix_ops.h"
#include "gpu/scratch_sizes.h"
#include "gpu/storage_type.h"

namespace spillway::cuda {

namespace {

std::span<std::byte> workspace_of(std::span<std::byte> scratch) { return scratch.first(static_cast<std::size_t>(kGemmWorkspaceBytes)); }
std::byte* behind_workspace(std::span<std::byte> scratch) { return scratch.data() + kGemmWorkspaceBytes; }

// x * transpose(weight) + residual
template <class T>
Product sums_of(const LinearForward& op) {
  const auto [m, n, k] = op.dims;
  return {.m = m,
          .n = n,
          .k = k,
          .operands = dtype_of<T>,
          .stored = dtype_of<T>,
          .a = {op.x, k},
          .b = {op.weight, k, true},
          .result = op.y,
          .ld = n,
          .added = op.residual,
          .workspace = workspace_of(op.scratch)};
}

template <class T>
bool try_fused_gelu(Gemm& gemm, cudaStream_t stream, const LinearForward& op) {
  Product product = sums_of<T>(op);
  product.epilogue = op.bias ? Epilogue::bias_gelu : Epilogue::gelu;
  product.bias = op.bias;
  product.result = op.gelu;
  product.aux = op.y;
  return gemm.try_multiply(stream, product);
}

template <class T>
bool try_fused_bias(Gemm& gemm, cudaStream_t stream, const LinearForward& op) {
  Product product = sums_of<T>(op);
  product.epilogue = Epilogue::bias;
  product.bias = op.bias;
  return gemm.try_multiply(stream, product);
}

// The sums in f32, so that the result is rounded once, for as many rows at a time as there is scratch for.
template <class T>
void multiply_then_add(Gemm& gemm, cudaStream_t stream, const LinearForward& op) {
  const auto [m, n, k] = op.dims;
  const std::int64_t step = linear_chunk_rows(op.dims);
  for (std::int64_t first = 0; first < m; first += step) {
    const std::int64_t rows = std::min(step, m - first);
    Product product = sums_of<T>(op);
    product.m = rows;
    product.a.data = static_cast<const T*>(op.x) + first * k;
    product.stored = DType::f32;
    product.result = behind_workspace(op.scratch);
    product.added = nullptr;
    gemm.multiply(stream, product);
    linear_epilogue<T>(stream, {.product = static_cast<const float*>(product.result),
                                .bias = op.bias,
                                .residual = op.residual ? static_cast<const T*>(op.residual) + first * n : nullptr,
                                .y = static_cast<T*>(op.y) + first * n,
                                .rows = rows,
                                .n = n});
  }
}

template <class T>
void input_gradient(Gemm& gemm, cudaStream_t stream, const LinearBackward& op) {
  const auto [m, n, k] = op.dims;
  Product product{.m = m,
                  .n = k,
                  .k = n,
                  .operands = dtype_of<T>,
                  .stored = dtype_of<T>,
                  .a = {op.dy, n},
                  .b = {op.weight, k},
                  .result = op.dx,
                  .ld = k,
                  .workspace = workspace_of(op.scratch)};
  if (op.gelu_input) {
    Product fused = product;
    fused.epilogue = Epilogue::dgelu;
    fused.aux = const_cast<void*>(op.gelu_input);  // read
    if (gemm.try_multiply(stream, fused)) return;
  }
  gemm.multiply(stream, product);
  if (op.gelu_input) gelu_backward<T>(stream, {op.dx, op.gelu_input, op.dx, m * k});
}

}  // namespace

template <class T>
void linear_forward(Gemm& gemm, cudaStream_t stream, const LinearForward& op) {
  if (op.gelu && try_fused_gelu<T>(gemm, stream, op)) return;
  if (!op.bias) {
    gemm.multiply(stream, sums_of<T>(op));
  } else if (!try_fused_bias<T>(gemm, stream, op)) {
    multiply_then_add<T>(gemm, stream, op);
  }
  if (op.gelu) gelu_forward<T>(stream, {op.y, op.gelu, op.dims.m * op.dims.n});
}

template <class T>
void linear_backward(Gemm& gemm, cudaStream_t stream, const LinearBackward& op) {
  const auto [m, n, k] = op.dims;
  if (op.dx) input_gradient<T>(gemm, stream, op);
  gemm.multiply(stream, {.m = n,
                         .n = k,
                         .k = m,
                         .operands = dtype_of<T>,
                         .stored = DType::f32,
                         .a = {op.dy, n, true},
                         .b = {op.x, k},
                         .result = op.dweight,
                         .ld = k,
                         .workspace = workspace_of(op.scratch)});
  if (op.dbias) column_sum<T>(stream, op.dy, op.dbias, m, n, behind_workspace(op.scratch));
}

template void linear_forward<float>(Gemm&, cudaStream_t, const LinearForward&);
template void linear_forward<__nv_bfloat16>(Gemm&, cudaStream_t, const LinearForward&);
template void linear_forward<__half>(Gemm&, cudaStream_t, const LinearForward&);
template void linear_backward<float>(Gemm&, cudaStream_t, const LinearBackward&);
template void linear_backward<__nv_bfloat16>(Gemm&, cudaStream_t, const LinearBackward&);
template void linear_backward<__half>(Gemm&, cudaStream_t, const LinearBackward&);

}  // namespace spillway::cuda
