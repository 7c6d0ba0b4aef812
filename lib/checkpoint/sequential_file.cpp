#include "checkpoint/sequential_file.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace spillway::checkpoint {

namespace {

constexpr std::align_val_t kPage{SequentialFile::kAlignment};

}  // namespace

WriteBuffer::WriteBuffer() : data_(static_cast<std::byte*>(::operator new(kBytes, kPage))) {}

void WriteBuffer::Free::operator()(std::byte* data) const { ::operator delete(data, kPage); }

SequentialFile::SequentialFile(std::string path, std::int64_t bytes, std::span<std::byte> buffer)
    : SequentialFile(path, create_file(path), bytes, buffer) {}

SequentialFile SequentialFile::unnamed(const std::string& folder, std::int64_t bytes, std::span<std::byte> buffer) {
  return SequentialFile(folder, create_unnamed_file(folder), bytes, buffer);
}

SequentialFile::SequentialFile(std::string path, Descriptor file, std::int64_t bytes, std::span<std::byte> buffer)
    : path_(std::move(path)),
      bytes_(bytes),
      filling_(buffer.first(buffer.size() / 2)),
      other_(buffer.last(buffer.size() / 2)),
      file_(std::move(file)),
      engine_(make_io_engine({.name = "auto", .depth = 1})) {
  assert(!buffer.empty() && buffer.size() % (2 * kAlignment) == 0);
  assert(reinterpret_cast<std::uintptr_t>(buffer.data()) % kAlignment == 0);
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
    const std::size_t count = std::min(bytes.size(), filling_.size() - filled_);
    std::memcpy(filling_.data() + filled_, bytes.data(), count);
    filled_ += count;
    bytes = bytes.subspan(count);
    if (filled_ == filling_.size()) flush(filled_);
  }
}

void SequentialFile::flush(std::size_t bytes) {
  wait();
  in_flight_ = filling_.first(bytes);
  const auto count = static_cast<std::int64_t>(bytes);
  [[maybe_unused]] const bool taken = engine_->queue(
      {.op = IoOp::write, .fd = file_.get(), .offset = written_, .data = in_flight_.data(), .bytes = count, .tag = 0});
  assert(taken);
  engine_->submit();
  written_ += count;
  std::swap(filling_, other_);
  filled_ = 0;
}

void SequentialFile::wait() {
  if (in_flight_.empty()) return;
  IoResult result{};
  engine_->reap({&result, 1}, 1);
  // What was not moved, for whatever reason, is tried again at once: either it goes now, or the reason is known.
  const auto moved = static_cast<std::size_t>(result.error == 0 ? result.bytes : 0);
  const std::span<const std::byte> rest = std::exchange(in_flight_, {}).subspan(moved);
  write_now(rest, written_ - static_cast<std::int64_t>(rest.size()));
}

void SequentialFile::write_now(std::span<const std::byte> bytes, std::int64_t offset) {
  while (!bytes.empty()) {
    const ::ssize_t count = ::pwrite(file_.get(), bytes.data(), bytes.size(), offset);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    // A file system that accepted the flag, but not this alignment; also the rest of a write that was cut short.
    if (count < 0 && errno == EINVAL && !buffered_) {
      bypass_page_cache(false);
      continue;
    }
    if (count < 0) throw_system_error("write", path_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

void SequentialFile::finish() {
  assert(written_ + static_cast<std::int64_t>(filled_) == bytes_);
  // The last block goes out whole, and is cut afterwards.
  const std::size_t padded = (filled_ + kAlignment - 1) / kAlignment * kAlignment;
  std::ranges::fill(filling_.subspan(filled_, padded - filled_), std::byte{0});
  if (padded > 0) flush(padded);
  wait();
  if (::ftruncate(file_.get(), bytes_) != 0) throw_system_error("set the size of", path_, errno);
  if (::fsync(file_.get()) != 0) throw_system_error("write to disk", path_, errno);
  if (const int error = file_.close()) throw_system_error("close", path_, error);
}

}  // namespace spillway::checkpoint
