#include "app/interrupt.h"

#include <csignal>
#include <initializer_list>

namespace spillway::app {

namespace {

volatile std::sig_atomic_t interrupted = 0, terminated = 0, unread = 0, save_requested = 0;

extern "C" void on_signal(int signal) {
  if (signal == SIGUSR1) {
    save_requested = 1;
    return;
  }
  if (signal == SIGPIPE) {
    unread = 1;
    return;
  }
  (signal == SIGINT ? interrupted : terminated) = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

void watch_for_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGUSR1}) sigaction(signal, &action, nullptr);
}

std::uint64_t received_signals() {
  return (interrupted ? kInterrupt : 0) | (terminated ? kTerminate : 0) | (unread ? kUnread : 0) | (save_requested ? kSaveRequest : 0);
}

void clear_save_request() { save_requested = 0; }

int ending_signal(std::uint64_t received) {
  if (received & kInterrupt) return SIGINT;
  if (received & kTerminate) return SIGTERM;
  return received & kUnread ? SIGPIPE : 0;
}

}  // namespace spillway::app
