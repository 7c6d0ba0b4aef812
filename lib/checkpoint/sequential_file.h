// A new file of known size that is written once from front to back, past the page cache where the file system lets it:
// a checkpoint neither evicts what is cached nor takes memory outside the budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "checkpoint/file_system.h"
#include "spillway/io_engine.h"

namespace spillway::checkpoint {

// Memory that O_DIRECT accepts, to write through.
class WriteBuffer {
 public:
  static constexpr std::size_t kBytes = 4 << 20;

  WriteBuffer();
  std::span<std::byte> span() const { return {data_.get(), kBytes}; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
};

class SequentialFile {
 public:
  static constexpr std::size_t kAlignment = 4096;

  // Creates the file, which must not exist, and reserves its bytes, so that a disk filling up meanwhile does no harm.
  // `buffer` is the caller's: aligned, a multiple of twice the alignment long. Each half is filled while the other is
  // written. Throws IoError, as every member does.
  SequentialFile(std::string path, std::int64_t bytes, std::span<std::byte> buffer);

  // Likewise, of a file in `folder` that has no name and is gone with this object, or with the process.
  static SequentialFile unnamed(const std::string& folder, std::int64_t bytes, std::span<std::byte> buffer);

  void append(std::span<const std::byte> bytes);

  // After all bytes: returns when they are on disk.
  void finish();

  // The file system refused to bypass the page cache.
  bool buffered() const { return buffered_; }

 private:
  SequentialFile(std::string path, Descriptor file, std::int64_t bytes, std::span<std::byte> buffer);

  void bypass_page_cache(bool bypass);
  void flush(std::size_t bytes);
  void wait();
  void write_now(std::span<const std::byte> bytes, std::int64_t offset);

  std::string path_;
  std::int64_t bytes_;
  std::span<std::byte> filling_, other_;  // halves of the buffer
  std::size_t filled_ = 0;
  std::span<std::byte> in_flight_;  // of the other half
  std::int64_t written_ = 0;        // bytes of the file, those in flight included
  bool buffered_ = false;
  Descriptor file_;
  std::unique_ptr<IoEngine> engine_;  // last: nothing is in flight when the rest goes
};

}  // namespace spillway::checkpoint
