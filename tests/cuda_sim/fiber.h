// A stack and a place in code to go on from. The runner switches between fibers of one OS thread; a fiber never moves
// to another.
#pragma once

#include <cstddef>

namespace cuda_sim {

class Fiber {
 public:
  // The calling OS thread's own stack.
  Fiber();
  // A new stack that starts in body(argument), which must not return.
  Fiber(void (*body)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Leaves `from`, which is running, for this one; returns when somebody switches back. `identities`: each fiber is a
  // thread of its own to ThreadSanitizer, and no edge comes from the switch; else all are the OS thread.
  void switch_from(Fiber& from, bool identities);

  // Makes this fiber a thread of its own to ThreadSanitizer, which comes after what the caller did so far.
  void take_identity();

 private:
  static void enter();

  std::byte* stack_ = nullptr;  // null: the OS thread's
  const void* bottom_ = nullptr;
  std::size_t size_ = 0;
  void* stack_pointer_ = nullptr;
  void* fake_stack_ = nullptr;  // ASan's
  void* identity_ = nullptr;    // TSan's
  bool owns_identity_ = false;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
};

}  // namespace cuda_sim
