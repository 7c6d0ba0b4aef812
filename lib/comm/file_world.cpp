#include "comm/file_world.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/file_communicator.h"
#include "comm/rendezvous.h"
#include "comm/shared_beats.h"
#include "comm/shared_channel.h"
#include "comm/watchdog.h"

namespace spillway::comm {

namespace {

// Of the communicator that the others are split from.
constexpr std::int64_t kFirstStagedBytes = 4096;

std::int64_t first_channel_bytes(int ranks) { return whole_pages(SharedChannel::bytes_needed(ranks, kFirstStagedBytes)); }
std::int64_t beats_bytes(int ranks) { return whole_pages(SharedBeats::bytes_needed(ranks)); }

class FileWorld final : public World {
 public:
  FileWorld(Meeting meeting, const Launch& launch, const WorldOptions& options, std::int64_t staged_bytes)
      : meeting_(std::move(meeting)),
        rank_(launch.rank),
        host_(meeting_.members[static_cast<std::size_t>(rank_)].host),
        beats_memory_(meeting_.file.map(meeting_.begin, beats_bytes(size()))),
        beats_(beats_memory_.data(), rank_, size()),
        watchdog_(std::make_unique<Watchdog>(meeting_.members, rank_, options.timeout_s, beats_)) {
    const FileRanks ranks{meeting_.file, *meeting_.end, *watchdog_, staged_bytes};
    const Segment first{meeting_.begin + beats_bytes(size()), first_channel_bytes(size())};
    everyone_ = std::make_unique<FileCommunicator>(ranks, first, rank_, size(), kFirstStagedBytes);
  }

  ~FileWorld() override {
    watchdog_->leave();
    everyone_.reset();
    watchdog_.reset();
  }
  FileWorld(const FileWorld&) = delete;
  FileWorld& operator=(const FileWorld&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_.members.size()); }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size(); }
  const std::string& host() const override { return host_; }
  std::unique_ptr<Communicator> communicator() override { return everyone_->split(0); }
  void note_step(std::int64_t step) override { watchdog_->note_step(step); }
  void note_operation(std::string_view operation, std::string_view object) override { watchdog_->note_operation(operation, object); }
  void check() override { watchdog_->check(); }
  void fail(const std::string& error) override { watchdog_->fail(error); }

 private:
  const Meeting meeting_;
  const int rank_;
  const std::string host_;
  const Mapping beats_memory_;
  SharedBeats beats_;
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<FileCommunicator> everyone_;
};

}  // namespace

std::unique_ptr<World> make_file_world(const WorldOptions& options, const Launch& launch, std::int64_t staged_bytes) {
  // A rank may have a part for each of the others.
  staged_bytes = std::max<std::int64_t>(staged_bytes, launch.size);
  Meeting meeting = meet(launch, rendezvous_path(launch), beats_bytes(launch.size) + first_channel_bytes(launch.size), options.timeout_s);
  return std::make_unique<FileWorld>(std::move(meeting), launch, options, staged_bytes);
}

}  // namespace spillway::comm
