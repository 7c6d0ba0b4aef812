// Products of matrices on the device, by cuBLASLt. Row-major throughout; leading dimensions count elements. f32 operands are
// multiplied in f32 (no TF32), 16-bit ones on tensor cores with f32 sums. The same product gives the same bits every time:
// sums are split only over parts that are added in a fixed order, and the algorithm is a function of the product alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <cuda_runtime_api.h>

#include "spillway/dtype.h"

namespace spillway::cuda {

// What happens to the sums, in f32, before they are rounded.
enum class Epilogue : std::uint8_t {
  none,
  bias,       // + bias
  gelu,       // aux = sums, result = GELU(sums), tanh form
  bias_gelu,  // aux = sums + bias, result = GELU of that
  dgelu,      // sums * derivative of GELU at aux
};

struct Operand {
  const void* data;
  std::int64_t ld;
  bool transposed = false;
};

// result(m, n) = epilogue(op(a)(m, k) * op(b)(k, n) + added(m, n))
struct Product {
  std::int64_t m, n, k;
  DType operands;  // of a and b
  DType stored;    // of result, added, bias and aux: `operands` or f32
  Operand a, b;    // (m, k) and (k, n); stored the other way round if transposed
  void* result;
  std::int64_t ld;              // of result, added and aux
  const void* added = nullptr;  // nullptr, result itself, or memory apart from it
  Epilogue epilogue = Epilogue::none;
  const void* bias = nullptr;  // (n)
  void* aux = nullptr;
  std::span<std::byte> workspace;
};

// Keeps what cuBLASLt answered for each kind of product, so that a product seen before is a look-up and allocates
// nothing. Thread-safe.
class Gemm {
 public:
  Gemm();  // on the device that is current; throws DeviceError
  ~Gemm();

  // Enqueues the product, or returns false if cuBLASLt has no algorithm for it; says so once for each epilogue and dtype.
  [[nodiscard]] bool try_multiply(cudaStream_t stream, const Product& product);

  // The same for a product that has no other way: throws DeviceError.
  void multiply(cudaStream_t stream, const Product& product);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway::cuda
