// What kernels over arrays share: elements in vectors of up to 16 bytes, handled in f32, and launches sized for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "intrinsics/launch.h"
#include "intrinsics/math.h"
#include "spillway/dtype.h"

namespace spillway::cuda {

using gpu::from_float;
using gpu::launch;
using gpu::LaunchShape;
using gpu::to_float;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t multiple) { return divide_up(a, multiple) * multiple; }

inline constexpr int kVectorBytes = 16;  // the widest load of a thread
template <class T>
inline constexpr int kVectorWidth = kVectorBytes / static_cast<int>(sizeof(T));

// A thread's share of an array: one load or store for each 16 bytes.
template <class T, int width>
struct alignas(sizeof(T) * width < kVectorBytes ? sizeof(T) * width : kVectorBytes) Vector {
  T values[width];
};

// Whether vectors of `width` elements may start at p.
template <int width, class T>
bool is_aligned(const T* p) {
  return reinterpret_cast<std::uintptr_t>(p) % alignof(Vector<T, width>) == 0;
}

template <int width, class T>
__device__ inline Vector<T, width> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T, width>*>(from);
}

template <int width, class T>
__device__ inline void widen(const Vector<T, width>& vector, float (&values)[width]) {
#pragma unroll
  for (int k = 0; k < width; ++k) values[k] = to_float(vector.values[k]);
}

// values = the first `count` elements of `from`, and 0.
template <int width, class T>
__device__ inline void load(const T* from, std::int64_t count, float (&values)[width]) {
  if (count >= width) {
    widen(load_vector<width>(from), values);
  } else {
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] = k < count ? to_float(from[k]) : 0.0f;
  }
}

// The first `count` elements of `to` = values, rounded.
template <int width, class T>
__device__ inline void store(const float (&values)[width], T* to, std::int64_t count) {
  if (count >= width) {
    Vector<T, width> vector;
#pragma unroll
    for (int k = 0; k < width; ++k) vector.values[k] = from_float<T>(values[k]);
    *reinterpret_cast<Vector<T, width>*>(to) = vector;
  } else {
#pragma unroll
    for (int k = 0; k < width; ++k) {
      if (k < count) to[k] = from_float<T>(values[k]);
    }
  }
}

// Element-wise kernels: a thread takes every gridDim * blockDim-th vector of [0, n).
inline constexpr int kElementThreads = 256;

// At most as many blocks as an H200 holds at once, 8 on each of 132 multiprocessors; beyond, threads loop.
inline LaunchShape element_shape(std::int64_t n, int width) {
  constexpr std::int64_t kMaxBlocks = 8 * 132;
  const std::int64_t blocks = std::min(kMaxBlocks, divide_up(n, std::int64_t{kElementThreads} * width));
  return {dim3(static_cast<unsigned>(blocks)), dim3(kElementThreads)};
}

// f(i, count) for every vector of the thread: elements i to i + count - 1; count is larger than width where more follow.
template <int width, class F>
__device__ inline void for_each_vector(std::int64_t n, F f) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x * width;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * width; i < n; i += stride) f(i, n - i);
}

template <class T>
struct StorageType {
  using type = T;
};

// f(StorageType<T>) for the storage type T that is called `dtype`.
template <class F>
void with_storage_type(DType dtype, F f) {
  switch (dtype) {
    case DType::f32: return f(StorageType<float>{});
    case DType::bf16: return f(StorageType<__nv_bfloat16>{});
    case DType::f16: return f(StorageType<__half>{});
  }
}

// f(std::integral_constant<int, w>) for the widest vectors allowed: `width` elements, or one.
template <int width, class F>
void with_vectors_if(bool allowed, F f) {
  if (allowed) {
    f(std::integral_constant<int, width>{});
  } else {
    f(std::integral_constant<int, 1>{});
  }
}

}  // namespace spillway::cuda
