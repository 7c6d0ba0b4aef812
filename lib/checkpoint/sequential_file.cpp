#include "checkpoint/sequential_file.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

namespace spillway::checkpoint {

SequentialFile::SequentialFile(std::string path, std::int64_t bytes, std::span<std::byte> buffer)
    : path_(std::move(path)),
      bytes_(bytes),
      buffer_(buffer),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  assert(!buffer.empty() && buffer.size() % kAlignment == 0);
  assert(reinterpret_cast<std::uintptr_t>(buffer.data()) % kAlignment == 0);
  if (!file_) throw_system_error("create", path_, errno);
  // The last block is written whole.
  constexpr auto alignment = static_cast<std::int64_t>(kAlignment);
  reserve_space(file_, (bytes + alignment - 1) / alignment * alignment, path_);
  bypass_page_cache(true);
}

void SequentialFile::bypass_page_cache(bool bypass) {
  const int flags = ::fcntl(file_.get(), F_GETFL);
  const bool done = flags >= 0 && ::fcntl(file_.get(), F_SETFL, bypass ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
  buffered_ = !(bypass && done);
}

void SequentialFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), buffer_.size() - filled_);
    std::memcpy(buffer_.data() + filled_, bytes.data(), count);
    filled_ += count;
    bytes = bytes.subspan(count);
    if (filled_ == buffer_.size()) flush(filled_);
  }
}

void SequentialFile::flush(std::size_t bytes) {
  std::span<const std::byte> rest = buffer_.first(bytes);
  while (!rest.empty()) {
    const ::ssize_t count = ::pwrite(file_.get(), rest.data(), rest.size(), written_);
    if (count < 0 && errno == EINTR) continue;
    // A file system that accepted the flag, but not this alignment; also the rest of a write that it cut short.
    if (count < 0 && errno == EINVAL && !buffered_) {
      bypass_page_cache(false);
      continue;
    }
    if (count < 0) throw_system_error("write", path_, errno);
    rest = rest.subspan(static_cast<std::size_t>(count));
    written_ += count;
  }
  filled_ = 0;
}

void SequentialFile::finish() {
  // The last block goes out whole, and is cut afterwards.
  const std::size_t padded = (filled_ + kAlignment - 1) / kAlignment * kAlignment;
  std::fill(buffer_.begin() + static_cast<std::ptrdiff_t>(filled_), buffer_.begin() + static_cast<std::ptrdiff_t>(padded), std::byte{0});
  assert(written_ + static_cast<std::int64_t>(filled_) == bytes_);
  flush(padded);
  if (::ftruncate(file_.get(), bytes_) != 0) throw_system_error("set the size of", path_, errno);
  if (::fsync(file_.get()) != 0) throw_system_error("write to disk", path_, errno);
  if (const int error = file_.close()) throw_system_error("close", path_, error);
}

}  // namespace spillway::checkpoint
