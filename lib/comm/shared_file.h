// A file that processes of one machine map together. It grows by segments, each present in full before anyone touches
// it: a full disk is an error here and not a SIGBUS later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace spillway::comm {

// Memory shared with whoever maps the same part of the file. Zero until written.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return memory_; }

 private:
  friend class SharedFile;
  Mapping(std::byte* memory, std::int64_t bytes) : memory_(memory), bytes_(bytes) {}

  std::byte* memory_ = nullptr;
  std::int64_t bytes_ = 0;
};

class SharedFile {
 public:
  // Takes the descriptor. The path is for what errors say.
  SharedFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  SharedFile(SharedFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}
  SharedFile& operator=(SharedFile&&) = delete;
  ~SharedFile();

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }

  // Makes the bytes from `offset` on present. 0, or the error number.
  int reserve(std::int64_t offset, std::int64_t bytes) const;
  // Gives them back to the file system; their mappings then read zero.
  void release(std::int64_t offset, std::int64_t bytes) const;
  // `offset` is a multiple of the page. Throws CommError.
  Mapping map(std::int64_t offset, std::int64_t bytes) const;

  [[noreturn]] void refuse(std::int64_t bytes, int error) const;

 private:
  int descriptor_;
  std::string path_;
};

// Rounds up to whole pages.
std::int64_t whole_pages(std::int64_t bytes);

}  // namespace spillway::comm
