#include "support/huge_array.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/mman.h>

#include "spillway/error.h"

namespace spillway::bench {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}

HugeArray::HugeArray(std::int64_t bytes) : mapped_bytes_((static_cast<std::size_t>(bytes) + 2 * kHugePage) / kHugePage * kHugePage) {
  mapping_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) {
    throw MemoryError(fmt::format("[bench] map {} MiB for an array: {}; take fewer parameters", mapped_bytes_ >> 20, std::strerror(errno)));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  data_ = static_cast<std::byte*>(mapping_) + ((kHugePage - address % kHugePage) % kHugePage);
  // A kernel without huge pages refuses, and small ones it is, for every contender alike.
  static_cast<void>(madvise(mapping_, mapped_bytes_, MADV_HUGEPAGE));
}

HugeArray::~HugeArray() { munmap(mapping_, mapped_bytes_); }

}  // namespace spillway::bench
