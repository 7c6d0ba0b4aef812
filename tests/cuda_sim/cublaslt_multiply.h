// The arithmetic of the simulated cuBLASLt.
#pragma once

#include <cstddef>
#include <cstdint>

#include <library_types.h>

namespace cuda_sim {

std::int64_t bytes_of(cudaDataType_t type);

// Column-major.
struct Matrix {
  cudaDataType_t type;
  std::int64_t rows, columns, ld;

  std::size_t bytes() const { return static_cast<std::size_t>(((columns - 1) * ld + rows) * bytes_of(type)); }
};

enum class After : std::uint8_t { nothing, gelu, dgelu };

// d = after(alpha * op(a) * op(b) + beta * c + bias), rounded once to d's type.
struct Multiplication {
  Matrix a, b, d;  // c and aux are as d, aux with an ld of its own
  bool a_transposed, b_transposed;
  float alpha, beta;
  const void* a_data;
  const void* b_data;
  const void* c_data;     // not read if beta is 0
  void* d_data;
  const void* bias;       // (rows of d) of d's type, or nullptr
  After after;            // gelu: aux gets what GELU is taken of; dgelu: aux is what it was taken of
  void* aux;
  std::int64_t aux_ld;
};

// f32 products, sums in f32 over runs of 256 terms and then over the runs.
void multiply(const Multiplication& op);

}  // namespace cuda_sim
