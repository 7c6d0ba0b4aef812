#include "cuda_sim/nccl_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cuda_sim/violation.h"

namespace cuda_sim {

struct NcclSegment::Head {
  alignas(64) std::atomic<std::uint32_t> attached;
};

std::size_t NcclSegment::bytes_for(int ranks) {
  const std::size_t n = static_cast<std::size_t>(ranks);
  return sizeof(Head) + n * sizeof(Seat) + n * n * sizeof(Box);
}

NcclSegment::NcclSegment(const std::string& name, int rank_of_caller, int ranks_of_all) : rank(rank_of_caller), ranks(ranks_of_all), name_(name) {
  const int descriptor = shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  // Every rank makes it the same size, which leaves what is in it.
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes_for(ranks))) != 0)
    violation("no shared memory for %d ranks of NCCL: %s", ranks, std::strerror(errno));
  void* const memory = mmap(nullptr, bytes_for(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  close(descriptor);
  if (memory == MAP_FAILED) violation("no address space for %d ranks of NCCL: %s", ranks, std::strerror(errno));
  memory_ = static_cast<std::byte*>(memory);
  if (reinterpret_cast<Head*>(memory_)->attached.fetch_add(1) + 1 == static_cast<std::uint32_t>(ranks)) shm_unlink(name.c_str());
}

NcclSegment::~NcclSegment() { munmap(memory_, bytes_for(ranks)); }

bool NcclSegment::all_attached() const { return reinterpret_cast<Head*>(memory_)->attached.load() == static_cast<std::uint32_t>(ranks); }

NcclSegment::Seat& NcclSegment::seat(int which) const { return reinterpret_cast<Seat*>(memory_ + sizeof(Head))[which]; }

NcclSegment::Box& NcclSegment::box(int from, int to) const {
  std::byte* const boxes = memory_ + sizeof(Head) + static_cast<std::size_t>(ranks) * sizeof(Seat);
  return reinterpret_cast<Box*>(boxes)[from * ranks + to];
}

}  // namespace cuda_sim
