// Pass "check": is the plan sound? Looks only at tasks, dependencies, offsets and lanes, and shares
// nothing with the passes that made them.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "spillway/plan.h"

namespace spillway {

namespace {

constexpr int kRuns = 2;
constexpr std::size_t kMaxViolations = 20;

std::string describe(const Program& program, std::size_t index) {
  const Task& task = program.tasks[index];
  return fmt::format("task {} ({} on {}, layer {}, micro-batch {}, tile {})", index, name_of(task.kind), name_of(task.lane),
                     task.layer, task.micro_batch, task.tile);
}

// Happens-before over consecutive runs. reach[v][lane] = how many of the lane's tasks (counted through the
// runs) have finished before v starts. Valid because each lane finishes its tasks in order.
class Order {
 public:
  explicit Order(const Program& program) : program_(program), n_(program.tasks.size()), rank_(n_) {
    std::array<std::int64_t, kLanes> seen{};
    for (std::size_t i = 0; i < n_; ++i) rank_[i] = ++seen[static_cast<std::size_t>(program.tasks[i].lane)];
    per_run_ = seen;
    before_.resize(n_ * kRuns);
    after_.resize(n_ * kRuns);
    std::array<std::ptrdiff_t, kLanes> last;
    last.fill(-1);
    for (std::size_t v = 0; v < n_ * kRuns; ++v) relax(v, last);
  }

  // Has task i of run `run_i` finished before task j of run `run_j` starts?
  bool precedes(std::size_t i, int run_i, std::size_t j, int run_j) const {
    const auto lane = static_cast<std::size_t>(program_.tasks[i].lane);
    const std::int64_t needed = rank_[i] + run_i * per_run_[lane];
    return before_[static_cast<std::size_t>(run_j) * n_ + j][lane] >= needed;
  }

 private:
  using Reach = std::array<std::int64_t, kLanes>;

  static void raise(Reach& into, const Reach& from) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) into[lane] = std::max(into[lane], from[lane]);
  }

  void relax(std::size_t v, std::array<std::ptrdiff_t, kLanes>& last) {
    const Task& task = program_.tasks[v % n_];
    const auto lane = static_cast<std::size_t>(task.lane);
    const auto run = static_cast<std::int64_t>(v / n_);
    Reach reach{};
    if (last[lane] >= 0) {
      const auto previous = static_cast<std::size_t>(last[lane]);
      raise(reach, is_nvme(task.lane) ? before_[previous] : after_[previous]);
    }
    for (const Dependency& d : task.dependencies) {
      const std::int64_t source_run = run - (d.previous_run ? 1 : 0);
      if (source_run < 0) continue;
      raise(reach, after_[static_cast<std::size_t>(source_run) * n_ + static_cast<std::size_t>(d.task)]);
    }
    before_[v] = reach;
    if (last[lane] >= 0) raise(reach, after_[static_cast<std::size_t>(last[lane])]);
    reach[lane] = std::max(reach[lane], rank_[v % n_] + run * per_run_[lane]);
    after_[v] = reach;
    last[lane] = static_cast<std::ptrdiff_t>(v);
  }

  const Program& program_;
  std::size_t n_;
  std::vector<std::int64_t> rank_;
  std::array<std::int64_t, kLanes> per_run_{};
  std::vector<Reach> before_, after_;
};

using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

// On NVMe gradients and activations are persistent so that extents are nobody else's, but no run may see those of the run
// before: every reading must have its own writing.
bool is_read_once(const Buffer& buffer) {
  return buffer.persistent && buffer.tier == Tier::nvme && (buffer.owner == Owner::gradients || buffer.owner == Owner::activations);
}

struct Touch {
  std::int64_t begin, end;
  std::size_t task;
  bool writes;
};

class Checker {
 public:
  Checker(const Plan& plan, const Program& program, std::vector<std::string>& violations)
      : plan_(plan), program_(program), violations_(violations) {}

