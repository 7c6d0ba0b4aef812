// Writes checkpoints while training goes on: the engine fills memory with item after item of the snapshot, a thread of
// the writer's own hashes them and puts them on disk.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "checkpoint/session.h"
#include "runtime/state_io.h"
#include "spillway/communicator.h"

namespace spillway::checkpoint {

// begin(), acquire()/submit() for every item, poll()/finish(): each by one thread at a time, which need not be the same.
// All ranks begin the same saves in the same order.
class Writer : public SnapshotSink {
 public:
  // What a writer allocates for itself, beside `staging` and the tables of what it writes.
  static constexpr std::size_t kBufferBytes = WriteBuffer::kBytes;

  // Collective. `items` are this rank's in the order in which they will come; over all ranks they hold every element of
  // every tensor once. `staging` is page-aligned and the caller's, for as long as the writer lives; it is used in slots
  // of the largest item: with one, the engine waits for the disk, with more it runs ahead. The communicator is the
  // writer's alone. Removes what dead runs left under the root. Throws IoError if nothing can be written there, MemoryError
  // if `staging` is smaller than an item.
  Writer(WriterOptions options, std::unique_ptr<Communicator> communicator, std::vector<SnapshotItem> items,
         std::span<std::byte> staging);

  // Finishes a save of which all items have come; any other is abandoned.
  ~Writer() override;

  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Starts a save. Returns at once. The result of the save before has been taken.
  void begin(const RunState& run);

  // Items 0, 1, ... in this order. A save that has failed still takes them, and drops them.
  std::span<std::byte> acquire(std::size_t item) override;
  void submit(std::size_t item) override;

  // A save was begun and its result not taken.
  bool busy() const;

  // The result of the save once it has ended and all items have come. Throws the CommError of a rank that is lost.
  std::optional<SaveResult> poll();

  // Waits for it. All items have been submitted, or are by another thread.
  SaveResult finish();

 private:
  enum class Slot : std::uint8_t { free, filling, full };

  Totals open_root();
  void work();
  SaveResult save(const RunState& run);
  bool wait_for(std::size_t item);
  void release(std::size_t item);
  void drop_items();
  bool ended() const { return failure_ || (result_ && submitted_ == layout_.items.size()); }
  SaveResult take_result();
  std::span<std::byte> memory_of(std::size_t item) const;

  WriterOptions options_;
  std::unique_ptr<Communicator> communicator_;
  RankLayout layout_;
  std::span<std::byte> staging_;
  WriteBuffer buffer_;
  Totals totals_;
  bool warned_buffered_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::size_t acquired_ = 0;
  std::size_t submitted_ = 0;
  std::optional<RunState> next_;  // to be saved by the thread
  bool busy_ = false;
  bool dropping_ = false;
  bool stop_ = false;
  std::optional<SaveResult> result_;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace spillway::checkpoint
