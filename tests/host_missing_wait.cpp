// Breaks the rule on purpose, and has to be caught: stream b reads what stream a wrote without waiting
// for it. The write is over by then, and the thread that enqueues has seen that (by a relaxed load,
// which orders nothing), so only a synchronisation that enqueuing must not have could hide the race.
// Built with ThreadSanitizer only; passes if the sanitizer's report makes it fail.
#include <atomic>
#include <thread>

#include "host/host_stream.h"

int main() {
  spillway::host::HostStream a("a", 0, 0), b("b", 0, 0);
  int value = 0, seen = 0;
  std::atomic<bool> written{false};
  // Several tasks on both rings before, so that their counters have been through every state.
  for (int i = 0; i < 3; ++i) {
    a.enqueue([] {});
    b.enqueue([] {});
  }
  a.enqueue([&] {
    value = 1;
    written.store(true, std::memory_order_relaxed);
  });
  while (!written.load(std::memory_order_relaxed)) std::this_thread::yield();
  b.enqueue([&] { seen = value; });
  b.synchronize();
  a.synchronize();
  return seen == 1 ? 0 : 2;
}
