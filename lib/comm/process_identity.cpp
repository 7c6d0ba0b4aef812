#include "comm/process_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

namespace spillway::comm {

bool ProcessIdentity::same_machine(const ProcessIdentity& other) const { return std::strcmp(machine, other.machine) == 0; }

bool ProcessIdentity::shares_pids(const ProcessIdentity& other) const {
  return same_machine(other) && pid_namespace != 0 && pid_namespace == other.pid_namespace;
}

ProcessIdentity this_process() {
  ProcessIdentity self{};
  if (gethostname(self.host, sizeof(self.host) - 1) != 0) std::strcpy(self.host, "unknown");
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  if (boot_id.empty()) boot_id = self.host;
  boot_id.copy(self.machine, sizeof(self.machine) - 1);
  struct stat status{};
  if (stat("/proc/self/ns/pid", &status) == 0) self.pid_namespace = status.st_ino;
  self.pid = getpid();
  return self;
}

}  // namespace spillway::comm
