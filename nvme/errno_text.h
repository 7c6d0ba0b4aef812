// The text of an errno, from any thread.
#pragma once

#include <cstring>
#include <string>

namespace spillway {

// strerror() may share a buffer between threads; the glibc call returns a constant.
inline std::string errno_text(int error) {
  const char* text = strerrordesc_np(error);
  return text != nullptr ? text : "errno " + std::to_string(error);
}

}  // namespace spillway
