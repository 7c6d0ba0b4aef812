// What the module does not have yet.
#include "gpu/ops.h"
#include "spillway/error.h"

namespace spillway::cuda {

std::unique_ptr<Ops> make_ops(DType) { throw DeviceError("[cuda] make the operations: this build has no kernels"); }

}  // namespace spillway::cuda
