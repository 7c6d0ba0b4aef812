// The swap store that a plan asks for, under a configuration.
#pragma once

#include <optional>

#include "spillway/config.h"
#include "spillway/plan.h"
#include "spillway/swap_store.h"

namespace spillway {

// Extent e of the store is extent e of the plan. Weights lie on offload_param's path, optimizer state on
// offload_optimizer's, everything else on any. Nothing if the plan has nothing on NVMe.
std::optional<SwapStoreOptions> swap_store_options(const Config& config, const Plan& plan);

}  // namespace spillway
