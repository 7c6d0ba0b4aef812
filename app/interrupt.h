// Signals a run obeys: SIGINT and SIGTERM end it after the step in progress, a second one ends it at once; SIGPIPE ends it
// after the step, too: nobody reads what it prints, as when its launcher is told to end; SIGUSR1 asks for a checkpoint.
#pragma once

#include <cstdint>

namespace spillway::app {

// One bit each, so that what several ranks have received can be put together.
inline constexpr std::uint64_t kInterrupt = 1, kTerminate = 2, kSaveRequest = 4, kUnread = 16;

void watch_for_signals();

// What this process has received so far.
std::uint64_t received_signals();

// The request has been granted: it is no longer among them.
void clear_save_request();

// The number of the signal that ends a run with these bits; 0: none does.
int ending_signal(std::uint64_t received);

}  // namespace spillway::app
