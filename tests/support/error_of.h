// The text of the error that something throws.
#pragma once

#include <string>

#include "spillway/error.h"

namespace spillway::testing {

// "no error" if it throws none. Errors that are no E pass.
template <class E = Error, class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace spillway::testing
