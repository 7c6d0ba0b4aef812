// What the ranks of one simulated NCCL communicator share, be they threads or processes: POSIX shared memory, whose name
// is removed when all have it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace cuda_sim {

class NcclSegment {
 public:
  // Opens or makes it. A failure is a violation.
  NcclSegment(const std::string& name, int rank, int ranks);
  ~NcclSegment();
  NcclSegment(const NcclSegment&) = delete;
  NcclSegment& operator=(const NcclSegment&) = delete;

  bool all_attached() const;

  // A message on its way from one rank to another, a piece at a time.
  static constexpr std::int64_t kPieceBytes = 16 << 10;
  struct alignas(64) Box {
    std::atomic<std::uint32_t> full;
    std::uint32_t kind;        // what the sender calls
    std::int64_t total_bytes;  // of the whole message
    std::byte piece[kPieceBytes];
  };
  Box& box(int from, int to) const;

  // What a rank says of itself.
  struct alignas(64) Seat {
    std::atomic<std::uint32_t> aborted;
    struct Split {
      std::atomic<std::uint32_t> round;  // valid for this one
      int color, key;
    } splits[2];  // used in turn: whoever begins one has ended the one before it with all others
  };
  Seat& seat(int rank) const;

  const int rank, ranks;

 private:
  struct Head;

  static std::size_t bytes_for(int ranks);

  std::string name_;
  std::byte* memory_;
};

}  // namespace cuda_sim
