// The file under a swap store: without a name, every byte allocated, opened with O_DIRECT if possible.
#pragma once

#include <cstdint>
#include <string>

namespace spillway {

class SwapFile {
 public:
  // Throws IoError: folder missing or not writable, or no space.
  SwapFile(std::string folder, std::int64_t bytes);
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;

  int fd() const { return fd_; }
  const std::string& folder() const { return folder_; }
  bool buffered() const { return buffered_; }
  std::int64_t bytes_now() const;  // less than was made only if something truncated it
  std::int64_t free_bytes_now() const;  // of its file system, whatever became of the folder's name

 private:
  void allocate(std::int64_t bytes);
  void bypass_page_cache();

  std::string folder_;
  int fd_ = -1;
  bool buffered_ = false;
};

}  // namespace spillway
