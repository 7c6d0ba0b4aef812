// In which fields two models, or the states of two runs, differ.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace spillway::checkpoint {

struct FieldDifference {
  std::string field;
  std::string first;
  std::string second;
};

// Of the shape; a model's name is only a name.
std::vector<FieldDifference> differences(const ModelSpec& first, const ModelSpec& second);

// Of what a run needs in order to go on; who wrote it aside.
std::vector<FieldDifference> differences(const RunState& first, const RunState& second);

}  // namespace spillway::checkpoint
