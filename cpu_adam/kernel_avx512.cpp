// The update sixteen lanes at a time. Built with -mavx512f.
#include "avx512_isa.h"

namespace spillway::cpu_adam {

const Kernels& avx512_kernels() { return kKernels<Avx512>; }

}  // namespace spillway::cpu_adam
