// The update without any assumption on the CPU: the reference of the other instruction sets. Built with the project's
// baseline flags.
#include "kernel.h"
#include "scalar.h"

namespace spillway::cpu_adam {

const Kernels& scalar_kernels() { return kKernels<Scalar>; }

}  // namespace spillway::cpu_adam
