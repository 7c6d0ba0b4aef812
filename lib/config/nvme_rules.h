// What the keys of the NVMe tier come to: folders, gradients, activations, aio.
#pragma once

#include "config/problems.h"
#include "config/settings.h"

namespace spillway::config {

// The devices of the offload sections being known.
void resolve_nvme(Settings& settings, Provenance& provenance, Problems& problems);

}  // namespace spillway::config
