#include "comm/process_watch.h"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "spillway/error.h"

namespace spillway::comm {

ProcessWatch::ProcessWatch() : descriptors_{{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), POLLIN, 0}}, ids_{-1} {
  if (descriptors_[0].fd < 0) throw CommError(std::string("[comm] making an eventfd for the watch over ranks: ") + std::strerror(errno));
}

ProcessWatch::~ProcessWatch() {
  for (const pollfd& descriptor : descriptors_) close(descriptor.fd);
}

void ProcessWatch::add(int id, int pid) {
  // glibc 2.36 declares pidfd_open() in a header that older ones lack.
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (descriptor >= 0) {
    descriptors_.push_back({descriptor, POLLIN, 0});
    ids_.push_back(id);
  } else if (errno == ESRCH) {
    ended_.push_back(id);
  }
  just_ended_.reserve(ended_.size() + ids_.size());
  ended_.reserve(ended_.size() + ids_.size());
}

std::span<const int> ProcessWatch::wait(int timeout_ms) {
  just_ended_.clear();
  just_ended_.swap(ended_);
  // Zero or less: the time is over, or EINTR.
  if (poll(descriptors_.data(), descriptors_.size(), just_ended_.empty() ? timeout_ms : 0) <= 0) return just_ended_;

  std::uint64_t count;
  // Empties it; that it was empty already is no error.
  [[maybe_unused]] const ssize_t taken = read(descriptors_[0].fd, &count, sizeof(count));
  for (std::size_t i = descriptors_.size(); i-- > 1;) {
    if (descriptors_[i].revents == 0) continue;
    just_ended_.push_back(ids_[i]);
    close(descriptors_[i].fd);
    descriptors_.erase(descriptors_.begin() + static_cast<std::ptrdiff_t>(i));
    ids_.erase(ids_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return just_ended_;
}

void ProcessWatch::wake() {
  const std::uint64_t one = 1;
  // Fails only when it is awake 2^64 times over.
  [[maybe_unused]] const ssize_t written = write(descriptors_[0].fd, &one, sizeof(one));
}

}  // namespace spillway::comm
