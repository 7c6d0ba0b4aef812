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
  // Gives the pages back at once; a ring that is closed does so some time later.
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  // The piece that holds all of these bytes; -1 if none does.
  int piece_of(const std::byte* data, std::int64_t bytes) const;

 private:
  io_uring* ring_;
  std::span<std::byte> memory_;
};

// Descriptors that a ring holds references to, likewise.
class RegisteredFiles {
 public:
  RegisteredFiles(io_uring* ring, const std::vector<int>& files);
  ~RegisteredFiles();  // likewise
  RegisteredFiles(const RegisteredFiles&) = delete;
  RegisteredFiles& operator=(const RegisteredFiles&) = delete;

  // The place of a descriptor among them; -1 if it has none.
  int place_of(int fd) const;

 private:
  io_uring* ring_;
  std::vector<int> files_;
};

}  // namespace spillway
