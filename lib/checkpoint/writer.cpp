#include "checkpoint/writer.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "spillway/error.h"

namespace spillway::checkpoint {

namespace {

// The writer is destroyed before all items have come.
struct Abandoned {};

void make_writable_root(const std::string& root) {
  std::error_code error;
  std::filesystem::create_directories(root, error);
  if (error) throw_system_error("make the folder", root, error.value());
  if (::access(root.c_str(), W_OK | X_OK) != 0) throw_system_error("write to", root, errno);
  remove_stale(root, [](std::string_view name) { return step_of(name).has_value(); });
}

}  // namespace

Writer::Writer(WriterOptions options, std::unique_ptr<Communicator> communicator, std::vector<SnapshotItem> items,
               std::span<std::byte> staging)
    : options_(std::move(options)),
      communicator_(std::move(communicator)),
      layout_(make_rank_layout(options_.dtype, options_.state, options_.tensors, std::move(items))),
      staging_(staging),
      totals_(open_root()) {
  assert(reinterpret_cast<std::uintptr_t>(staging.data()) % SequentialFile::kAlignment == 0);
  const auto slot_bytes = static_cast<std::size_t>(layout_.largest_item_bytes());
  slots_.resize(slot_bytes == 0 ? 1 : staging.size() / slot_bytes, Slot::free);
  thread_ = std::thread([this] { work(); });
}

Totals Writer::open_root() {
  std::string error;
  const std::int64_t largest = layout_.largest_item_bytes();
  const bool fits = static_cast<std::int64_t>(staging_.size()) >= largest;
  if (!fits) {
    error = fmt::format("[checkpoint] prepare to save: the largest item has {}, the memory to copy it to {}; raise "
                        "spillway.checkpoint_memory",
                        human_bytes(largest), human_bytes(static_cast<std::int64_t>(staging_.size())));
  } else if (communicator_->rank() == 0) {
    try {
      make_writable_root(options_.root);
    } catch (const IoError& failed) {
      error = failed.what();
    }
  }
  const Agreement agreement = agree(*communicator_, fmt::format("{} {}", layout_.file_bytes, layout_.header.size()), error);
  if (!fits) throw MemoryError(error);
  if (!agreement.error.empty()) throw IoError(agreement.error);
  Totals totals;
  for (const std::string& text : agreement.texts) {
    std::istringstream in(text);
    std::int64_t file_bytes = 0, header_bytes = 0;
    in >> file_bytes >> header_bytes;
    totals.file_bytes += file_bytes;
    totals.header_bytes += header_bytes;
  }
  return totals;
}

Writer::~Writer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Writer::begin(const RunState& run) {
  {
    const std::lock_guard lock(mutex_);
    assert(!busy_);
    busy_ = true;
    dropping_ = false;
    acquired_ = submitted_ = 0;
    next_ = run;
  }
  changed_.notify_all();
}

bool Writer::busy() const {
  const std::lock_guard lock(mutex_);
  return busy_;
}

std::span<std::byte> Writer::memory_of(std::size_t item) const {
  const auto stride = static_cast<std::size_t>(layout_.largest_item_bytes());
  return staging_.subspan(item % slots_.size() * stride, static_cast<std::size_t>(layout_.items[item].bytes()));
}

std::span<std::byte> Writer::acquire(std::size_t item) {
  std::unique_lock lock(mutex_);
  assert(busy_ && item == acquired_ && item < layout_.items.size());
  Slot& slot = slots_[item % slots_.size()];
  changed_.wait(lock, [&] { return slot == Slot::free; });
  slot = Slot::filling;
  ++acquired_;
  return memory_of(item);
}

void Writer::submit(std::size_t item) {
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = slots_[item % slots_.size()];
    assert(slot == Slot::filling);
    slot = dropping_ ? Slot::free : Slot::full;
    ++submitted_;
  }
  changed_.notify_all();
}

std::optional<SaveResult> Writer::poll() {
  const std::lock_guard lock(mutex_);
  if (!ended()) return {};
  return take_result();
}

SaveResult Writer::finish() {
  std::unique_lock lock(mutex_);
  assert(busy_);
  changed_.wait(lock, [&] { return ended(); });
  return take_result();
}

SaveResult Writer::take_result() {
  busy_ = false;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  return *std::exchange(result_, std::nullopt);
}

// The thread.

void Writer::work() {
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return next_ || stop_; });
    if (!next_) return;
    const RunState run = *std::exchange(next_, std::nullopt);
    lock.unlock();
    std::optional<SaveResult> result;
    std::exception_ptr failure;
    try {
      const auto start = std::chrono::steady_clock::now();
      result = save(run);
      result->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    } catch (const Abandoned&) {
      return;
    } catch (...) {
      failure = std::current_exception();
    }
    drop_items();
    lock.lock();
    result_ = std::move(result);
    failure_ = failure;
    lock.unlock();
    changed_.notify_all();
  }
}

SaveResult Writer::save(const RunState& run) {
  Session session(*communicator_, options_, layout_, totals_, buffer_.span(), run);
  if (session.buffered() && !std::exchange(warned_buffered_, true)) {
    log_warning(fmt::format("[checkpoint] {} refuses O_DIRECT: the page cache is in between, which costs memory outside the budget and "
                            "processor time",
                            options_.root));
  }
  for (std::size_t item = 0; item < layout_.items.size() && !session.failed(); ++item) {
    if (!wait_for(item)) throw Abandoned{};
    session.add(item, memory_of(item));
    release(item);
  }
  // The others may still write; what this rank's engine goes on to bring is of no use.
  if (session.failed()) drop_items();
  return session.commit();
}

// False: the writer is being destroyed, and the item will not come.
bool Writer::wait_for(std::size_t item) {
  std::unique_lock lock(mutex_);
  const Slot& slot = slots_[item % slots_.size()];
  changed_.wait(lock, [&] { return slot == Slot::full || stop_; });
  return slot == Slot::full;
}

void Writer::release(std::size_t item) {
  {
    const std::lock_guard lock(mutex_);
    slots_[item % slots_.size()] = Slot::free;
  }
  changed_.notify_all();
}

void Writer::drop_items() {
  {
    const std::lock_guard lock(mutex_);
    dropping_ = true;
    std::ranges::replace(slots_, Slot::full, Slot::free);
  }
  changed_.notify_all();
}

}  // namespace spillway::checkpoint
