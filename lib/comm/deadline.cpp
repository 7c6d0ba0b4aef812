#include "comm/deadline.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace spillway::comm {

namespace {

constexpr int kCommErrorStatus = 7;
// The first rank that exits makes mpirun end the others, which reach their deadlines at about the same time.
constexpr std::chrono::milliseconds kForOthersToSpeak(500);

}  // namespace

Deadline::Deadline(double seconds, std::function<std::string()> explain, std::function<void()> clean_up)
    : thread_([this, seconds, explain = std::move(explain), clean_up = std::move(clean_up)] {
        std::unique_lock lock(mutex_);
        if (met_changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return met_; })) return;
        const std::string text = explain() + "\n";
        std::fwrite(text.data(), 1, text.size(), stderr);
        std::this_thread::sleep_for(kForOthersToSpeak);
        clean_up();
        // Not exit(): it would run destructors under the feet of the thread that is stuck.
        _exit(kCommErrorStatus);
      }) {}

Deadline::~Deadline() {
  {
    const std::lock_guard lock(mutex_);
    met_ = true;
  }
  met_changed_.notify_all();
  thread_.join();
}

}  // namespace spillway::comm
