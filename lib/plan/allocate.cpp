#include "plan/allocate.h"

#include <algorithm>
#include <limits>

#include "zero/partition.h"

namespace spillway {

namespace {

struct Life {
  int buffer;
  std::int64_t first;  // task index in plan order, inclusive
  std::int64_t last;
  std::int64_t bytes;  // rounded to the alignment
  bool opens_step = false;   // brings weights to the step's first forward, or takes its activations
  bool closes_step = false;  // in use after the gate
};

std::int64_t first_of(const Program& program, TaskKind kind) {
  const auto it = std::find_if(program.tasks.begin(), program.tasks.end(), [kind](const Task& task) { return task.kind == kind; });
  return it - program.tasks.begin();
}

void mark_ends(const Plan& plan, const Program& program, std::vector<Life>& lives) {
  const std::int64_t backward = first_of(program, TaskKind::backward), gate = first_of(program, TaskKind::gate);
  for (Life& life : lives) {
    const Buffer& buffer = plan.buffers[static_cast<std::size_t>(life.buffer)];
    const bool saved = buffer.owner == Owner::activations && buffer.tier == Tier::host;
    life.opens_step = life.first < backward && (buffer.owner == Owner::staging || buffer.owner == Owner::weights || saved);
    life.closes_step = life.last > gate;
  }
}

std::vector<Life> lives_of(const Plan& plan, const Program& program) {
  std::vector<Life> by_buffer(plan.buffers.size(), {-1, std::numeric_limits<std::int64_t>::max(), -1, 0, false, false});
  for (std::size_t i = 0; i < program.tasks.size(); ++i) {
    for (const Access& access : program.tasks[i].accesses) {
      const auto b = static_cast<std::size_t>(access.buffer);
      if (plan.buffers[b].persistent) continue;
      Life& life = by_buffer[b];
      life.buffer = access.buffer;
      life.first = std::min(life.first, static_cast<std::int64_t>(i));
      life.last = std::max(life.last, static_cast<std::int64_t>(i));
      life.bytes = round_up(plan.buffers[b].bytes, alignment_of(plan.buffers[b].tier));
    }
  }
  std::erase_if(by_buffer, [](const Life& life) { return life.buffer < 0; });
  mark_ends(plan, program, by_buffer);
  return by_buffer;
}

// Steps chain: the next one's first weights are on their way while this one's optimizer is at its last tiles, and its
// first activations leave. If they shared memory with these, the next forward would wait for the end of the optimizer.
bool meet_across_steps(const Life& a, const Life& b) {
  return (a.opens_step && b.closes_step) || (a.closes_step && b.opens_step);
}

// Largest first; among equals the earlier one, so that a ring reuses its oldest place.
bool placed_earlier(const Life& a, const Life& b) {
  if (a.bytes != b.bytes) return a.bytes > b.bytes;
  if (a.first != b.first) return a.first < b.first;
  return a.buffer < b.buffer;
}

struct Placed {
  std::int64_t offset;
  Life life;
};

std::int64_t lowest_free_offset(const std::vector<Placed>& placed, const Life& life, std::int64_t base) {
  std::int64_t offset = base;
  for (const Placed& other : placed) {  // by offset
    const bool apart = other.life.last < life.first || life.last < other.life.first;
    if (apart && !meet_across_steps(life, other.life)) continue;
    if (other.offset >= offset + life.bytes) break;
    offset = std::max(offset, other.offset + other.life.bytes);
  }
  return offset;
}

std::int64_t place_transients(Plan& plan, Tier tier, std::vector<Life> lives, std::int64_t base) {
  std::sort(lives.begin(), lives.end(), placed_earlier);
  std::vector<Placed> placed;
  std::int64_t top = base;
  for (const Life& life : lives) {
    Buffer& buffer = plan.buffers[static_cast<std::size_t>(life.buffer)];
    if (buffer.tier != tier) continue;
    buffer.offset = lowest_free_offset(placed, life, base);
    top = std::max(top, buffer.offset + life.bytes);
    const auto position = std::upper_bound(placed.begin(), placed.end(), buffer.offset,
                                           [](std::int64_t offset, const Placed& p) { return offset < p.offset; });
    placed.insert(position, {buffer.offset, life});
  }
  return top;
}

// What the bytes are for at the fullest moment (persistent bytes always count).
void account(const Plan& plan, const std::vector<Life>& lives, Tier tier, TierUse& use) {
  use.by_owner.fill(0);
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.tier == tier && buffer.persistent) {
      use.by_owner[static_cast<std::size_t>(buffer.owner)] += round_up(buffer.bytes, alignment_of(tier));
    }
  }
  std::int64_t tasks = 0;
  for (const Life& life : lives) tasks = std::max(tasks, life.last + 1);
  std::vector<std::int64_t> change(static_cast<std::size_t>(tasks) + 1, 0);
  for (const Life& life : lives) {
    if (plan.buffers[static_cast<std::size_t>(life.buffer)].tier != tier) continue;
    change[static_cast<std::size_t>(life.first)] += life.bytes;
    change[static_cast<std::size_t>(life.last) + 1] -= life.bytes;
  }
  std::int64_t live = 0, most = -1, moment = 0;
  for (std::int64_t i = 0; i < tasks; ++i) {
    live += change[static_cast<std::size_t>(i)];
    if (live > most) {
      most = live;
      moment = i;
    }
  }
  for (const Life& life : lives) {
    const Buffer& buffer = plan.buffers[static_cast<std::size_t>(life.buffer)];
    if (buffer.tier == tier && life.first <= moment && moment <= life.last) {
      use.by_owner[static_cast<std::size_t>(buffer.owner)] += life.bytes;
    }
  }
}

}  // namespace

void allocate(Plan& plan) {
  // What takes turns with the memory above the persistent buffers: the programs, and the tile held between steps.
  const Buffer& held = plan.buffers[static_cast<std::size_t>(plan.maintenance_buffer)];
  const std::array<std::vector<Life>, 3> turns = {
      lives_of(plan, plan.step), lives_of(plan, plan.evaluation),
      std::vector<Life>{{plan.maintenance_buffer, 0, 0, round_up(held.bytes, alignment_of(held.tier)), false, false}}};
  for (int t = 0; t < kTiers; ++t) {
    const auto tier = static_cast<Tier>(t);
    std::int64_t base = 0;
    for (Buffer& buffer : plan.buffers) {
      if (buffer.tier != tier || !buffer.persistent) continue;
      buffer.offset = base;
      base += round_up(buffer.bytes, alignment_of(tier));
    }
    std::array<std::int64_t, 3> tops;
    std::transform(turns.begin(), turns.end(), tops.begin(), [&](const std::vector<Life>& lives) { return place_transients(plan, tier, lives, base); });
    const auto fullest = std::max_element(tops.begin(), tops.end()) - tops.begin();
    TierUse& use = plan.tiers[static_cast<std::size_t>(t)];
    use.peak = tops[static_cast<std::size_t>(fullest)];
    account(plan, turns[static_cast<std::size_t>(fullest)], tier, use);
  }
}

}  // namespace spillway
