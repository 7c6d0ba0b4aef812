// The update four lanes at a time, on 64-bit Arm, all of which have NEON.
#include <arm_neon.h>

#include "kernel.h"
#include "xsimd_isa.h"

namespace spillway::cpu_adam {
namespace {

// xsimd's own architecture: it is what everything on 64-bit Arm may use, so whose copy of a function is linked is all one.
struct Neon : XsimdIsa<xsimd::neon64> {
  using Half = uint16x4_t;
  using XsimdIsa::load;
  using XsimdIsa::store;

  static Half load(const std::uint16_t* from) { return vld1_u16(from); }
  static void store(std::uint16_t* to, Half x) { vst1_u16(to, x); }
  // No NEON intrinsic writes past the cache; lines written whole are recognised by the CPU.
  static void stream(std::uint16_t* to, Half x) { store(to, x); }
  static void fence() {}

  static F load_signed(const std::uint8_t* from) {
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_bytes(from))))));
  }
  static F load_unsigned(const std::uint8_t* from) {
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(load_bytes(from)))));
  }
  static void store_bytes(std::uint8_t* to, U x) {
    const uint16x4_t halves = vmovn_u32(x);
    const uint8x8_t bytes = vmovn_u16(vcombine_u16(halves, halves));
    const std::uint32_t word = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
    __builtin_memcpy(to, &word, sizeof word);
  }

  static U widen(Half x) { return vmovl_u16(x); }
  static Half narrow(U x) { return vmovn_u32(x); }
  static F from_f16(Half x) { return vcvt_f32_f16(vreinterpret_f16_u16(x)); }
  static Half to_f16(F x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }
  static Half to_bf16(F x) { return narrow(nearest_bf16<Neon>(x)); }

  // xsimd 8.1 has the estimates and Newton steps of 32-bit Arm here, which are an ulp off.
  static F sqrt(F x) { return vsqrtq_f32(x); }
  static F divide(F x, F y) { return vdivq_f32(x, y); }

  static void add_squares(double* sums, F x) {
    add_squares(sums, vcvt_f64_f32(vget_low_f32(x)));
    add_squares(sums + 2, vcvt_high_f64_f32(x));
  }

 private:
  static uint8x8_t load_bytes(const std::uint8_t* from) {
    std::uint32_t word;
    __builtin_memcpy(&word, from, sizeof word);
    return vreinterpret_u8_u32(vdup_n_u32(word));
  }
  static void add_squares(double* sums, float64x2_t x) { vst1q_f64(sums, vaddq_f64(vld1q_f64(sums), vmulq_f64(x, x))); }
};

}  // namespace

const Kernels& neon_kernels() { return kKernels<Neon>; }

}  // namespace spillway::cpu_adam
