#include "runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/lane_state.h"

namespace spillway {

namespace {

constexpr std::uint32_t kMaxRunsInProgress = 2;
constexpr int kMaxTransfersInFlight = 64;

std::size_t parity(std::uint32_t run) { return run % 2; }

// A forward waits for weights; state and gradients are moved ahead of use.
IoPriority priority_of(Lane lane) { return lane == Lane::nvme_fetch ? IoPriority::urgent : IoPriority::streaming; }

// Thrown inside a lane when another one has failed; never leaves the executor.
struct Stopped {};

class Chaos {
 public:
  Chaos(const ExecutorOptions& options, std::uint64_t lane)
      : max_us_(static_cast<std::uint64_t>(options.chaos_max_delay_us)), state_(options.chaos_seed * 0x9e3779b97f4a7c15ull + lane) {}

  void pause() {
    if (max_us_ == 0) return;
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    std::this_thread::sleep_for(std::chrono::microseconds((state_ >> 33) % (max_us_ + 1)));
  }

 private:
  std::uint64_t max_us_;
  std::uint64_t state_;
};

}  // namespace

class Executor::Impl {
 public:
  Impl(const Plan& plan, Device& device, SwapStore* store, TaskActions& actions, const ExecutorOptions& options);
  ~Impl();

  std::uint32_t submit(ProgramId id);
  void wait(ProgramId id, std::uint32_t run, int task);
  void drain();
  std::span<const TaskTime> times(ProgramId id, std::uint32_t run);

 private:
  class NvmeLane;

  struct Order {  // one submitted run
    ProgramId program;
    std::uint32_t run;
  };

  void prepare(LaneProgram& lanes, const Program& program);
  LaneProgram& program(ProgramId id) { return programs_[static_cast<std::size_t>(id)]; }
  void run_lane(Lane lane);
  std::optional<Order> next_order(std::uint32_t number);
  void play_stream(Lane lane, const Order& order, Stream& stream, Chaos& chaos);
  void play_host(Lane lane, const Order& order, Chaos& chaos);
  void wait_on_stream(LaneProgram& lanes, const Task& task, std::uint32_t run, Stream& stream);
  void wait_on_host(LaneProgram& lanes, const Task& task, std::uint32_t run);
  bool ready(LaneProgram& lanes, const Task& task, std::uint32_t run);
  void wait_until_finished(const Order& order);
  void synchronize(Event& event);
  void fail(std::exception_ptr failure);
  void throw_if_failed();
  void stop_if_failed() const {
    if (failed_.load(std::memory_order_acquire)) throw Stopped{};
  }

  const Plan& plan_;
  Device& device_;
  SwapStore* store_;
  TaskActions& actions_;
  ExecutorOptions options_;
  std::array<LaneProgram, 2> programs_;
  std::array<std::unique_ptr<Stream>, kLanes> streams_;

  std::array<Order, 8> orders_{};            // ring of submitted runs
  Counter submitted_;                      // runs submitted so far; released: no more will come
  std::uint32_t submitted_count_ = 0;      // caller's thread; frozen before submitted_ is released
  std::array<Counter, kLanes> played_;     // runs each lane has finished playing

  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
  std::vector<std::thread> threads_;
};

// An NVMe lane: issues transfers in plan order as their dependencies finish, keeps several in flight, and
// retires tasks in order.
class Executor::Impl::NvmeLane {
 public:
  NvmeLane(Impl& executor, Lane lane, Chaos& chaos)
      : executor_(executor), lane_(lane), chaos_(chaos), channel_(executor.store_->open_channel(priority_of(lane))) {}

