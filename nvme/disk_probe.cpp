#include "spillway/disk_probe.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "base/arena.h"
#include "base/text.h"
#include "errno_text.h"
#include "spillway/error.h"
#include "swap_file.h"

namespace spillway {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kPage = 4096;
constexpr int kLatencySamples = 64;
// For so long a ring's thread may be without a core while everything else on the machine is busy.
constexpr double kAbsence_s = 20e-3;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

[[noreturn]] void throw_failure(const std::string& folder, const std::string& what, int error) {
  throw IoError(fmt::format("[nvme] measure disk ({}): {}: {}; make it a folder this user can write to on a disk that works and has room, or name another",
                            folder, what, errno_text(error)));
}

// As much of a swap file, whose rates these are to be, as leaves room for what the disk is for: file systems give space back late.
SwapFile scratch_file(const std::string& folder, std::int64_t bytes, std::int64_t block_bytes) {
  SwapFile file(folder);
  const std::int64_t blocks = std::max<std::int64_t>(2, std::min(bytes, file.free_bytes_now() / 4) / block_bytes);
  file.allocate(blocks * block_bytes);
  return file;
}

// Memory like that which is swapped: a request on huge pages is one piece to the disk, on small ones it may be of more than the disk takes
// at a time. It holds noise, the same in every MiB: some disks compress, and some file systems keep no zeros.
class Buffers {
 public:
  explicit Buffers(std::int64_t bytes) : memory_("buffers that a disk is measured with", std::max(bytes, kPage), Pin::no) {
    std::mt19937_64 random(1);
    std::vector<std::uint64_t> noise(static_cast<std::size_t>(std::min<std::int64_t>(bytes, 1 << 20)) / sizeof(std::uint64_t));
    std::ranges::generate(noise, std::ref(random));
    const auto period = static_cast<std::int64_t>(noise.size() * sizeof(std::uint64_t));
    for (std::int64_t i = 0; i < bytes; i += period) std::memcpy(memory_.data() + i, noise.data(), static_cast<std::size_t>(std::min(period, bytes - i)));
  }
  std::byte* data() const { return memory_.data(); }

 private:
  Arena memory_;
};

// Nothing is registered: for so short a life that costs more than it saves, a user with little locked memory would be warned of
// something that the run itself need not meet, and a ring may keep a file, and its room, a while after its end.
IoEngineOptions owned_by_probe(IoEngineOptions options) {
  options.memory = {};
  options.files = {};
  options.one_thread = true;
  return options;
}

class Probe {
 public:
  Probe(const std::string& folder, const DiskProbeOptions& options)
      : folder_(folder),
        block_bytes_(options.block_bytes),
        seconds_(options.seconds_per_rate),
        file_(scratch_file(folder, options.file_bytes, block_bytes_)),
        blocks_(file_.bytes() / block_bytes_),
        buffers_(std::max(0, options.engine.depth) * block_bytes_),
        engine_(make_io_engine(owned_by_probe(options.engine))) {
    for (int i = 0; i < options.engine.depth; ++i) free_.push_back(static_cast<std::uint64_t>(i));
    results_.resize(free_.size());
  }

  // What was allocated but never written is read as zeros, without asking the disk.
  void write_once() {
    const std::int64_t written = stream([](std::int64_t) { return IoOp::write; }, blocks_, 4 * seconds_);
    blocks_ = std::max<std::int64_t>(2, std::min(blocks_, written));
  }

  double rate(const std::function<IoOp(std::int64_t)>& op) {
    const Clock::time_point start = Clock::now();
    const std::int64_t moved = stream(op, kEndless, seconds_);
    return static_cast<double>(moved * block_bytes_) / std::max(1e-9, seconds_since(start));
  }

  // The median over requests that are alone, at places that no read-ahead foresees.
  double latency(IoOp op, std::int64_t bytes) {
    std::mt19937 random(7);
    std::uniform_int_distribution<std::int64_t> place(0, blocks_ * block_bytes_ / bytes - 1);
    std::vector<double> seconds;
    const Clock::time_point start = Clock::now();
    do {
      const Clock::time_point request = Clock::now();
      queue(op, place(random) * bytes, bytes);
      engine_->submit();
      reap(1);
      seconds.push_back(seconds_since(request));
    } while (seconds.size() < kLatencySamples && seconds_since(start) < seconds_ / 6);
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::ranges::nth_element(seconds, middle);
    return *middle;
  }

  bool buffered() const { return file_.buffered(); }

 private:
  static constexpr std::int64_t kEndless = INT64_MAX;

