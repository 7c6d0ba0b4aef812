// The Isa of kernel.h that assumes nothing of the CPU: a vector is one element.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "rounding.h"
#include "spillway/dtype.h"

namespace spillway::cpu_adam {
namespace {

struct Scalar {
  using F = float;
  using U = std::uint32_t;
  using Half = std::uint16_t;
  static constexpr int lanes = 1;

  static float load(const float* from) { return *from; }
  static void store(float* to, float x) { *to = x; }
  static Half load(const std::uint16_t* from) { return *from; }
  static void store(std::uint16_t* to, Half x) { *to = x; }
  static void stream(std::uint16_t* to, Half x) { *to = x; }
  static void fence() {}
  static float load_signed(const std::uint8_t* from) { return static_cast<float>(static_cast<std::int8_t>(*from)); }
  static float load_unsigned(const std::uint8_t* from) { return static_cast<float>(*from); }
  static void store_bytes(std::uint8_t* to, std::uint32_t x) { *to = static_cast<std::uint8_t>(x); }

  static std::uint32_t widen(Half x) { return x; }
  static Half narrow(std::uint32_t x) { return static_cast<Half>(x); }
  static float from_f16(Half x) { return spillway::to_float(f16{x}); }
  static Half to_f16(float x) { return from_float<f16>(x).bits; }
  static Half to_bf16(float x) { return narrow(nearest_bf16<Scalar>(x)); }

  static std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
  static float from_bits(std::uint32_t x) { return std::bit_cast<float>(x); }
  static std::uint32_t truncate(float x) { return static_cast<std::uint32_t>(static_cast<std::int32_t>(x)); }
  static float to_float(std::uint32_t x) { return static_cast<float>(static_cast<std::int32_t>(x)); }

  static float sqrt(float x) { return std::sqrt(x); }
  static float divide(float x, float y) { return x / y; }
  static float select(bool condition, float x, float y) { return condition ? x : y; }
  static std::uint32_t max(std::uint32_t x, std::uint32_t y) { return x > y ? x : y; }
  static std::uint32_t largest(std::uint32_t x) { return x; }
  static std::uint32_t iota() { return 0; }
  static void add_squares(double* sums, float x) { *sums += static_cast<double>(x) * static_cast<double>(x); }
};

}  // namespace
}  // namespace spillway::cpu_adam
