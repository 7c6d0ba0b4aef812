// A bounded queue of closures from one producer to one consumer. Closures live in the ring itself:
// enqueuing allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "host/futex_counter.h"

namespace spillway::host {

class TaskRing {
 public:
  static constexpr std::uint32_t kCapacity = 1024;
  static constexpr std::size_t kTaskBytes = 240;  // 256 with the function pointer, padded

  TaskRing() : slots_(std::make_unique<Slot[]>(kCapacity)) {}

  // Producer: appends; waits for room if the ring is full. The consumer's progress is looked at only
  // then, so that enqueuing does not order the producer after the consumer.
  template <class F>
  void push(F&& task) {
    using Task = std::remove_cvref_t<F>;
    static_assert(sizeof(Task) <= kTaskBytes && alignof(Task) <= alignof(std::max_align_t), "raise kTaskBytes");
    wait_for_room();
    Slot& slot = slots_[tail_ % kCapacity];
    new (slot.storage) Task(std::forward<F>(task));
    slot.run_and_destroy = [](void* storage) {
      Task& stored = *std::launder(static_cast<Task*>(storage));
      stored();
      stored.~Task();
    };
    pushed_.publish(++tail_);
  }

  // Consumer: waits for the next task, runs it (it must not throw) and frees its slot.
  void run_one() {
    pushed_.wait_while(head_);
    Slot& slot = slots_[head_ % kCapacity];
    slot.run_and_destroy(slot.storage);
    head_ = (head_ + 1) & FutexCounter::kMask;
    popped_.publish(head_);
  }

 private:
  struct Slot {
    alignas(std::max_align_t) std::byte storage[kTaskBytes];
    void (*run_and_destroy)(void*);
  };

  void wait_for_room() {
    while (FutexCounter::distance(tail_, known_head_) >= static_cast<std::int32_t>(kCapacity)) {
      popped_.wait_while(known_head_);
      known_head_ = popped_.load();
    }
  }

  std::unique_ptr<Slot[]> slots_;
  alignas(64) std::uint32_t tail_ = 0;  // the producer's
  std::uint32_t known_head_ = 0;
  FutexCounter pushed_;
  alignas(64) std::uint32_t head_ = 0;  // the consumer's
  FutexCounter popped_;
};

}  // namespace spillway::host
