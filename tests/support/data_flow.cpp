#include "support/data_flow.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/hash.h"
#include "host/host_stream.h"
#include "support/swap_harness.h"

namespace spillway::testing {

namespace {

// Moved by copying, as kernels and streams do: ThreadSanitizer sees it, unlike what libxxhash reads.
void write_tag(std::span<std::byte> bytes, std::uint64_t tag) {
  std::memset(bytes.data(), static_cast<int>(tag >> 56), bytes.size());
  std::memcpy(bytes.data(), &tag, std::min(sizeof tag, bytes.size()));
}

bool on_nvme(const Plan& plan, const Access& access) {
  return plan.buffers[static_cast<std::size_t>(access.buffer)].tier == Tier::nvme;
}

// The two sides of a transfer between NVMe and host memory.
struct Transfer {
  const Access* nvme = nullptr;
  const Access* host = nullptr;
};

Transfer transfer_of(const Plan& plan, const Task& task) {
  Transfer transfer;
  for (const Access& access : task.accesses) {
    if (on_nvme(plan, access)) transfer.nvme = &access;
    if (access.role == (writes_nvme(task.kind) ? Role::source : Role::destination)) transfer.host = &access;
  }
  return transfer;
}

// Calls visit(index, byte of the access) for every extent in the access.
template <class Visit>
void for_each_extent(const Plan& plan, const Access& access, Visit visit) {
  for (std::size_t i = 0; i < plan.extents.size(); ++i) {
    const ExtentPlan& extent = plan.extents[i];
    if (extent.buffer == access.buffer && extent.begin >= access.begin && extent.begin < access.end) visit(static_cast<int>(i), extent.begin - access.begin);
  }
}

}  // namespace

TierMemory::TierMemory(const Plan& plan) {
  for (const TierUse& tier : plan.tiers) {
    AlignedBuffer& arena = arenas.emplace_back(std::max<std::int64_t>(tier.peak, 4096));
    std::ranges::fill(arena.span(), std::byte{0});
  }
}

std::span<std::byte> TierMemory::bytes(const Plan& plan, const Access& access) {
  const Buffer& buffer = plan.buffers[static_cast<std::size_t>(access.buffer)];
  return arenas[static_cast<std::size_t>(buffer.tier)].span().subspan(
      static_cast<std::size_t>(buffer.offset + access.begin), static_cast<std::size_t>(access.end - access.begin));
}

std::unique_ptr<SwapStore> zeroed_store(const Plan& plan, SwapStoreOptions options) {
  if (plan.extents.empty()) return nullptr;
  std::int64_t largest = 0;
  for (const ExtentPlan& extent : plan.extents) {
    options.extents.push_back({extent.name, extent.bytes});
    largest = std::max(largest, extent.bytes);
  }
  std::unique_ptr<SwapStore> store = make_swap_store(std::move(options));
  const AlignedBuffer zeros(largest);
  std::ranges::fill(zeros.span(), std::byte{0});
  const std::unique_ptr<SwapChannel> channel = store->open_channel(IoPriority::streaming);
  for (std::size_t i = 0; i < plan.extents.size(); ++i) channel->write(static_cast<int>(i), zeros.data(), i);
  drain(*channel);
  return store;
}

DataFlow::DataFlow(const Plan& plan, std::uint32_t max_runs)
    : memory(plan), plan_(plan), programs_{&plan.step, &plan.evaluation} {
  for (std::size_t p = 0; p < 2; ++p) {
    const std::size_t count = programs_[p]->tasks.size();
    traces_[p].assign(max_runs, std::vector<TaskTrace>(count));
    runs_[p].assign(count, 0);
  }
  const auto counted = std::ranges::count_if(plan.step.tasks, [](const Task& task) { return !is_nvme(task.lane); });
  for (std::uint32_t run = 0; run < max_runs; ++run) left_.emplace_back(static_cast<int>(counted));
}

const Task& DataFlow::task_of(const Execution& execution) const {
  return programs_[static_cast<std::size_t>(execution.program)]->tasks[static_cast<std::size_t>(execution.task)];
}

TaskTrace& DataFlow::trace_of(const Execution& execution) {
  return traces_[static_cast<std::size_t>(execution.program)].at(execution.run - 1)[static_cast<std::size_t>(execution.task)];
}

DataFlow::Execution DataFlow::next_execution(const Task& task) {
  const bool is_step = &task >= plan_.step.tasks.data() && &task < plan_.step.tasks.data() + plan_.step.tasks.size();
  const ProgramId program = is_step ? ProgramId::step : ProgramId::evaluation;
  const auto index = &task - programs_[static_cast<std::size_t>(program)]->tasks.data();
  return {program, ++runs_[static_cast<std::size_t>(program)][static_cast<std::size_t>(index)], static_cast<int>(index)};
}

void DataFlow::fail_if_wanted(const Execution& execution, bool early) const {
  for (const TaskFault& fault : faults) {
    const bool here = fault.program == execution.program && fault.run == execution.run && fault.task == execution.task;
    if (here && fault.early == early) throw std::runtime_error(fault.text);
  }
}

void DataFlow::begin(const Execution& execution) {
  const auto lane = static_cast<std::size_t>(task_of(execution).lane);
  orders_[static_cast<std::size_t>(execution.program)][lane].push_back(execution.task);
  trace_of(execution).start = clock_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (execution.program == ProgramId::step && execution.run > 2 && left_[execution.run - 3].load(std::memory_order_relaxed) != 0) {
    crowded_.fetch_add(1, std::memory_order_relaxed);
  }
}

std::uint64_t DataFlow::read_inputs(const Task& task) {
  std::vector<std::byte>& seen = scratch_[static_cast<std::size_t>(task.lane)];
  seen.clear();
  for (const Access& access : task.accesses) {
    if (!access.reads) continue;
    const std::span<const std::byte> bytes = memory.bytes(plan_, access);
    const std::size_t at = seen.size();
    seen.resize(at + bytes.size());
    std::memcpy(seen.data() + at, bytes.data(), bytes.size());
  }
  return hash_bytes(seen);
}

void DataFlow::work(const Execution& execution) {
  const Task& task = task_of(execution);
  begin(execution);
  fail_if_wanted(execution, false);
  TaskTrace& trace = trace_of(execution);
  trace.inputs = read_inputs(task);
  std::uint64_t tag = trace.inputs ^ (static_cast<std::uint64_t>(execution.run) << 32 | static_cast<std::uint64_t>(execution.task));
  for (const Access& access : task.accesses) {
    tag = (tag ^ tag >> 31) * 0x9e3779b97f4a7c15u;
    if (access.writes) write_tag(memory.bytes(plan_, access), tag);
  }
  trace.end = clock_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (execution.program == ProgramId::step) left_[execution.run - 1].fetch_sub(1, std::memory_order_relaxed);
}

void DataFlow::enqueue(const Task& task, Stream& stream) {
  const Execution execution = next_execution(task);
  fail_if_wanted(execution, true);
  static_cast<host::HostStream&>(stream).enqueue([this, execution] { work(execution); });
}

void DataFlow::load_from_store(const Task& task) {
  for (const Access& access : task.accesses) {
    if (!access.reads || !on_nvme(plan_, access) || access.begin == access.end) continue;
    const std::unique_ptr<SwapChannel> channel = store_->open_channel(IoPriority::background);
    for_each_extent(plan_, access, [&](int extent, std::int64_t at) { channel->read(extent, memory.bytes(plan_, access).data() + at, 0); });
    drain(*channel);
  }
}

void DataFlow::keep_in_store(const Task& task) {
  for (const Access& access : task.accesses) {
    if (!access.writes || !on_nvme(plan_, access) || access.begin == access.end) continue;
    const std::unique_ptr<SwapChannel> channel = store_->open_channel(IoPriority::background);
    for_each_extent(plan_, access, [&](int extent, std::int64_t at) { channel->write(extent, memory.bytes(plan_, access).data() + at, 0); });
    drain(*channel);
  }
}

void DataFlow::execute(const Task& task) {
  if (store_ != nullptr) load_from_store(task);
  work(next_execution(task));
  if (store_ != nullptr) keep_in_store(task);
}

int DataFlow::start_transfers(const Task& task, SwapChannel& channel, std::uint64_t tag) {
  const Execution execution = next_execution(task);
  begin(execution);
  fail_if_wanted(execution, false);
  const Transfer transfer = transfer_of(plan_, task);
  std::byte* const host = memory.bytes(plan_, *transfer.host).data();
  int started = 0;
  for_each_extent(plan_, *transfer.nvme, [&](int extent, std::int64_t at) {
    writes_nvme(task.kind) ? channel.write(extent, host + at, tag) : channel.read(extent, host + at, tag);
    ++started;
  });
  return started;
}

void DataFlow::play_in_order(ProgramId program) {
  for (const Task& task : programs_[static_cast<std::size_t>(program)]->tasks) {
    const Execution execution = next_execution(task);
    if (!is_nvme(task.lane)) {
      work(execution);
      continue;
    }
    const Transfer transfer = transfer_of(plan_, task);
    const std::span<std::byte> nvme = memory.bytes(plan_, *transfer.nvme), host = memory.bytes(plan_, *transfer.host);
    const std::size_t bytes = std::min(nvme.size(), host.size());
    writes_nvme(task.kind) ? std::memcpy(nvme.data(), host.data(), bytes) : std::memcpy(host.data(), nvme.data(), bytes);
  }
}

}  // namespace spillway::testing
