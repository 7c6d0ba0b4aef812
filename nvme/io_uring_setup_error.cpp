#include "io_uring_setup_error.h"

#include <cerrno>
#include <fstream>

#include <fmt/format.h>
#include <sys/resource.h>

#include "base/text.h"
#include "errno_text.h"

namespace spillway {

namespace {

std::string limit_text(int resource, bool in_bytes) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  const auto value = static_cast<std::int64_t>(limit.rlim_cur);
  return in_bytes ? human_bytes(value) : std::to_string(value);
}

std::string advice(int error, int disabled) {
  switch (error) {
    case EPERM:
    case EACCES:
      if (disabled > 0) {
        return fmt::format("the sysctl kernel.io_uring_disabled is {} here, {}0 allows io_uring to everyone", disabled,
                           disabled == 1 ? "which allows it to members of the group kernel.io_uring_group; " : "");
      }
      return "a seccomp filter or security module forbids it, as containers do by default; allow the "
             "io_uring_setup, io_uring_enter and io_uring_register system calls";
    case ENOSYS:
      return "this kernel was built without io_uring, or a seccomp filter hides it";
    case ENOMEM:
      return locked_memory_advice();
    case EMFILE:
      return fmt::format("the limit on open files (ulimit -n, RLIMIT_NOFILE, now {}) is reached; raise it",
                         limit_text(RLIMIT_NOFILE, false));
    case EINVAL:
      return "this kernel's io_uring is too old (Linux 5.6 or later is needed), or a seccomp filter forbids "
             "io_uring_register";
    default:
      return "the kernel refused a ring";
  }
}

}  // namespace

std::string io_uring_setup_error(int error, int disabled) {
  return fmt::format("[nvme] make I/O engine io_uring: {}; {}, or use another I/O engine", errno_text(error),
                     advice(error, disabled));
}

std::string locked_memory_advice() {
  return fmt::format("the limit on locked memory (ulimit -l, RLIMIT_MEMLOCK, now {}) is too small or the machine is out of memory; raise the limit",
                     limit_text(RLIMIT_MEMLOCK, true));
}

int io_uring_disabled_sysctl() {
  std::ifstream file("/proc/sys/kernel/io_uring_disabled");
  int value = -1;
  return file >> value ? value : -1;
}

}  // namespace spillway
