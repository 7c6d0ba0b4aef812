// The thread that keeps this rank heard by the others, and hears them: drives Liveness with a link, a clock and the
// watch over local processes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/beat.h"
#include "comm/liveness.h"
#include "comm/process_identity.h"
#include "comm/process_watch.h"

namespace spillway::comm {

// Carries beats. Nothing here blocks. Used by one thread at a time. Throws CommError.
class BeatLink {
 public:
  virtual ~BeatLink() = default;
  // False if what was sent to that rank before is still under way: try again later.
  virtual bool send(int to, const Beat& beat) = 0;
  // The sender of the beat received, if there was one.
  virtual std::optional<int> receive(Beat& beat) = 0;
};

class Watchdog {
 public:
  // Starts the thread. Members by rank, this one included. The link outlives the watchdog.
  Watchdog(std::vector<ProcessIdentity> members, int rank, double timeout_s, BeatLink& link);
  // Ends the thread.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // As in World. A verdict shows only when the others have heard it, or after a few seconds: whoever learns of it may
  // end the process, and whatever started it may then end all others.
  void note_step(std::int64_t step);
  void note_operation(std::string_view operation, std::string_view object);
  void check() const;
  void fail(const std::string& error);

  // To be held while the transport under the link is used by anyone else. Once there is a verdict nobody enters any more,
  // the watchdog itself included: what was under way stays as it is, and its buffers can be freed although nothing
  // could end it. Throws as check().
  using Entry = std::shared_lock<std::shared_mutex>;
  Entry enter() const;

  // Says that this rank is done and waits until all are: true. False after a verdict, and the transport must not be
  // touched any more.
  bool leave();

 private:
  void run();
  void turn();
  void send_beats(double now);
  void hear_verdict(double now);
  void close(std::string_view verdict);

  const int rank_;
  const double interval_s_;
  BeatLink& link_;
  ProcessWatch watch_;

  // The thread's own.
  Liveness liveness_;
  std::vector<char> owed_;  // by rank: whether it is to get a beat
  double next_beat_ = 0;
  int sent_news_ = 0;
  double heard_verdict_ = 0;
  bool closed_ = false;

  mutable std::shared_mutex transport_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t step_ = -1;
  std::string_view operation_, object_;
  std::optional<std::string> own_error_;
  bool leaving_ = false, stopping_ = false, all_gone_ = false;
  std::string verdict_;
  // Keeps the mutex out of the polling of healthy waits; set while nobody is in the transport.
  std::atomic<bool> has_verdict_{false};

  std::thread thread_;
};

}  // namespace spillway::comm
