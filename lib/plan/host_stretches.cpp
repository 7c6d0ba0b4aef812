#include "plan/host_stretches.h"

#include <set>
#include <utility>

namespace spillway {

namespace {

class Stretches {
 public:
  void add(std::int64_t begin, std::int64_t end) {
    if (begin < end && seen_.emplace(begin, end).second) found_.push_back({begin, end});
  }

  void add_sections(std::int64_t state, const StateLayout& layout) {
    std::int64_t section = 0;
    for (int m = 0; m < layout.format.num_moments(); ++m) {
      const std::int64_t next = layout.moments[static_cast<std::size_t>(m)];
      add(state + section, state + next);
      section = next;
    }
    add(state + section, state + layout.bytes);
  }

  std::vector<ByteRange> take() { return std::move(found_); }

 private:
  std::set<std::pair<std::int64_t, std::int64_t>> seen_;
  std::vector<ByteRange> found_;
};

}  // namespace

std::vector<ByteRange> host_stretches(const Plan& plan) {
  Stretches stretches;
  for (const Task& task : plan.step.tasks) {
    if (task.kind != TaskKind::update_tile || task.lane != Lane::cpu) continue;
    for (const Access& access : task.accesses) {
      const Buffer& buffer = plan.buffers[static_cast<std::size_t>(access.buffer)];
      if (access.role == Role::state) stretches.add_sections(buffer.offset, plan.tiles[static_cast<std::size_t>(task.tile)].layout);
      if (access.role == Role::gradient || access.role == Role::new_weights)
        stretches.add(buffer.offset + access.begin, buffer.offset + access.end);
    }
  }
  return stretches.take();
}

}  // namespace spillway