  // Moves blocks of the file, round and round, with as many in flight as the engine takes; at least two, and no new one
  // when `count` have been started or `seconds` are over. Returns how many.
  std::int64_t stream(const std::function<IoOp(std::int64_t)>& op, std::int64_t count, double seconds) {
    const Clock::time_point start = Clock::now();
    std::int64_t started = 0;
    while (started < count && (started < 2 || seconds_since(start) < seconds)) {
      if (free_.empty()) {
        reap(1);
        continue;
      }
      queue(op(started), started % blocks_ * block_bytes_, block_bytes_);
      ++started;
      engine_->submit();  // by itself, as the swap store does
    }
    while (free_.size() < results_.size()) reap(1);
    return started;
  }

  // A free slot is a part of the buffers, and the tag.
  void queue(IoOp op, std::int64_t offset, std::int64_t bytes) {
    const std::uint64_t slot = free_.back();
    free_.pop_back();
    asked_ = bytes;
    engine_->queue({op, file_.fd(), offset, buffers_.data() + static_cast<std::int64_t>(slot) * block_bytes_, bytes, slot});
  }

  void reap(int count) {
    const int got = engine_->reap(results_, count);
    for (const IoResult& result : std::span(results_).first(static_cast<std::size_t>(got))) {
      free_.push_back(result.tag);
      if (result.error != 0) throw_failure(folder_, "transfer " + human_bytes(asked_), result.error);
      if (result.bytes != asked_) throw_failure(folder_, fmt::format("transfer {} of which {} were moved", human_bytes(asked_), human_bytes(result.bytes)), EIO);
    }
  }

  const std::string& folder_;
  const std::int64_t block_bytes_;
  const double seconds_;
  SwapFile file_;
  std::int64_t blocks_;  // of the file, that have been written
  Buffers buffers_;
  std::unique_ptr<IoEngine> engine_;  // after what it refers to
  std::vector<std::uint64_t> free_;
  std::vector<IoResult> results_;
  std::int64_t asked_ = 0;  // bytes of each request in flight
};

void check(const DiskProbeOptions& options) {
  if (options.block_bytes <= 0 || options.block_bytes % kPage != 0 || options.block_bytes > IoEngine::max_transfer_bytes) {
    throw IoError(fmt::format("[nvme] measure disk: blocks of {} bytes; allowed: multiples of {} up to {}", options.block_bytes, kPage,
                              IoEngine::max_transfer_bytes));
  }
}

// `together` is called before each rate, so that several probes measure the same at the same time.
DiskRates measure(const std::string& folder, const DiskProbeOptions& options, const std::function<void()>& together) {
  check(options);
  Probe probe(folder, options);
  DiskRates rates;
  rates.block_bytes = options.block_bytes;
  rates.buffered = probe.buffered();
  probe.write_once();
  together();
  rates.write_bytes = probe.rate([](std::int64_t) { return IoOp::write; });
  together();
  rates.read_bytes = probe.rate([](std::int64_t) { return IoOp::read; });
  together();
  rates.mixed_bytes = probe.rate([](std::int64_t block) { return block % 2 == 0 ? IoOp::read : IoOp::write; });
  together();
  rates.latency_s = probe.latency(IoOp::read, kPage);
  rates.block_latency_s = std::max(probe.latency(IoOp::read, options.block_bytes), probe.latency(IoOp::write, options.block_bytes));
  return rates;
}

}  // namespace

DiskRates probe_disk(const std::string& folder, const DiskProbeOptions& options) {
  return measure(folder, options, [] {});
}

std::vector<DiskRates> probe_disks(std::span<const std::string> folders, const DiskProbeOptions& options) {
  std::vector<DiskRates> rates(folders.size());
  std::vector<std::exception_ptr> errors(folders.size());
  std::barrier together(static_cast<std::ptrdiff_t>(folders.size()));
  {
    const auto measure_one = [&](std::size_t i) {
      try {
        rates[i] = measure(folders[i], options, [&] { together.arrive_and_wait(); });
      } catch (...) {
        errors[i] = std::current_exception();
      }
      together.arrive_and_drop();
    };
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < folders.size(); ++i) {
      try {
        threads.emplace_back(measure_one, i);
      } catch (...) {
        errors[i] = std::current_exception();
        together.arrive_and_drop();
      }
    }
    if (!folders.empty()) measure_one(0);
  }
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
  return rates;
}

int depth_for(const DiskRates& rates, std::int64_t block_bytes) {
  const double slope = rates.block_bytes > kPage ? std::max(0.0, rates.block_latency_s - rates.latency_s) / static_cast<double>(rates.block_bytes - kPage) : 0.0;
  const double latency = rates.latency_s + slope * static_cast<double>(block_bytes - kPage);
  const double bandwidth = std::max({rates.read_bytes, rates.write_bytes, rates.mixed_bytes});
  const double blocks = std::ceil((2.0 * latency + kAbsence_s) * bandwidth / static_cast<double>(block_bytes));
  return static_cast<int>(std::clamp(blocks, 4.0, 128.0));
}

}  // namespace spillway
