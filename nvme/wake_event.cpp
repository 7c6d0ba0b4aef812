#include "wake_event.h"

#include <cerrno>

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "errno_text.h"
#include "spillway/error.h"

namespace spillway {

WakeEvent::WakeEvent() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) throw IoError(fmt::format("[nvme] make an eventfd: {}; raise the limit on open files (ulimit -n)", errno_text(errno)));
}

WakeEvent::~WakeEvent() { close(fd_); }

void WakeEvent::signal() {
  const std::uint64_t one = 1;
  // Fails only when it has been signalled 2^64 - 2 times already, or is interrupted.
  while (write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void WakeEvent::clear() {
  std::uint64_t count = 0;
  while (read(fd_, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

}  // namespace spillway
