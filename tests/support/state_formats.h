// Every optimizer with every format of its moments, for tests that go through them.
#pragma once

#include <string>
#include <vector>

#include "base/state_format.h"
#include "spillway/config.h"

namespace spillway::testing {

inline std::vector<StateFormat> all_state_formats() {
  std::vector<StateFormat> formats;
  for (int kind = 0; kind < kOptimizerKinds; ++kind) {
    for (int moments = 0; moments < kMomentFormats; ++moments) {
      const StateFormat format{static_cast<OptimizerKind>(kind), static_cast<MomentFormat>(moments)};
      if (format.num_moments() > 0 || format.moments == MomentFormat::f32) formats.push_back(format);
    }
  }
  return formats;
}

// Parameters with which a tiny model learns.
inline OptimizerConfig optimizer_of(const StateFormat& format) {
  OptimizerConfig optimizer;
  optimizer.state = format;
  optimizer.weight_decay = 0.1;
  switch (format.kind) {
    case OptimizerKind::adam: optimizer.learning_rate = 3e-3; break;
    case OptimizerKind::adagrad: optimizer.learning_rate = 1e-2; break;
    case OptimizerKind::lion: optimizer.learning_rate = 1e-3; break;
    case OptimizerKind::sgd: optimizer.learning_rate = 0.5; break;
    case OptimizerKind::sgd_momentum:
      optimizer.learning_rate = 0.2;
      optimizer.momentum = 0.75;
      optimizer.nesterov = true;
      break;
  }
  return optimizer;
}

}  // namespace spillway::testing
