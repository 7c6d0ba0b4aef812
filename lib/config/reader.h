// Walks a configuration document along the key table.
#pragma once

#include "config/json_value.h"
#include "config/problems.h"
#include "config/settings.h"

namespace spillway::config {

// Fills the slots of `settings` from the document and records in `provenance` what the file says. Unknown keys,
// wrong types and refused features become errors in `problems`. "auto" and null leave the default.
void read_document(const Object& document, Settings& settings, Provenance& provenance, Problems& problems);

}  // namespace spillway::config
