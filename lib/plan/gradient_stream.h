// A layer's gradient on its way from the device to NVMe, where it is kept or added to what is there: a few tiles of it
// are on the host at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <string_view>
#include <vector>

#include "plan/builder.h"
#include "spillway/byte_range.h"

namespace spillway {

class GradientStream {
 public:
  // Borrows the plan and the timeline.
  GradientStream(Plan& plan, Timeline& timeline) : plan_(plan), timeline_(timeline) {}

  // Behind a position of the timeline, which never goes back from call to call: the finished gradient `wire` of what this
  // rank owns of layer l goes to its home.
  void store(std::int64_t position, int l, int wire);

  // Likewise the f32 values of a micro-batch, of all that this rank owns: the first one's are stored, later ones' added to
  // what is stored, and the last sum is finished.
  void accumulate(std::int64_t position, int l, int micro_batch, int values);

  // Ends what was begun: what comes after finds all of it at home.
  void flush();

 private:
  // Tiles [first, last) of a layer that travel together.
  struct Unit {
    int first, last;
    ElementRange elements;
  };

  // What follows when a unit is on the host.
  struct Arrival {
    std::vector<Task> adding;
    Task writing;
  };

  const LayerPlan& layer(int l) const { return plan_.layers[static_cast<std::size_t>(l)]; }
  std::vector<Unit> units_of(int l, int tiles) const;
  ByteRange home_of(const Unit& unit) const;
  int stage(std::string_view what, int l, const Unit& unit, int micro_batch);
  void drain(TaskKind kind, int l, const Unit& unit, int micro_batch, int from, int to);
  int read_sum(int l, const Unit& unit, int micro_batch);
  std::vector<Task> add(int l, const Unit& unit, int micro_batch, int values, int sum) const;
  Task write(int l, const Unit& unit, int micro_batch, int from) const;
  void emit(Task task) { timeline_.after(position_, std::move(task)); }
  void retire(std::size_t ahead);

  Plan& plan_;
  Timeline& timeline_;
  std::int64_t position_ = 0;
  std::deque<Arrival> arrivals_;
  std::size_t added_ = 0;  // of them, from the front
};

}  // namespace spillway
