// The cores of this process as the operating system has them.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace spillway {

// The calling thread's affinity mask, ascending; empty when it cannot be read.
std::vector<int> allowed_cores();

// NUMA node by core number, from the node<N>/cpulist files of `folder`; empty where there are none (a kernel without
// NUMA, a container that hides it): one node.
std::vector<int> node_of_cores(const std::string& folder = "/sys/devices/system/node");

struct Binding {
  int threads;       // cores the calling thread may use afterwards; at least 1
  std::string note;  // empty: done as asked. Else one sentence about what was not, and what that means
};

// Restricts the calling thread, and threads it starts from now on, to `cores`; so call it before any are started.
// Empty: changes nothing.
Binding bind_to_cores(std::span<const int> cores);

}  // namespace spillway
