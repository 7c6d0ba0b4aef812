#include "app/interrupt.h"

#include <csignal>

namespace spillway::app {

namespace {

volatile std::sig_atomic_t received = 0;

extern "C" void on_signal(int signal) {
  received = signal;
  std::signal(signal, SIG_DFL);
}

}  // namespace

void watch_for_interrupt() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int interrupted() { return received; }

}  // namespace spillway::app