  void play(const Order& order) {
    LaneProgram& lanes = executor_.program(order.program);
    for (const int index : lanes.tasks[static_cast<std::size_t>(lane_)]) {
      const Task& task = lanes.program->tasks[static_cast<std::size_t>(index)];
      while (!executor_.ready(lanes, task, order.run) || in_flight() == kMaxTransfersInFlight) {
        if (in_flight() > 0) {
          reap(true);
        } else {
          executor_.wait_on_host(lanes, task, order.run);
        }
      }
      executor_.stop_if_failed();
      chaos_.pause();
      Flight& flight = flights_[head_ % kMaxTransfersInFlight];
      flight = {&lanes, index, order.run, 0, executor_.device_.now_ns()};
      ++head_;
      flight.left = executor_.actions_.start_transfers(task, *channel_, head_ - 1);
      reap(false);
    }
    while (in_flight() > 0) reap(true);
  }

 private:
  struct Flight {
    LaneProgram* lanes = nullptr;
    int task = 0;
    std::uint32_t run = 0;
    int left = 0;  // transfers not finished
    std::int64_t start_ns = 0;
  };

  int in_flight() const { return static_cast<int>(head_ - tail_); }

  void reap(bool block) {
    retire();
    if (in_flight() == 0) return;
    for (const SwapCompletion& completion : channel_->completions(block)) --flights_[completion.tag % kMaxTransfersInFlight].left;
    retire();
  }

  void retire() {
    for (; in_flight() > 0 && flights_[tail_ % kMaxTransfersInFlight].left == 0; ++tail_) {
      const Flight& flight = flights_[tail_ % kMaxTransfersInFlight];
      const std::int64_t now = executor_.device_.now_ns();
      const auto task = static_cast<std::size_t>(flight.task);
      // The lane works on one task at a time as far as its busy time goes.
      flight.lanes->times[parity(flight.run)][task] = {std::max(flight.start_ns, last_end_ns_), now};
      last_end_ns_ = now;
      flight.lanes->issued[task].reach(flight.run);
    }
  }

  Impl& executor_;
  Lane lane_;
  Chaos& chaos_;
  std::unique_ptr<SwapChannel> channel_;
  std::array<Flight, kMaxTransfersInFlight> flights_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;
  std::int64_t last_end_ns_ = 0;
};

Executor::Impl::Impl(const Plan& plan, Device& device, SwapStore* store, TaskActions& actions, const ExecutorOptions& options)
    : plan_(plan), device_(device), store_(store), actions_(actions), options_(options) {
  prepare(program(ProgramId::step), plan.step);
  prepare(program(ProgramId::evaluation), plan.evaluation);
  std::array<bool, kLanes> used{};
  for (const LaneProgram& lanes : programs_) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) used[lane] = used[lane] || !lanes.tasks[lane].empty();
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (!used[lane]) {
      played_[lane].release();
      continue;
    }
    const auto which = static_cast<Lane>(lane);
    if (is_stream(which)) streams_[lane] = device.make_stream(name_of(which));
    threads_.emplace_back([this, which] { run_lane(which); });
  }
}

Executor::Impl::~Impl() {
  submitted_.release();
  for (std::thread& thread : threads_) thread.join();
}

void Executor::Impl::prepare(LaneProgram& lanes, const Program& program) {
  const std::size_t count = program.tasks.size();
  lanes.program = &program;
  lanes.issued = std::vector<Counter>(count);
  for (std::size_t p = 0; p < 2; ++p) {
    lanes.begin_events[p].resize(count);
    lanes.end_events[p].resize(count);
    lanes.times[p].resize(count);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Lane lane = program.tasks[i].lane;
    lanes.tasks[static_cast<std::size_t>(lane)].push_back(static_cast<int>(i));
    if (!is_stream(lane)) continue;
    for (std::size_t p = 0; p < 2; ++p) {
      lanes.begin_events[p][i] = device_.make_event();
      lanes.end_events[p][i] = device_.make_event();
    }
  }
}

// The run with this number, once it has been submitted; nothing if it never will be.
std::optional<Executor::Impl::Order> Executor::Impl::next_order(std::uint32_t number) {
  submitted_.wait(number);
  if (submitted_.value() == Counter::kReleased) {
    stop_if_failed();
    if (number > submitted_count_) return std::nullopt;
  }
  return orders_[number % orders_.size()];
}