  void run() {
    if (!dependencies_point_backwards()) return;
    every_read_has_a_write();
    buffers_lie_inside();
    live_buffers_are_disjoint();
    const Order order(program_);
    for (int tier = 0; tier < kTiers; ++tier) conflicts_are_ordered(order, static_cast<Tier>(tier));
  }

 private:
  void report(std::string text) {
    if (violations_.size() < kMaxViolations) violations_.push_back(std::move(text));
  }

  bool dependencies_point_backwards() {
    const std::size_t before = violations_.size();
    for (std::size_t i = 0; i < program_.tasks.size(); ++i) {
      for (const Dependency& d : program_.tasks[i].dependencies) {
        const bool known = d.task >= 0 && static_cast<std::size_t>(d.task) < program_.tasks.size();
        if (!known || (!d.previous_run && static_cast<std::size_t>(d.task) >= i)) {
          report(fmt::format("{} waits for task {}, which does not come before it: it would never start", describe(program_, i), d.task));
        }
      }
    }
    return violations_.size() == before;
  }

  void every_read_has_a_write() {
    std::map<int, Ranges> written;
    for (std::size_t i = 0; i < program_.tasks.size(); ++i) {
      for (const Access& a : program_.tasks[i].accesses) {
        const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(a.buffer)];
        if (a.begin < 0 || a.end > buffer.bytes || a.begin > a.end) {
          report(fmt::format("{} touches bytes {}..{} of \"{}\", which has {}", describe(program_, i), a.begin, a.end, buffer.name, buffer.bytes));
        }
        const bool once = is_read_once(buffer);
        if ((buffer.persistent && !once) || !a.reads) continue;
        if (!covered(written[a.buffer], a.begin, a.end)) {
          report(fmt::format("{} reads \"{}\" before all of it was written", describe(program_, i), buffer.name));
        }
        if (once) remove(written[a.buffer], a.begin, a.end);
      }
      for (const Access& a : program_.tasks[i].accesses) {
        const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(a.buffer)];
        if (a.writes && (!buffer.persistent || is_read_once(buffer))) written[a.buffer].emplace_back(a.begin, a.end);
      }
    }
  }

  static void remove(Ranges& ranges, std::int64_t begin, std::int64_t end) {
    Ranges left;
    for (const auto& [from, to] : ranges) {
      if (from < begin) left.emplace_back(from, std::min(to, begin));
      if (to > end) left.emplace_back(std::max(from, end), to);
    }
    ranges = std::move(left);
  }

  static bool covered(Ranges& ranges, std::int64_t begin, std::int64_t end) {
    std::sort(ranges.begin(), ranges.end());
    for (const auto& [from, to] : ranges) {
      if (from > begin) return begin >= end;
      begin = std::max(begin, to);
    }
    return begin >= end;
  }

  void buffers_lie_inside() {
    for (const Task& task : program_.tasks) {
      for (const Access& a : task.accesses) {
        const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(a.buffer)];
        if (buffer.offset < 0 || buffer.offset + buffer.bytes > plan_.tiers[static_cast<std::size_t>(buffer.tier)].peak) {
          report(fmt::format("\"{}\" at {} with {} bytes lies outside the {} arena", buffer.name, buffer.offset, buffer.bytes, name_of(buffer.tier)));
        }
      }
    }
  }

  // Two buffers on the same bytes must not live at the same time: one's last access precedes the other's
  // first in plan order. A persistent buffer lives always.
  void live_buffers_are_disjoint() {
    struct Life {
      std::size_t first, last;
      int buffer;
    };
    std::map<int, Life> lives;
    for (std::size_t i = 0; i < program_.tasks.size(); ++i) {
      for (const Access& a : program_.tasks[i].accesses) {
        const bool persistent = plan_.buffers[static_cast<std::size_t>(a.buffer)].persistent;
        Life& life = lives.try_emplace(a.buffer, Life{persistent ? 0 : i, i, a.buffer}).first->second;
        life.last = persistent ? program_.tasks.size() : i;
      }
    }
    std::vector<Life> sorted;
    for (const auto& [buffer, life] : lives) {
      if (plan_.buffers[static_cast<std::size_t>(buffer)].bytes > 0) sorted.push_back(life);  // an empty shard is nowhere
    }
    const auto at = [&](const Life& life) -> const Buffer& { return plan_.buffers[static_cast<std::size_t>(life.buffer)]; };
    std::sort(sorted.begin(), sorted.end(), [&](const Life& a, const Life& b) { return at(a).offset < at(b).offset; });
    std::array<std::vector<Life>, kTiers> open;
    for (const Life& life : sorted) {
      auto& others = open[static_cast<std::size_t>(at(life).tier)];
      std::erase_if(others, [&](const Life& other) { return at(other).offset + at(other).bytes <= at(life).offset; });
      for (const Life& other : others) {
        if (other.last < life.first || life.last < other.first) continue;
        report(fmt::format("\"{}\" and \"{}\" live at the same time on the same {} bytes", at(other).name, at(life).name, name_of(at(life).tier)));
      }
      others.push_back(life);
    }
  }

  void conflicts_are_ordered(const Order& order, Tier tier) {
    std::vector<Touch> touches;
    for (std::size_t i = 0; i < program_.tasks.size(); ++i) {
      for (const Access& a : program_.tasks[i].accesses) {
        const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(a.buffer)];
        if (buffer.tier == tier && a.begin < a.end) touches.push_back({buffer.offset + a.begin, buffer.offset + a.end, i, a.writes});
      }
    }
    std::sort(touches.begin(), touches.end(), [](const Touch& a, const Touch& b) { return a.begin < b.begin; });
    std::vector<Touch> open;
    for (const Touch& touch : touches) {
      std::erase_if(open, [&](const Touch& other) { return other.end <= touch.begin; });
      for (const Touch& other : open) {
        if (touch.writes || other.writes) must_be_ordered(order, touch.task, other.task, tier);
      }
      if (touch.writes) must_be_ordered(order, touch.task, touch.task, tier);
      open.push_back(touch);
    }
  }

  void must_be_ordered(const Order& order, std::size_t a, std::size_t b, Tier tier) {
    const std::size_t first = std::min(a, b), second = std::max(a, b);
    const bool within = first == second || order.precedes(first, 0, second, 0);
    const bool across = order.precedes(second, 0, first, 1);
    if (within && across) return;
    report(fmt::format("{} and {} touch the same {} bytes and {}", describe(program_, first), describe(program_, second), name_of(tier),
                       within ? "nothing orders them from one run to the next" : "nothing orders them within a run"));
  }

  const Plan& plan_;
  const Program& program_;
  std::vector<std::string>& violations_;
};

// Persistent buffers, and the extents of the swap file, are disjoint whatever the programs do.
void check_persistent(const Plan& plan, std::vector<std::string>& violations) {
  for (int t = 0; t < kTiers; ++t) {
    std::vector<const Buffer*> sorted;
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.persistent && buffer.bytes > 0 && buffer.tier == static_cast<Tier>(t)) sorted.push_back(&buffer);
    }
    std::sort(sorted.begin(), sorted.end(), [](const Buffer* a, const Buffer* b) { return a->offset < b->offset; });
    for (std::size_t i = 1; i < sorted.size(); ++i) {
      if (sorted[i - 1]->offset + sorted[i - 1]->bytes > sorted[i]->offset) {
        violations.push_back(fmt::format("\"{}\" and \"{}\" overlap", sorted[i - 1]->name, sorted[i]->name));
      }
    }
  }
}

}  // namespace

std::vector<std::string> check_plan(const Plan& plan) {
  std::vector<std::string> violations;
  check_persistent(plan, violations);
  Checker(plan, plan.step, violations).run();
  Checker(plan, plan.evaluation, violations).run();
  return violations;
}

}  // namespace spillway
