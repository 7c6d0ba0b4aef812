// Which optimizers there are, which parameters each takes with which defaults, and what they come to.
#pragma once

#include <span>
#include <string_view>

#include "config/problems.h"
#include "config/settings.h"

namespace spillway::config {

// Names that optimizer.type may have.
std::span<const std::string_view> optimizer_types();

// Fills settings.config.optimizer, the precision of the model being known. What is in force of the parameters stands in
// `settings` then; what the optimizer does not take is unset.
void resolve_optimizer(Settings& settings, Provenance& provenance, Problems& problems);

}  // namespace spillway::config
