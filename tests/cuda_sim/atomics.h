// Atomic operations of kernels, on integers: the sum of floats would depend on the order of arrival, so those do not
// compile.
#pragma once

#include <concepts>

namespace cuda_sim {

template <class T>
concept AtomicInteger = std::same_as<T, int> || std::same_as<T, unsigned> || std::same_as<T, unsigned long long>;

// Replaces *p by combine(*p) and returns what it was.
template <class T, class Combine>
T atomic_update(T* p, Combine combine) {
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(p, &old, combine(old), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}

}  // namespace cuda_sim

template <cuda_sim::AtomicInteger T>
T atomicAdd(T* p, T value) {
  return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
float atomicAdd(float* p, float value) = delete;
double atomicAdd(double* p, double value) = delete;

template <cuda_sim::AtomicInteger T>
T atomicMax(T* p, T value) {
  return cuda_sim::atomic_update(p, [=](T old) { return old < value ? value : old; });
}

template <cuda_sim::AtomicInteger T>
T atomicMin(T* p, T value) {
  return cuda_sim::atomic_update(p, [=](T old) { return value < old ? value : old; });
}

template <cuda_sim::AtomicInteger T>
T atomicOr(T* p, T value) {
  return __atomic_fetch_or(p, value, __ATOMIC_RELAXED);
}

template <cuda_sim::AtomicInteger T>
T atomicAnd(T* p, T value) {
  return __atomic_fetch_and(p, value, __ATOMIC_RELAXED);
}

template <cuda_sim::AtomicInteger T>
T atomicExch(T* p, T value) {
  return __atomic_exchange_n(p, value, __ATOMIC_RELAXED);
}

template <cuda_sim::AtomicInteger T>
T atomicCAS(T* p, T expected, T value) {
  __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
