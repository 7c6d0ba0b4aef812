// The update sixteen lanes at a time, with the CPU's own conversion to bf16. Built with -mavx512f -mavx512bf16.
#include "avx512_isa.h"

namespace spillway::cpu_adam {
namespace {

struct Avx512Bf16 : Avx512 {
  // The instruction takes subnormals for zero, in whatever mode the CPU is.
  static Half to_bf16(F x) {
    const bool all_normal = xsimd::all(magnitude<Avx512Bf16>(x) >= F(0x1p-126f));
    return all_normal ? reinterpret_cast<Half>(_mm512_cvtneps_pbh(x)) : Avx512::to_bf16(x);
  }
};

}  // namespace

const Kernels& avx512bf16_kernels() { return kKernels<Avx512Bf16>; }

}  // namespace spillway::cpu_adam