void Executor::Impl::run_lane(Lane lane) {
  Chaos chaos(options_, static_cast<std::uint64_t>(lane));
  const auto index = static_cast<std::size_t>(lane);
  try {
    std::optional<NvmeLane> nvme;
    if (is_nvme(lane)) nvme.emplace(*this, lane, chaos);
    for (std::uint32_t number = 1;; ++number) {
      const std::optional<Order> order = next_order(number);
      if (!order) return;
      if (nvme) {
        nvme->play(*order);
      } else if (is_stream(lane)) {
        play_stream(lane, *order, *streams_[index], chaos);
      } else {
        play_host(lane, *order, chaos);
      }
      played_[index].reach(number);
    }
  } catch (const Stopped&) {
  } catch (...) {
    fail(std::current_exception());
  }
}

// What the stream has to wait for: other streams by event, the host by blocking this lane's thread.
void Executor::Impl::wait_on_stream(LaneProgram& lanes, const Task& task, std::uint32_t run, Stream& stream) {
  for (const Dependency& d : task.dependencies) {
    const auto source = static_cast<std::size_t>(d.task);
    const std::uint32_t source_run = run - (d.previous_run ? 1 : 0);
    if (source_run == 0) continue;
    const Lane lane = lanes.program->tasks[source].lane;
    if (lane == task.lane) continue;
    lanes.issued[source].wait(source_run);
    stop_if_failed();
    if (is_stream(lane)) stream.wait(*lanes.end_events[parity(source_run)][source]);
  }
}

void Executor::Impl::wait_on_host(LaneProgram& lanes, const Task& task, std::uint32_t run) {
  for (const Dependency& d : task.dependencies) {
    const auto source = static_cast<std::size_t>(d.task);
    const std::uint32_t source_run = run - (d.previous_run ? 1 : 0);
    if (source_run == 0) continue;
    lanes.issued[source].wait(source_run);
    stop_if_failed();
    if (is_stream(lanes.program->tasks[source].lane)) lanes.end_events[parity(source_run)][source]->synchronize();
  }
}

bool Executor::Impl::ready(LaneProgram& lanes, const Task& task, std::uint32_t run) {
  for (const Dependency& d : task.dependencies) {
    const auto source = static_cast<std::size_t>(d.task);
    const std::uint32_t source_run = run - (d.previous_run ? 1 : 0);
    if (source_run == 0) continue;
    if (lanes.issued[source].value() < source_run) return false;
    if (!is_stream(lanes.program->tasks[source].lane)) continue;
    Event& event = *lanes.end_events[parity(source_run)][source];
    if (!event.finished()) return false;
    event.synchronize();  // finished: returns at once, or throws what went wrong
  }
  return true;
}

void Executor::Impl::play_stream(Lane lane, const Order& order, Stream& stream, Chaos& chaos) {
  LaneProgram& lanes = program(order.program);
  const std::size_t p = parity(order.run);
  for (const int index : lanes.tasks[static_cast<std::size_t>(lane)]) {
    const auto i = static_cast<std::size_t>(index);
    const Task& task = lanes.program->tasks[i];
    wait_on_stream(lanes, task, order.run, stream);
    chaos.pause();
    stream.record(*lanes.begin_events[p][i]);
    {
      const NamedRange range(stream, name_of(task.kind), task.layer < 0 ? "" : plan_.layers[static_cast<std::size_t>(task.layer)].name);
      actions_.enqueue(task, stream);
    }
    stream.record(*lanes.end_events[p][i]);
    lanes.issued[i].reach(order.run);
  }
}

void Executor::Impl::play_host(Lane lane, const Order& order, Chaos& chaos) {
  LaneProgram& lanes = program(order.program);
  for (const int index : lanes.tasks[static_cast<std::size_t>(lane)]) {
    const auto i = static_cast<std::size_t>(index);
    const Task& task = lanes.program->tasks[i];
    wait_on_host(lanes, task, order.run);
    chaos.pause();
    const std::int64_t start = device_.now_ns();
    actions_.execute(task);
    lanes.times[parity(order.run)][i] = {start, device_.now_ns()};
    lanes.issued[i].reach(order.run);
  }
}

