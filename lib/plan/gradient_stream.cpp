#include "plan/gradient_stream.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "spillway/ops.h"

namespace spillway {

namespace {

Task of_tile(Task task, int tile) {
  task.tile = tile;
  return task;
}

}  // namespace

std::vector<GradientStream::Unit> GradientStream::units_of(int l, int tiles) const {
  std::vector<Unit> units;
  const int end = layer(l).first_tile + layer(l).num_tiles;
  for (int t = layer(l).first_tile; t < end; t += tiles) {
    const int last = std::min(t + tiles, end);
    units.push_back({t, last, {plan_.tiles[static_cast<std::size_t>(t)].begin, plan_.tiles[static_cast<std::size_t>(last) - 1].end}});
  }
  return units;
}

// Bytes of the layer's gradient on NVMe, padding included.
ByteRange GradientStream::home_of(const Unit& unit) const {
  return {gradient_at_home(plan_, unit.first, Role::source).begin, gradient_at_home(plan_, unit.last - 1, Role::source).end};
}

// Memory for a unit as it is at home.
int GradientStream::stage(std::string_view what, int l, const Unit& unit, int micro_batch) {
  const ByteRange home = home_of(unit);
  return add_transient(plan_, fmt::format("{} of tile {} of {}, micro-batch {}", what, unit.first - layer(l).first_tile, layer(l).name, micro_batch),
                       Tier::host, Owner::staging, home.end - home.begin);
}

// All of the page-padded memory counts as written: the padding's bytes are never looked at.
void GradientStream::drain(TaskKind kind, int l, const Unit& unit, int micro_batch, int from, int to) {
  const std::int64_t width = size_of(layer(l).gradient_dtype), begin = (unit.elements.begin - layer(l).owned.begin) * width;
  const std::int64_t bytes = unit.elements.size() * width;
  emit(of_tile(make_task(kind, Lane::d2h, l, micro_batch, bytes,
                         {part(read_of(plan_, from, Role::source), begin, begin + bytes), write_of(plan_, to, Role::destination)}),
               unit.first));
}

int GradientStream::read_sum(int l, const Unit& unit, int micro_batch) {
  const ByteRange home = home_of(unit);
  const int sum = stage("f32 gradient so far", l, unit, micro_batch);
  emit(of_tile(make_task(TaskKind::read_gradient, Lane::nvme_read, l, micro_batch, home.end - home.begin,
                         {part(read_of(plan_, layer(l).gradient_buffer, Role::source), home.begin, home.end), write_of(plan_, sum, Role::destination)}),
               unit.first));
  return sum;
}

std::vector<Task> GradientStream::add(int l, const Unit& unit, int micro_batch, int values, int sum) const {
  const std::int64_t bytes = unit.elements.size() * 4;
  std::vector<Task> tasks{make_task(TaskKind::accumulate, Lane::cpu, l, micro_batch, bytes * 3,
                                    {part(update_of(plan_, sum, Role::destination), 0, bytes), part(read_of(plan_, values, Role::source), 0, bytes)})};
  if (micro_batch == plan_.request.accumulation_steps - 1) {
    tasks.push_back(make_task(TaskKind::finalize, Lane::cpu, l, micro_batch, bytes * 2,
                              {part(update_of(plan_, sum, Role::gradient), 0, bytes),
                               square_sums_of(plan_, layer(l), unit.elements, plan_.host_square_sums_buffer)}));
  }
  for (Task& task : tasks) task.tile = unit.first;
  return tasks;
}

Task GradientStream::write(int l, const Unit& unit, int micro_batch, int from) const {
  const ByteRange home = home_of(unit);
  return of_tile(make_task(TaskKind::write_gradient, Lane::nvme_write, l, micro_batch, home.end - home.begin,
                           {read_of(plan_, from, Role::source), part(write_of(plan_, layer(l).gradient_buffer, Role::destination), home.begin, home.end)}),
                 unit.first);
}

void GradientStream::store(std::int64_t position, int l, int wire) {
  position_ = position;
  const int m = static_cast<int>(plan_.request.accumulation_steps) - 1;
  for (const Unit& unit : units_of(l, 1)) {
    const int landed = stage("gradient", l, unit, m);
    drain(TaskKind::drain_gradient, l, unit, m, wire, landed);
    arrivals_.push_back({{}, write(l, unit, m, landed)});
    retire(static_cast<std::size_t>(plan_.request.prefetch_depth));
  }
}

// A unit is whole pieces, since a piece has but one square sum.
void GradientStream::accumulate(std::int64_t position, int l, int micro_batch, int values) {
  position_ = position;
  for (const Unit& unit : units_of(l, plan_.request.tile_size % kNormPiece == 0 ? 1 : 2)) {
    const int landed = stage("f32 gradient", l, unit, micro_batch);
    drain(TaskKind::drain_partial, l, unit, micro_batch, values, landed);
    if (micro_batch == 0) {
      arrivals_.push_back({{}, write(l, unit, micro_batch, landed)});
    } else {
      const int sum = read_sum(l, unit, micro_batch);
      arrivals_.push_back({add(l, unit, micro_batch, landed, sum), write(l, unit, micro_batch, sum)});
    }
    retire(static_cast<std::size_t>(plan_.request.prefetch_depth));
  }
}

void GradientStream::flush() { retire(0); }

// Sums are taken `ahead` units after these were asked for, and written another `ahead` units later: memory is handed on
// only when those who use it have had that long to finish.
void GradientStream::retire(std::size_t ahead) {
  for (; added_ < arrivals_.size(); ++added_) {
    std::vector<Task>& adding = arrivals_[added_].adding;
    if (!adding.empty() && arrivals_.size() - added_ <= ahead) break;
    for (Task& task : adding) emit(std::move(task));
  }
  for (; added_ > ahead; --added_) {
    emit(std::move(arrivals_.front().writing));
    arrivals_.pop_front();
  }
}

}  // namespace spillway
