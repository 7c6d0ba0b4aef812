// The text of the IoError that something throws.
#pragma once

#include <string>

#include "spillway/error.h"

namespace spillway::testing {

// "no error" if it throws none. Other errors pass.
template <class Action>
std::string io_error_of(Action action) {
  try {
    action();
  } catch (const IoError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace spillway::testing
