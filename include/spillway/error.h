// The errors a caller of Spillway can be told about. Every one carries a complete sentence: what was
// attempted, on what, why it failed and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace spillway {

// Base of everything the library throws on purpose. Anything else escaping the library is a bug.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A value the user gave (config file, model file, command line) cannot be used.
class ConfigError : public Error {
 public:
  using Error::Error;
};

// Training data is missing, unreadable, malformed or too short.
class DataError : public Error {
 public:
  using Error::Error;
};

// A memory budget is too small, or the operating system refused memory.
class MemoryError : public Error {
 public:
  using Error::Error;
};

// A file or a disk failed: no space, EIO, a checksum that does not match.
class IoError : public Error {
 public:
  using Error::Error;
};

// Another rank failed, died or does not answer, or the ranks disagree.
class CommError : public Error {
 public:
  using Error::Error;
};

// The device (or its driver) is absent or failed.
class DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace spillway
