// IEEE default arithmetic for a scope. A thread that a trainer or another library put into flush-to-zero would
// otherwise compute other bits than its neighbours.
#pragma once

#include <cfenv>

namespace spillway {

class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&saved_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace spillway
