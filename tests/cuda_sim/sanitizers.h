// What the simulation tells the sanitizers of the program it is loaded into. The library itself is built without
// instrumentation, so that its locks and queues order nothing in ThreadSanitizer's eyes; the edges that CUDA gives are
// made by hand here. Without sanitizers everything is a no-op.
//
// Two things are seen all the same, whatever the flags: std::mutex and its like (use RawLock), and
// malloc, free, memcpy, memset (use Unseen around the simulation's own data).
#pragma once

#include <cstddef>

namespace cuda_sim {

bool under_asan();
bool under_tsan();

// What came before release(token) in one thread comes before what follows acquire(token) in another.
// Tokens are addresses: of heap memory that dies with them, or of something used for one chain of edges only.
void tsan_release(void* token);
void tsan_acquire(void* token);

// While one exists, the calling thread's allocations and copies are the simulation's own business.
class Unseen {
 public:
  Unseen();
  ~Unseen();
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

// The calling thread, in code without instrumentation, reads or writes these bytes: ThreadSanitizer looks for races,
// AddressSanitizer for poison.
void reads_memory(const void* p, std::size_t bytes);
void writes_memory(void* p, std::size_t bytes);

// AddressSanitizer reports any access to poisoned bytes.
void poison(const void* p, std::size_t bytes);
void unpoison(const void* p, std::size_t bytes);

}  // namespace cuda_sim
