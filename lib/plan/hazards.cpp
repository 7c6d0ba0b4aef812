#include "plan/hazards.h"

#include <algorithm>
#include <map>

namespace spillway {

namespace {

constexpr int kNone = -1;

// What is known to have finished, as a count of finished tasks per lane (each lane finishes in order).
using Clock = std::array<std::int64_t, kLanes>;

void join(Clock& into, const Clock& from) {
  for (int lane = 0; lane < kLanes; ++lane) {
    into[static_cast<std::size_t>(lane)] = std::max(into[static_cast<std::size_t>(lane)], from[static_cast<std::size_t>(lane)]);
  }
}

// A stretch of a tier that was last touched alike. Tasks are numbered on through both runs; of several
// readers in one lane the last one stands for all, since the lane finishes in order.
struct Segment {
  std::int64_t end = 0;
  int writer = kNone;
  std::array<int, kLanes> readers;

  Segment() { readers.fill(kNone); }
};

class Shadow {
 public:
  // Calls visit(segment) for each stretch of [begin, end), cut to size, creating untouched ones.
  template <class Visit>
  void for_range(std::int64_t begin, std::int64_t end, Visit visit) {
    split(begin);
    split(end);
    std::int64_t at = begin;
    while (at < end) {
      auto it = segments_.lower_bound(at);
      if (it == segments_.end() || it->first > at) {
        Segment fresh;
        fresh.end = it == segments_.end() ? end : std::min(end, it->first);
        it = segments_.emplace(at, fresh).first;
      }
      visit(it->second);
      at = it->second.end;
    }
  }

  // Makes [begin, end) one stretch written by `task`.
  void write(std::int64_t begin, std::int64_t end, int task) {
    segments_.erase(segments_.lower_bound(begin), segments_.lower_bound(end));
    Segment fresh;
    fresh.end = end;
    fresh.writer = task;
    segments_.emplace(begin, fresh);
  }

 private:
  void split(std::int64_t at) {
    auto it = segments_.upper_bound(at);
    if (it == segments_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    Segment upper = it->second;
    it->second.end = at;
    segments_.emplace(at, upper);
  }

  std::map<std::int64_t, Segment> segments_;
};

class Derivation {
 public:
  Derivation(const Plan& plan, Program& program)
      : plan_(plan), program_(program), count_(static_cast<int>(program.tasks.size())) {
    last_in_lane_.fill(kNone);
    started_.resize(2 * program.tasks.size());
    finished_.resize(2 * program.tasks.size());
  }

  void run() {
    for (int number = 0; number < 2 * count_; ++number) visit(number);
  }

 private:
  Task& task(int number) { return program_.tasks[static_cast<std::size_t>(number % count_)]; }
  void collect(int number);
  void touch(int number);
  void visit(int number);

  const Plan& plan_;
  Program& program_;
  int count_;
  std::array<Shadow, kTiers> shadows_;
  std::vector<Clock> started_;   // known finished when the task starts
  std::vector<Clock> finished_;  // known finished when the task has finished
  std::array<int, kLanes> last_in_lane_;
  Clock position_{};             // tasks so far per lane
  std::vector<int> candidates_;
};

void Derivation::collect(int number) {
  candidates_.clear();
  for (const Access& access : task(number).accesses) {
    if (access.begin == access.end) continue;  // nothing of an empty shard
    const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(access.buffer)];
    Shadow& shadow = shadows_[static_cast<std::size_t>(buffer.tier)];
    shadow.for_range(buffer.offset + access.begin, buffer.offset + access.end, [&](const Segment& segment) {
      if (segment.writer != kNone) candidates_.push_back(segment.writer);
      if (!access.writes) return;
      for (const int reader : segment.readers) {
        if (reader != kNone) candidates_.push_back(reader);
      }
    });
  }
  std::sort(candidates_.begin(), candidates_.end(), std::greater<>());
  candidates_.erase(std::unique(candidates_.begin(), candidates_.end()), candidates_.end());
}

void Derivation::touch(int number) {
  const auto lane = static_cast<std::size_t>(task(number).lane);
  for (const Access& access : task(number).accesses) {
    if (access.begin == access.end) continue;  // nothing of an empty shard
    const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(access.buffer)];
    Shadow& shadow = shadows_[static_cast<std::size_t>(buffer.tier)];
    const std::int64_t begin = buffer.offset + access.begin, end = buffer.offset + access.end;
    if (access.writes) {
      shadow.write(begin, end, number);
    } else {
      shadow.for_range(begin, end, [&](Segment& segment) { segment.readers[lane] = number; });
    }
  }
}

void Derivation::visit(int number) {
  Task& current = task(number);
  const auto lane = static_cast<std::size_t>(current.lane);
  const int previous = last_in_lane_[lane];
  Clock& start = started_[static_cast<std::size_t>(number)];
  if (previous != kNone) {
    start = is_nvme(current.lane) ? started_[static_cast<std::size_t>(previous)] : finished_[static_cast<std::size_t>(previous)];
  }
  collect(number);
  current.dependencies.clear();
  for (const int source : candidates_) {
    const auto source_lane = static_cast<std::size_t>(task(source).lane);
    const Clock& done = finished_[static_cast<std::size_t>(source)];
    if (start[source_lane] >= done[source_lane]) continue;
    const bool previous_run = source < count_ && number >= count_;
    current.dependencies.push_back({source % count_, previous_run});
    join(start, done);
  }
  Clock& finish = finished_[static_cast<std::size_t>(number)];
  finish = start;
  if (previous != kNone) join(finish, finished_[static_cast<std::size_t>(previous)]);
  finish[lane] = ++position_[lane];
  last_in_lane_[lane] = number;
  touch(number);
}

}  // namespace

void derive_dependencies(const Plan& plan, Program& program) {
  if (program.tasks.empty()) return;
  Derivation(plan, program).run();
}

}  // namespace spillway
