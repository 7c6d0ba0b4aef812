// Which process on which machine: what ranks tell each other when they meet.
#pragma once

#include <cstdint>

namespace spillway::comm {

// Sent as it is.
struct ProcessIdentity {
  char host[72];     // for people; two machines may carry the same name
  char machine[40];  // the kernel's boot id
  std::uint64_t pid_namespace;
  std::int32_t pid;
  std::int32_t unused;

  bool same_machine(const ProcessIdentity& other) const;
  // Whether the pids of both mean the same to either.
  bool shares_pids(const ProcessIdentity& other) const;
};

ProcessIdentity this_process();

}  // namespace spillway::comm
