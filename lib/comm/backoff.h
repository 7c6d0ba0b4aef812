// Waiting for something that has to be asked for: at once a few times, then leaving the core to others, then
// sleeping ever longer. More ranks than cores is an ordinary case, in which spinning keeps those from running that
// are waited for.
#pragma once

namespace spillway::comm {

class Backoff {
 public:
  static constexpr int kSpins = 4;
  static constexpr int kYields = 16;
  static constexpr int kMinSleepUs = 5;
  static constexpr int kMaxSleepUs = 100;

  // Microseconds that the next pause() sleeps; 0: it yields; -1: it returns at once.
  int next_us() const;

  void pause();

 private:
  int pauses_ = 0;
  int sleep_us_ = kMinSleepUs;
};

}  // namespace spillway::comm
