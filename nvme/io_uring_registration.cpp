#include "io_uring_registration.h"

#include <algorithm>
#include <atomic>
#include <cerrno>

#include <fmt/format.h>

#include "base/log.h"
#include "base/text.h"
#include "errno_text.h"
#include "io_uring_setup_error.h"

namespace spillway {

namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 30;

void warn_of_memory(std::size_t bytes, int error) {
  static std::atomic_flag warned;
  if (warned.test_and_set()) return;
  const std::string advice = error == EOPNOTSUPP ? std::string("memory that is a file's cannot be pinned") : locked_memory_advice();
  log_warning(fmt::format("[nvme] io_uring: register {} of memory: {}; every request pins its pages anew, which costs processor time; {}",
                          human_bytes(static_cast<std::int64_t>(bytes)), errno_text(error), advice));
}

void warn_of_files(std::size_t count, int error) {
  static std::atomic_flag warned;
  if (warned.test_and_set()) return;
  log_warning(fmt::format("[nvme] io_uring: register {} open files: {}; every request looks its file up, which costs processor time; {}", count,
                          errno_text(error), error == EMFILE ? "raise the limit on open files (ulimit -n)" : locked_memory_advice()));
}

}  // namespace

RegisteredMemory::RegisteredMemory(io_uring* ring, std::span<std::byte> memory) {
  if (memory.empty()) return;
  std::vector<iovec> pieces;
  for (std::size_t offset = 0; offset < memory.size(); offset += kPieceBytes)
    pieces.push_back({memory.data() + offset, std::min(kPieceBytes, memory.size() - offset)});
  const int error = -io_uring_register_buffers(ring, pieces.data(), static_cast<unsigned>(pieces.size()));
  if (error == 0) {
    memory_ = memory;
  } else {
    warn_of_memory(memory.size(), error);
  }
}

int RegisteredMemory::piece_of(const std::byte* data, std::int64_t bytes) const {
  if (data < memory_.data() || data + bytes > memory_.data() + memory_.size()) return -1;
  const auto first = static_cast<std::size_t>(data - memory_.data());
  const std::size_t piece = first / kPieceBytes;
  return first + static_cast<std::size_t>(bytes) <= (piece + 1) * kPieceBytes ? static_cast<int>(piece) : -1;
}

RegisteredFiles::RegisteredFiles(io_uring* ring, const std::vector<int>& files) {
  if (files.empty()) return;
  const int error = -io_uring_register_files(ring, files.data(), static_cast<unsigned>(files.size()));
  if (error == 0) {
    files_ = files;
  } else {
    warn_of_files(files.size(), error);
  }
}

int RegisteredFiles::place_of(int fd) const {
  const auto found = std::ranges::find(files_, fd);
  return found == files_.end() ? -1 : static_cast<int>(found - files_.begin());
}

}  // namespace spillway
