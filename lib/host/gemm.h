// Matrix products of the host device, f32 arithmetic by OpenBLAS, operands and results of any storage
// type. Row-major throughout; leading dimensions count elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "spillway/dtype.h"

namespace spillway::host {

// Loads OpenBLAS if it is not loaded yet; the products do so themselves. Briefly changes environment
// variables, so the first call belongs to a moment when no other thread reads the environment. Takes the
// memory that `products` calls of sgemm() at once need. Throws DeviceError if there is no OpenBLAS,
// MemoryError if the process may not have that memory.
void load_blas(int products);

enum class Transposed : bool { no, yes };

// c = alpha * op(a) * op(b) + beta * c on the calling thread alone: a is (m, k), stored (k, m) if
// transposed; b is (k, n), stored (n, k) if transposed. With beta 0, c is not read. For kernels that
// are already inside parallel_for and hold f32 tiles.
void sgemm(Transposed a_transposed, Transposed b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
           const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc);

struct GemmShape {
  std::int64_t m, n, k;  // rows and columns of the result, length of the sums
};

// c = op(a) * op(b) (+ bias (+ residual)), rounded once to C; parallel inside. For C = float also
// c += op(a) * op(b).
template <class A, class B, class C>
struct Gemm {
  GemmShape shape;
  Transposed a_transposed, b_transposed;
  const A* a;  // (m, k), or (k, m) if transposed
  std::int64_t lda;
  const B* b;  // (k, n), or (n, k) if transposed
  std::int64_t ldb;
  C* c;  // (m, n)
  std::int64_t ldc;
  const C* bias = nullptr;      // (n)
  const C* residual = nullptr;  // (m, n) with leading dimension ldc; may be c itself
  bool add_to_c = false;        // C = float, no bias, no residual
  std::span<std::byte> scratch = {};
};

// How the result leaves: `plain_f32` is C = float without bias and residual, which needs no room for
// sums beside c.
enum class GemmResult : std::uint8_t { plain_f32, rounded };

// Bytes of scratch; never more than 8 MiB.
std::int64_t gemm_scratch_bytes(const GemmShape& shape, DType a, DType b, GemmResult result);

// Instantiated for (T, T, T), (T, T, float), (float, T, T) and (float, T, float).
template <class A, class B, class C>
void gemm(const Gemm<A, B, C>& op);

}  // namespace spillway::host
