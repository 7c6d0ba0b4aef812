#include "support/thread_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <span>

#include "spillway/device.h"
#include "spillway/error.h"

namespace spillway::testing {

namespace {

// What all ranks share. A failure is for ever, and wakes everybody.
class Hub {
 public:
  Hub(int size, double timeout_s) : timeout_(timeout_s), status_(static_cast<std::size_t>(size)) {}

  void note_step(int rank, std::int64_t step) {
    const std::lock_guard lock(mutex);
    status_[static_cast<std::size_t>(rank)].step = step;
  }

  void note_operation(int rank, std::string_view operation, std::string_view object) {
    const std::lock_guard lock(mutex);
    Status& status = status_[static_cast<std::size_t>(rank)];
    status.operation = operation;
    status.object = object;
  }

  void fail(int rank, const std::string& error) {
    const std::lock_guard lock(mutex);
    if (!failure_) failure_ = fmt::format("[comm] rank {} failed at {}: {}", rank, where(rank), error);
    changed.notify_all();
  }

  // The following with the mutex held.
  void check() const {
    if (failure_) throw CommError(*failure_);
  }

  // Waits until done(); missing() names a world rank that is waited for.
  template <class Done, class Missing>
  void wait(std::unique_lock<std::mutex>& lock, Done&& done, Missing&& missing) {
    changed.wait_for(lock, timeout_, [&] { return failure_ || done(); });
    // What was complete before somebody failed is complete for everybody.
    if (done()) return;
    check();
    const int rank = missing();
    failure_ = fmt::format("[comm] rank {} has not answered for {:g} s; last heard at {}", rank, timeout_.count(), where(rank));
    changed.notify_all();
    check();
  }

  std::mutex mutex;
  std::condition_variable changed;

 private:
  struct Status {
    std::int64_t step = -1;
    std::string_view operation, object;
  };

  std::string where(int rank) const {
    const Status& status = status_[static_cast<std::size_t>(rank)];
    std::string text = status.step < 0 ? "the start" : fmt::format("step {}", status.step);
    if (!status.operation.empty()) text += fmt::format(" in {} of {}", status.operation, status.object);
    return text;
  }

  const std::chrono::duration<double> timeout_;
  std::vector<Status> status_;
  std::optional<std::string> failure_;
};

// The ranks of one communicator. Everything under the hub's mutex, but for the bytes staged in a round, which belong
// to their rank until it has arrived and to everybody's reading until all have read.
struct Group {
  explicit Group(std::vector<int> ranks) : world_ranks(std::move(ranks)), staged(world_ranks.size()), waiting(world_ranks.size(), 0) {}

  // All ranks have come here as often as this one.
  void meet(Hub& hub, int rank) {
    std::unique_lock lock(hub.mutex);
    hub.check();
    waiting[static_cast<std::size_t>(rank)] = 1;
    const std::int64_t round = rounds;
    if (++arrived == static_cast<int>(world_ranks.size())) {
      arrived = 0;
      ++rounds;
      std::fill(waiting.begin(), waiting.end(), 0);
      hub.changed.notify_all();
      return;
    }
    hub.wait(
        lock, [&] { return rounds != round; },
        [&] { return world_ranks[static_cast<std::size_t>(std::find(waiting.begin(), waiting.end(), 0) - waiting.begin())]; });
  }

  struct Staged {
    std::vector<std::byte> bytes;
    std::vector<Part> parts;  // by receiver
  };

  const std::vector<int> world_ranks;
  std::vector<Staged> staged;
  std::map<std::pair<int, int>, std::shared_ptr<Group>> splits;  // by how manieth split, and colour

 private:
  std::vector<char> waiting;
  int arrived = 0;
  std::int64_t rounds = 0;
};

// A group is its members', who may end at different times.
class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Hub> hub, std::shared_ptr<Group> group, int rank)
      : hub_(std::move(hub)), group_(std::move(group)), rank_(rank) {}

