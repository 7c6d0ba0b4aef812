// What the vector Isas of kernel.h have in common, on xsimd. See kernel.h on linkage.
#pragma once

#include <xsimd/xsimd.hpp>

#include "kernels.h"

namespace spillway::cpu_adam {
namespace {

constexpr std::uint32_t kIota[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// `Arch`: an xsimd architecture of an anonymous namespace.
template <class Arch>
struct XsimdFloats {
  using F = xsimd::batch<float, Arch>;
  static constexpr int lanes = static_cast<int>(F::size);

  static F load(const float* from) { return F::load_unaligned(from); }
  static void store(float* to, F x) { x.store_unaligned(to); }
  static F sqrt(F x) { return xsimd::sqrt(x); }
  static F divide(F x, F y) { return x / y; }
  static F select(xsimd::batch_bool<float, Arch> condition, F x, F y) { return xsimd::select(condition, x, y); }
};

// With xsimd's integers.
template <class Arch>
struct XsimdIsa : XsimdFloats<Arch> {
  using typename XsimdFloats<Arch>::F;
  using U = xsimd::batch<std::uint32_t, Arch>;
  using I = xsimd::batch<std::int32_t, Arch>;

  static U bits(F x) { return xsimd::bitwise_cast<U>(x); }
  static F from_bits(U x) { return xsimd::bitwise_cast<F>(x); }
  static U truncate(F x) { return xsimd::bitwise_cast<U>(xsimd::to_int(x)); }
  static F to_float(U x) { return xsimd::to_float(xsimd::bitwise_cast<I>(x)); }

  static U max(U x, U y) { return xsimd::max(x, y); }
  static U iota() { return U::load_unaligned(kIota); }

  static std::uint32_t largest(U x) {
    std::uint32_t elements[U::size];
    x.store_unaligned(elements);
    std::uint32_t result = elements[0];
    for (const std::uint32_t element : elements) result = element > result ? element : result;
    return result;
  }
};

}  // namespace
}  // namespace spillway::cpu_adam

// The registers of an architecture of ours. Not xsimd's alias macro: that would inherit members of a type with external
// linkage. xsimd's overload sets name vectors of 64-bit types too.
#define SPILLWAY_XSIMD_REGISTERS(ARCH, FLOATS, DOUBLES, INTEGERS, UNSIGNED_INTEGERS, LONGS, UNSIGNED_LONGS) \
  namespace xsimd::types {                                              \
  XSIMD_DECLARE_SIMD_REGISTER(float, ARCH, FLOATS);                     \
  XSIMD_DECLARE_SIMD_REGISTER(double, ARCH, DOUBLES);                   \
  XSIMD_DECLARE_SIMD_REGISTER(std::int32_t, ARCH, INTEGERS);            \
  XSIMD_DECLARE_SIMD_REGISTER(std::uint32_t, ARCH, UNSIGNED_INTEGERS);  \
  XSIMD_DECLARE_SIMD_REGISTER(std::int64_t, ARCH, LONGS);               \
  XSIMD_DECLARE_SIMD_REGISTER(std::uint64_t, ARCH, UNSIGNED_LONGS);     \
  }