void Executor::Impl::fail(std::exception_ptr failure) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) {
      failure_ = std::move(failure);
      if (options_.on_failure) options_.on_failure(failure_);
    }
  }
  failed_.store(true, std::memory_order_release);
  for (LaneProgram& lanes : programs_) {
    for (Counter& counter : lanes.issued) counter.release();
  }
  for (Counter& counter : played_) counter.release();
  submitted_.release();
}

void Executor::Impl::throw_if_failed() {
  if (!failed_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(failure_mutex_);
  std::rethrow_exception(failure_);
}

// Waits on the caller's thread. A stream's error may show here first: the lanes have to learn of it.
void Executor::Impl::synchronize(Event& event) {
  try {
    event.synchronize();
  } catch (...) {
    fail(std::current_exception());
  }
  throw_if_failed();
}

// A lane has played a run when its last task was issued, which on a stream is not when it was done.
void Executor::Impl::wait_until_finished(const Order& order) {
  LaneProgram& lanes = program(order.program);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (!streams_[lane] || lanes.tasks[lane].empty()) continue;
    synchronize(*lanes.end_events[parity(order.run)][static_cast<std::size_t>(lanes.tasks[lane].back())]);
  }
}

std::uint32_t Executor::Impl::submit(ProgramId id) {
  const std::uint32_t number = submitted_count_ + 1;
  if (number > kMaxRunsInProgress) {
    const std::uint32_t oldest = number - kMaxRunsInProgress;
    for (const Counter& played : played_) played.wait(oldest);
    throw_if_failed();
    wait_until_finished(orders_[oldest % orders_.size()]);
  }
  throw_if_failed();
  LaneProgram& lanes = program(id);
  orders_[number % orders_.size()] = {id, ++lanes.submitted};
  lanes.order_of_run[parity(lanes.submitted)] = number;
  submitted_count_ = number;
  submitted_.reach(number);
  return lanes.submitted;
}

void Executor::Impl::wait(ProgramId id, std::uint32_t run, int task) {
  LaneProgram& lanes = program(id);
  const auto i = static_cast<std::size_t>(task);
  lanes.issued[i].wait(run);
  throw_if_failed();
  if (is_stream(lanes.program->tasks[i].lane)) synchronize(*lanes.end_events[parity(run)][i]);
}

void Executor::Impl::drain() {
  for (const Counter& played : played_) played.wait(submitted_count_);
  throw_if_failed();
  if (submitted_count_ > 1) wait_until_finished(orders_[(submitted_count_ - 1) % orders_.size()]);
  if (submitted_count_ > 0) wait_until_finished(orders_[submitted_count_ % orders_.size()]);
}

std::span<const TaskTime> Executor::Impl::times(ProgramId id, std::uint32_t run) {
  LaneProgram& lanes = program(id);
  const std::size_t p = parity(run);
  for (const Counter& played : played_) played.wait(lanes.order_of_run[p]);
  throw_if_failed();
  for (std::size_t i = 0; i < lanes.times[p].size(); ++i) {
    if (!is_stream(lanes.program->tasks[i].lane)) continue;
    synchronize(*lanes.end_events[p][i]);
    lanes.times[p][i] = {lanes.begin_events[p][i]->time_ns(), lanes.end_events[p][i]->time_ns()};
  }
  return lanes.times[p];
}

Executor::Executor(const Plan& plan, Device& device, SwapStore* store, TaskActions& actions, const ExecutorOptions& options)
    : impl_(std::make_unique<Impl>(plan, device, store, actions, options)) {}
Executor::~Executor() = default;
std::uint32_t Executor::submit(ProgramId program) { return impl_->submit(program); }
void Executor::wait(ProgramId program, std::uint32_t run, int task) { impl_->wait(program, run, task); }
void Executor::drain() { impl_->drain(); }
std::span<const TaskTime> Executor::times(ProgramId program, std::uint32_t run) { return impl_->times(program, run); }

}  // namespace spillway
