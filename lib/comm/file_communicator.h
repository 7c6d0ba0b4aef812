// A communicator through the memory of a file that ranks of one machine share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/shared_channel.h"
#include "comm/shared_file.h"
#include "comm/watchdog.h"
#include "spillway/communicator.h"

namespace spillway::comm {

// Of the world, which outlives its communicators.
struct FileRanks {
  const SharedFile& file;
  std::atomic<std::int64_t>& end;  // of what is taken of the file
  const Watchdog& watchdog;
  std::int64_t staged_bytes;
};

// A piece of the file, in whole pages.
struct Segment {
  std::int64_t begin, bytes;
};

class FileCommunicator final : public Communicator {
 public:
  // The channel of `ranks` ranks is in the segment, with staged_bytes a rank.
  FileCommunicator(const FileRanks& world, const Segment& segment, int rank, int ranks, std::int64_t staged_bytes);
  ~FileCommunicator() override;
  FileCommunicator(const FileCommunicator&) = delete;
  FileCommunicator& operator=(const FileCommunicator&) = delete;

  std::string_view name() const override { return "file"; }
  int rank() const override { return channel_.rank(); }
  int size() const override { return channel_.ranks(); }
  std::unique_ptr<Communicator> split(int color) override;
  void all_gather(Stream& stream, std::byte* buffer, std::span<const Part> parts) override;
  void all_to_all(Stream& stream, const std::byte* send, std::span<const Part> send_parts, std::byte* receive,
                  std::span<const Part> receive_parts) override;
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override;
  std::vector<std::string> exchange(const std::string& mine) override;
  void barrier() override;
  std::int64_t sent_bytes() const override { return sent_bytes_.load(std::memory_order_relaxed); }

 private:
  // What goes to the others: to each its part, or the one part that is the same for all.
  struct Outgoing {
    Collective collective;
    const std::byte* memory;
    std::span<const Part> parts;  // of one entry per rank, or of one

    bool same_for_all() const { return parts.size() == 1; }
    const Part& part(int rank) const { return parts[same_for_all() ? 0 : static_cast<std::size_t>(rank)]; }
  };

  void transfer(const Outgoing& outgoing, std::byte* receive, std::span<const Part> receive_parts);
  void announce(const Outgoing& outgoing) const;
  std::int64_t agree(Collective mine, std::span<const Part> receive_parts) const;
  bool is_me(int rank) const { return rank == channel_.rank(); }

  const FileRanks world_;
  const Segment segment_;
  SharedChannel channel_;
  std::atomic<std::int64_t> sent_bytes_{0};
};

}  // namespace spillway::comm