  std::string_view name() const override { return "threads"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->world_ranks.size()); }

  std::unique_ptr<Communicator> split(int color) override {
    std::vector<int> colors(index(size()));
    exchange(std::as_bytes(std::span(&color, 1)), std::as_writable_bytes(std::span(colors)));
    std::vector<int> members;
    int rank = 0;
    for (int r = 0; r < size(); ++r) {
      if (colors[index(r)] != color) continue;
      if (r < rank_) ++rank;
      members.push_back(group_->world_ranks[index(r)]);
    }
    const std::lock_guard lock(hub_->mutex);
    std::shared_ptr<Group>& group = group_->splits[{splits_++, color}];
    if (!group) group = std::make_shared<Group>(std::move(members));
    return std::make_unique<ThreadCommunicator>(hub_, group, rank);
  }

  void all_gather(Stream& stream, std::byte* buffer, std::span<const Part> parts) override {
    stream.call([this, buffer, parts] {
      stage(buffer, {&parts[index(rank_)], 1}, index(size()));
      meet();
      for (int r = 0; r < size(); ++r)
        if (r != rank_) take(r, buffer, parts[index(r)]);
      meet();
      count(parts[index(rank_)].bytes * (size() - 1));
    });
  }

  void all_to_all(Stream& stream, const std::byte* send, std::span<const Part> send_parts, std::byte* receive,
                  std::span<const Part> receive_parts) override {
    stream.call([this, send, send_parts, receive, receive_parts] {
      stage(send, send_parts, 1);
      meet();
      for (int r = 0; r < size(); ++r) take(r, receive, receive_parts[index(r)]);
      meet();
      std::int64_t sent = -send_parts[index(rank_)].bytes;
      for (const Part& part : send_parts) sent += part.bytes;
      count(sent);
    });
  }

  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const Part whole{0, static_cast<std::int64_t>(mine.size())};
    stage(mine.data(), {&whole, 1}, index(size()));
    meet();
    for (int r = 0; r < size(); ++r) take(r, all.data(), {r * whole.bytes, whole.bytes});
    meet();
  }

  std::vector<std::string> exchange(const std::string& mine) override {
    const Part whole{0, static_cast<std::int64_t>(mine.size())};
    stage(reinterpret_cast<const std::byte*>(mine.data()), {&whole, 1}, index(size()));
    meet();
    std::vector<std::string> texts;
    for (int r = 0; r < size(); ++r) {
      const std::vector<std::byte>& bytes = group_->staged[index(r)].bytes;
      texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    meet();
    return texts;
  }

  void barrier() override { meet(); }
  std::int64_t sent_bytes() const override {
    const std::lock_guard lock(hub_->mutex);
    return sent_bytes_;
  }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  // Copies parts to where the others read them: a rank that fails leaves at once, and its buffers with it. Each part is
  // for `receivers` ranks. A failed group is staged no more, since others may still be reading.
  void stage(const std::byte* from, std::span<const Part> parts, std::size_t receivers) {
    {
      const std::lock_guard lock(hub_->mutex);
      hub_->check();
    }
    Group::Staged& staged = group_->staged[index(rank_)];
    staged.bytes.clear();
    staged.parts.clear();
    for (const Part& part : parts) {
      for (std::size_t r = 0; r < receivers; ++r) staged.parts.push_back({static_cast<std::int64_t>(staged.bytes.size()), part.bytes});
      staged.bytes.insert(staged.bytes.end(), from + part.offset, from + part.offset + part.bytes);
    }
  }

  void take(int from, std::byte* to, const Part& part) const {
    const Group::Staged& staged = group_->staged[index(from)];
    const Part& source = staged.parts[index(rank_)];
    if (source.bytes != part.bytes)
      throw CommError(fmt::format("[comm] rank {} expects {} bytes of rank {}, which sends {}", rank_, part.bytes, from, source.bytes));
    if (part.bytes > 0) std::memcpy(to + part.offset, staged.bytes.data() + source.offset, static_cast<std::size_t>(part.bytes));
  }

  void meet() { group_->meet(*hub_, rank_); }

  void count(std::int64_t bytes) {
    const std::lock_guard lock(hub_->mutex);
    sent_bytes_ += bytes;
  }

  const std::shared_ptr<Hub> hub_;
  const std::shared_ptr<Group> group_;
  const int rank_;
  int splits_ = 0;
  std::int64_t sent_bytes_ = 0;
};

class ThreadWorld final : public World {
 public:
  ThreadWorld(std::shared_ptr<Hub> hub, std::shared_ptr<Group> everyone, int rank)
      : hub_(std::move(hub)), rank_(rank), size_(static_cast<int>(everyone->world_ranks.size())), everyone_(hub_, std::move(everyone), rank) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size_; }
  const std::string& host() const override { return host_; }
  std::unique_ptr<Communicator> communicator() override { return everyone_.split(0); }
  void note_step(std::int64_t step) override { hub_->note_step(rank_, step); }
  void note_operation(std::string_view operation, std::string_view object) override { hub_->note_operation(rank_, operation, object); }
  void check() override {
    const std::lock_guard lock(hub_->mutex);
    hub_->check();
  }
  void fail(const std::string& error) override { hub_->fail(rank_, error); }

 private:
  const std::shared_ptr<Hub> hub_;
  const int rank_, size_;
  ThreadCommunicator everyone_;
  const std::string host_ = "threads";
};

}  // namespace

std::vector<std::unique_ptr<World>> make_thread_worlds(int n, const WorldOptions& options) {
  const auto hub = std::make_shared<Hub>(n, options.timeout_s);
  std::vector<int> ranks;
  for (int r = 0; r < n; ++r) ranks.push_back(r);
  const auto everyone = std::make_shared<Group>(std::move(ranks));
  std::vector<std::unique_ptr<World>> worlds;
  for (int r = 0; r < n; ++r) worlds.push_back(std::make_unique<ThreadWorld>(hub, everyone, r));
  return worlds;
}

}  // namespace spillway::testing
