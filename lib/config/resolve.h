// The rules between keys: turns the values of single keys into a Config that holds together.
#pragma once

#include "config/problems.h"
#include "config/settings.h"
#include "spillway/config.h"

namespace spillway::config {

// Completes settings.config, and makes the other members of `settings` say what is in force (a value that nothing
// reads becomes unset), so that writing all of them out describes the run.
void resolve(const ConfigContext& context, Settings& settings, Provenance& provenance, Problems& problems);

}  // namespace spillway::config
