#include "comm/shared_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "spillway/error.h"

namespace spillway::comm {

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (memory_ != nullptr) munmap(memory_, static_cast<std::size_t>(bytes_));
}

SharedFile::~SharedFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

int SharedFile::reserve(std::int64_t offset, std::int64_t bytes) const {
  int error;
  do error = posix_fallocate(descriptor_, offset, bytes);
  while (error == EINTR);
  return error;
}

void SharedFile::release(std::int64_t offset, std::int64_t bytes) const {
  // Where the file system cannot, the memory stays until the ranks have ended.
  [[maybe_unused]] const int result = fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
}

Mapping SharedFile::map(std::int64_t offset, std::int64_t bytes) const {
  void* const memory = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, offset);
  if (memory == MAP_FAILED) refuse(bytes, errno);
  return {static_cast<std::byte*>(memory), bytes};
}

void SharedFile::refuse(std::int64_t bytes, int error) const {
  throw CommError(fmt::format("[comm] share {} bytes with the other ranks through {}: {}; make room there (a container's /dev/shm grows with "
                              "--shm-size), or let the ranks meet at another file with SPILLWAY_RENDEZVOUS",
                              bytes, path_, std::strerror(error)));
}

std::int64_t whole_pages(std::int64_t bytes) {
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

}  // namespace spillway::comm
