// What a ring has the kernel look up once instead of for every request: memory and descriptors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <liburing.h>

namespace spillway {

// Memory that a ring has pinned, all of it or nothing, in pieces as large as the kernel takes. Where the kernel will not,
// a warning says so, once.
class RegisteredMemory {
 public:
  RegisteredMemory(io_uring* ring, std::span<std::byte> memory);

  // The piece that holds all of these bytes; -1 if none does.
  int piece_of(const std::byte* data, std::int64_t bytes) const;

 private:
  std::span<std::byte> memory_;
};

// Descriptors that a ring holds references to, likewise.
class RegisteredFiles {
 public:
  RegisteredFiles(io_uring* ring, const std::vector<int>& files);

  // The place of a descriptor among them; -1 if it has none.
  int place_of(int fd) const;

 private:
  std::vector<int> files_;
};

}  // namespace spillway
