// The linear layer, forward and backward.
#include <algorithm>

#include "base/clones.h"
#include "host/dtype_of.h"
#include "host/gemm.h"
#include "host/kernels.h"
#include "host/partition.h"

namespace spillway::host {

namespace {

constexpr std::int64_t kSumColumns = 64;  // per piece
constexpr std::int64_t kSumRows = 64;     // summed before they join the total: keeps rounding errors small

// sums[0 .. columns) of (rows, ld) x, each in the order of the rows, kSumRows at a time.
template <class T>
SPILLWAY_CLONES void sum_columns(const T* x, std::int64_t ld, std::int64_t rows, std::int64_t columns, float* sums) {
  float total[kSumColumns] = {};
  for (std::int64_t first = 0; first < rows; first += kSumRows) {
    float part[kSumColumns] = {};
    for (std::int64_t row = first; row < std::min(rows, first + kSumRows); ++row)
      for (std::int64_t i = 0; i < columns; ++i) part[i] += to_float(x[row * ld + i]);
    for (std::int64_t i = 0; i < columns; ++i) total[i] += part[i];
  }
  for (std::int64_t i = 0; i < columns; ++i) sums[i] = total[i];
}

constexpr GemmShape input_gradient_shape(const MatmulDims& d) { return {d.m, d.k, d.n}; }
constexpr GemmShape weight_gradient_shape(const MatmulDims& d) { return {d.n, d.k, d.m}; }

}  // namespace

std::int64_t linear_forward_scratch_bytes(DType dtype, const MatmulDims& dims) {
  return gemm_scratch_bytes({dims.m, dims.n, dims.k}, dtype, dtype, GemmResult::rounded);
}

std::int64_t linear_backward_scratch_bytes(DType dtype, const MatmulDims& dims) {
  return std::max(gemm_scratch_bytes(input_gradient_shape(dims), dtype, dtype, GemmResult::rounded),
                  gemm_scratch_bytes(weight_gradient_shape(dims), dtype, dtype, GemmResult::plain_f32));
}

template <class T>
void linear_forward(const LinearForward& op) {
  const auto [m, n, k] = op.dims;
  gemm(Gemm<T, T, T>{.shape = {m, n, k},
                     .a_transposed = Transposed::no,
                     .b_transposed = Transposed::yes,
                     .a = static_cast<const T*>(op.x),
                     .lda = k,
                     .b = static_cast<const T*>(op.weight),
                     .ldb = k,
                     .c = static_cast<T*>(op.y),
                     .ldc = n,
                     .bias = static_cast<const T*>(op.bias),
                     .residual = static_cast<const T*>(op.residual),
                     .scratch = op.scratch});
  if (op.gelu) gelu_forward<T>({op.y, op.gelu, m * n});
}

template <class T>
void linear_backward(const LinearBackward& op) {
  const auto [m, n, k] = op.dims;
  const T* const dy = static_cast<const T*>(op.dy);
  if (op.dx)
    gemm(Gemm<T, T, T>{.shape = input_gradient_shape(op.dims),
                       .a_transposed = Transposed::no,
                       .b_transposed = Transposed::no,
                       .a = dy,
                       .lda = n,
                       .b = static_cast<const T*>(op.weight),
                       .ldb = k,
                       .c = static_cast<T*>(op.dx),
                       .ldc = k,
                       .scratch = op.scratch});
  if (op.dx && op.gelu_input) gelu_backward<T>({op.dx, op.gelu_input, op.dx, m * k});
  gemm(Gemm<T, T, float>{.shape = weight_gradient_shape(op.dims),
                         .a_transposed = Transposed::yes,
                         .b_transposed = Transposed::no,
                         .a = dy,
                         .lda = n,
                         .b = static_cast<const T*>(op.x),
                         .ldb = k,
                         .c = op.dweight,
                         .ldc = k,
                         .scratch = op.scratch});
  if (op.dbias)
    for_each_piece(Cut{n, kSumColumns}, [&, m = m, n = n](std::int64_t first, std::int64_t columns) {
      sum_columns(dy + first, n, m, columns, op.dbias + first);
    });
}

template void linear_forward<float>(const LinearForward&);
template void linear_forward<bf16>(const LinearForward&);
template void linear_forward<f16>(const LinearForward&);
template void linear_backward<float>(const LinearBackward&);
template void linear_backward<bf16>(const LinearBackward&);
template void linear_backward<f16>(const LinearBackward&);

}  // namespace spillway::host
