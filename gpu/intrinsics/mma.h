// Products of small matrices by one warp on the tensor cores, and how their operands come out of shared memory.
//
// A fragment is what each of the 32 lanes holds of a matrix. With g = lane / 4 and t = lane % 4:
//   a (16 x 16, 16-bit): a[0] = row g, columns 2t and 2t+1; a[1] = row g+8, the same; a[2], a[3] = the columns 8 later
//   b (16 x 8, 16-bit):  b[0] = rows 2t and 2t+1 of column g; b[1] = the rows 8 later
//   c (16 x 8, f32):     c[0], c[1] = row g, columns 2t and 2t+1; c[2], c[3] = row g+8
// Of two elements in one register, the first is in the lower half. (PTX ISA 9.0, section 9.7.14.5.8.)
//
// All lanes of the warp call each function together.
#pragma once

#ifndef __CUDACC__
#error "this is nvcc's half of intrinsics/mma.h; the simulation's folder has to come first in the include path"
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace spillway::gpu {

// c += a * b with f32 accumulation. T: __half or __nv_bfloat16.
template <class T>
__device__ inline void mma_tile(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]);

template <>
__device__ inline void mma_tile<__half>(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ inline void mma_tile<__nv_bfloat16>(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 x 8 matrices of 16-bit elements from shared memory. Lane l gives the address of row l % 8 of matrix l / 8, a
// multiple of 16 bytes; it gets columns 2t and 2t+1 of row g of matrix i in registers[i].
__device__ inline void load_matrices(unsigned (&registers)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

// The same, each matrix transposed: rows 2t and 2t+1 of column g.
__device__ inline void load_matrices_transposed(unsigned (&registers)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

}  // namespace spillway::gpu
