#include "cuda_sim/cublaslt_multiply.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "spillway/dtype.h"

namespace cuda_sim {

namespace {

using spillway::bf16;
using spillway::f16;

constexpr std::int64_t kRun = 256;     // terms of a sum
constexpr std::int64_t kBlock = 1024;  // rows of the result whose sums are in flight

float load(const void* data, cudaDataType_t type, std::int64_t at) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[at];
  if (type == CUDA_R_16BF) return spillway::to_float(static_cast<const bf16*>(data)[at]);
  return spillway::to_float(static_cast<const f16*>(data)[at]);
}

void store(void* data, cudaDataType_t type, std::int64_t at, float value) {
  if (type == CUDA_R_32F) static_cast<float*>(data)[at] = value;
  if (type == CUDA_R_16BF) static_cast<bf16*>(data)[at] = spillway::from_float<bf16>(value);
  if (type == CUDA_R_16F) static_cast<f16*>(data)[at] = spillway::from_float<f16>(value);
}

// In f32, one column of the matrix after the other, or one row if `by_rows`.
std::vector<float> packed(const Matrix& m, const void* data, bool by_rows) {
  std::vector<float> values(static_cast<std::size_t>(m.rows * m.columns));
  for (std::int64_t column = 0; column < m.columns; ++column)
    for (std::int64_t row = 0; row < m.rows; ++row)
      values[static_cast<std::size_t>(by_rows ? row * m.columns + column : column * m.rows + row)] = load(data, m.type, column * m.ld + row);
  return values;
}

constexpr double kSqrt2OverPi = 0.7978845608028654, kCubic = 0.044715;

double gelu(double x) { return 0.5 * x * (1.0 + std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x))); }

double gelu_derivative(double x) {
  const double t = std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * kSqrt2OverPi * (1.0 + 3.0 * kCubic * x * x);
}

float finish(const Multiplication& op, std::int64_t row, std::int64_t column, float sum) {
  const std::int64_t at = column * op.d.ld + row, aux_at = column * op.aux_ld + row;
  float value = op.alpha * sum;
  if (op.beta != 0.0f) value += op.beta * load(op.c_data, op.d.type, at);
  if (op.bias != nullptr) value += load(op.bias, op.d.type, row);
  switch (op.after) {
    case After::nothing: return value;
    case After::gelu: store(op.aux, op.d.type, aux_at, value); return static_cast<float>(gelu(value));
    case After::dgelu: return static_cast<float>(value * gelu_derivative(load(op.aux, op.d.type, aux_at)));
  }
  return value;
}

// sums[i] = sum over l of a[l][i] * b[l], for i < rows; a's rows are `ld` apart.
void sum_products(const float* a, std::int64_t ld, const float* b, std::int64_t terms, std::int64_t rows, float* sums) {
  std::fill_n(sums, rows, 0.0f);
  for (std::int64_t first = 0; first < terms; first += kRun) {
    float run[kBlock] = {};
    for (std::int64_t l = first; l < std::min(terms, first + kRun); ++l) {
      const float factor = b[l];
      const float* const values = a + l * ld;
      for (std::int64_t i = 0; i < rows; ++i) run[i] += values[i] * factor;
    }
    for (std::int64_t i = 0; i < rows; ++i) sums[i] += run[i];
  }
}

}  // namespace

std::int64_t bytes_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

void multiply(const Multiplication& op) {
  const std::int64_t rows = op.d.rows, terms = op.a_transposed ? op.a.rows : op.a.columns;
  const std::vector<float> a = packed(op.a, op.a_data, op.a_transposed);   // a's l-th column of op(a) at l * rows
  const std::vector<float> b = packed(op.b, op.b_data, op.b_transposed);   // op(b)'s j-th column at j * terms
  std::vector<float> sums(static_cast<std::size_t>(kBlock));
  for (std::int64_t first = 0; first < rows; first += kBlock) {
    const std::int64_t count = std::min(kBlock, rows - first);
    for (std::int64_t column = 0; column < op.d.columns; ++column) {
      sum_products(a.data() + first, rows, b.data() + column * terms, terms, count, sums.data());
      for (std::int64_t i = 0; i < count; ++i)
        store(op.d_data, op.d.type, column * op.d.ld + first + i, finish(op, first + i, column, sums[static_cast<std::size_t>(i)]));
    }
  }
}

}  // namespace cuda_sim
