#include "base/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/parallel.h"
#include "base/text.h"
#include "spillway/error.h"

namespace spillway {

namespace {

constexpr std::int64_t kHugePage = 2 << 20;

constexpr std::int64_t round_up(std::int64_t a, std::int64_t multiple) { return (a + multiple - 1) / multiple * multiple; }

[[noreturn]] void refuse(std::string_view purpose, std::int64_t bytes, int error) {
  throw MemoryError("[host] map " + human_bytes(bytes) + " for the " + std::string(purpose) + ": " + std::strerror(error) +
                    "; lower that budget, or raise the limit of the process (ulimit -d, -v)");
}

// Writes to every page, so that each is there before the first step, on the NUMA node of the thread that writes first.
void touch(std::byte* data, ByteRange range, std::int64_t page) {
  parallel_for((range.end - range.begin + kHugePage - 1) / kHugePage, [&](std::int64_t piece) {
    const std::int64_t begin = range.begin + piece * kHugePage, end = std::min(range.end, begin + kHugePage);
    for (std::int64_t offset = begin; offset < end; offset += page) static_cast<volatile std::byte*>(data)[offset] = std::byte{0};
  });
}

}  // namespace

Arena::Arena(std::string_view purpose, std::int64_t bytes, Pin pin, std::span<const ByteRange> stretches) {
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  if (bytes <= 0) throw MemoryError("[host] map " + std::to_string(bytes) + " bytes for the " + std::string(purpose) +
                                    ": the size has to be positive");
  const std::int64_t usable = round_up(bytes, page);
  // Address space alone first: it counts against no limit on data, leaves room to align to huge pages,
  // and what of it stays inaccessible guards the end.
  const std::int64_t reserved = usable + kHugePage + page;
  reservation_ = mmap(nullptr, static_cast<std::size_t>(reserved), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reservation_ == MAP_FAILED) refuse(purpose, bytes, errno);
  reserved_bytes_ = static_cast<std::size_t>(reserved);
  const auto start = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(reservation_));
  data_ = static_cast<std::byte*>(reservation_) + (round_up(start, kHugePage) - start);
  if (mprotect(data_, static_cast<std::size_t>(usable), PROT_READ | PROT_WRITE) != 0) {
    const int error = errno;
    munmap(reservation_, reserved_bytes_);
    refuse(purpose, bytes, error);
  }
  // Both are wishes: without them the arena works, only slower.
  if (usable >= kHugePage) madvise(data_, static_cast<std::size_t>(usable), MADV_HUGEPAGE);
  for (const ByteRange& stretch : stretches) touch(data_, stretch, page);
  touch(data_, {0, usable}, page);
  if (pin == Pin::yes) static_cast<void>(mlock(data_, static_cast<std::size_t>(usable)));
}

Arena::~Arena() {
  if (reservation_) munmap(reservation_, reserved_bytes_);
}

Arena::Arena(Arena&& other) noexcept
    : reservation_(std::exchange(other.reservation_, nullptr)),
      reserved_bytes_(other.reserved_bytes_),
      data_(other.data_) {}

}  // namespace spillway
