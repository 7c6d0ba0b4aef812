// What the operating system says about the machine.
#pragma once

#include <string>

#include "report/machine_report.h"

namespace spillway::app {

// Cores, NUMA nodes, memory, limits; nothing that has to be measured.
HostFacts host_facts();

// File system, free space and NUMA node of a folder; `error` if it is none, or cannot be written to.
DiskFacts disk_facts(const std::string& path);

}  // namespace spillway::app
