// The file of a path: without a name, every byte allocated, opened with O_DIRECT if possible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace spillway {

class SwapFile {
 public:
  // An empty file in the folder. Throws IoError: folder missing or not writable.
  explicit SwapFile(std::string folder);
  ~SwapFile();
  SwapFile(SwapFile&& other) noexcept;
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;

  // Allocates every byte and turns to direct I/O. Once. Throws IoError: no space.
  void allocate(std::int64_t bytes);

  // Whole pages from an aligned place, synchronously. Throws IoError.
  void write(std::span<const std::byte> pages, std::int64_t offset) const;
  // An errno, or 0.
  int read(std::span<std::byte> pages, std::int64_t offset) const;

  int fd() const { return fd_; }
  const std::string& folder() const { return folder_; }
  const std::string& file_system() const { return file_system_; }  // "ext4"
  std::uint64_t device() const { return device_; }                 // equal for files that share their room
  bool buffered() const { return buffered_; }
  std::int64_t bytes() const { return bytes_; }
  std::int64_t bytes_now() const;       // fewer only if something truncated it
  std::int64_t free_bytes_now() const;  // of its file system, whatever became of the folder's name

 private:
  void bypass_page_cache();

  std::string folder_;
  int fd_ = -1;
  std::string file_system_;
  std::uint64_t device_ = 0;
  std::int64_t bytes_ = 0;
  bool buffered_ = false;
};

}  // namespace spillway
