// The kernels as asynchronous operations of the host device.
#pragma once

#include <memory>

#include "spillway/dtype.h"
#include "spillway/ops.h"

namespace spillway::host {

std::unique_ptr<Ops> make_host_ops(DType dtype);

}  // namespace spillway::host
