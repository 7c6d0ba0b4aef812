// The text of the IoError that something throws.
#pragma once

#include <string>

#include "support/error_of.h"

namespace spillway::testing {

template <class Action>
std::string io_error_of(Action&& action) {
  return error_of<IoError>(action);
}

}  // namespace spillway::testing
