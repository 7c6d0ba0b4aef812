// Simulated kernels are functions of the host: there is nothing to load.
#include "gpu/kernel_list.h"

namespace spillway::cuda {

void load_kernels() {}

}  // namespace spillway::cuda
