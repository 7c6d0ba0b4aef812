// What a simulated NCCL call does when its turn in the stream has come: messages to and from other ranks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cuda_sim/nccl_segment.h"

namespace cuda_sim {

// Of a communicator and of its work, whoever lives longer.
struct NcclShared {
  explicit NcclShared(const std::string& name, int rank, int ranks) : segment(name, rank, ranks) {}

  NcclSegment segment;
  std::atomic<bool> aborted{false};
  std::atomic<bool> peer_lost{false};  // a rank that is waited for has aborted: as when its connections break
  std::atomic<int> outstanding{0};     // enqueued and not ended
  std::atomic<int> launching{0};       // being enqueued, where that waits
};

enum class NcclCall : std::uint32_t { all_gather = 1, broadcast, send_receive };

// To or from one rank.
struct NcclMessage {
  NcclCall call;
  std::byte* memory;
  std::int64_t bytes;
  std::int64_t done = 0;
};

// The calls of one group on one stream. Messages to a rank go in their order, and so do those from it.
class NcclWork {
 public:
  explicit NcclWork(std::shared_ptr<NcclShared> shared);

  void send(int to, NcclCall call, const void* memory, std::int64_t bytes);
  void receive(int from, NcclCall call, void* memory, std::int64_t bytes);
  // A rank's own part.
  void copy(const void* from, void* to, std::int64_t bytes);

  // On the stream's thread: until all is done, or the communicator is aborted.
  void run();

 private:
  bool send_piece(int to);
  bool receive_piece(int from);
  bool is_done() const;
  void look_for_lost_peers();

  const std::shared_ptr<NcclShared> shared_;
  std::vector<std::deque<NcclMessage>> sends_, receives_;  // by rank
  struct Copy {
    const void* from;
    void* to;
    std::int64_t bytes;
  };
  std::vector<Copy> copies_;
};

}  // namespace cuda_sim
