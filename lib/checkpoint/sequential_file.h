// A new file of known size that is written once from front to back, past the page cache where the file system lets it:
// a checkpoint neither evicts what is cached nor takes memory outside the budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "checkpoint/file_system.h"

namespace spillway::checkpoint {

class SequentialFile {
 public:
  static constexpr std::size_t kAlignment = 4096;

  // Creates the file, which must not exist, and reserves its bytes, so that a disk filling up meanwhile does no harm.
  // `buffer` is the caller's: aligned, a multiple of the alignment long. Throws IoError, as every member does.
  SequentialFile(std::string path, std::int64_t bytes, std::span<std::byte> buffer);

  void append(std::span<const std::byte> bytes);

  // After all bytes: returns when they are on disk.
  void finish();

  // The file system refused to bypass the page cache.
  bool buffered() const { return buffered_; }

 private:
  void bypass_page_cache(bool bypass);
  void flush(std::size_t bytes);

  std::string path_;
  std::int64_t bytes_;
  std::span<std::byte> buffer_;
  Descriptor file_;
  std::size_t filled_ = 0;
  std::int64_t written_ = 0;
  bool buffered_ = false;
};

}  // namespace spillway::checkpoint
