#include "cuda_sim/violation.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace cuda_sim {

void violation(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::fputs("cuda_sim: violation: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
  std::abort();
}

}  // namespace cuda_sim
