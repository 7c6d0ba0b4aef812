// What a measured step waited for.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "runtime/executor.h"
#include "spillway/plan.h"

namespace spillway {

// Milliseconds that the step's critical path ran on each lane. The path is walked back from the task that ended last, each
// time to the predecessor (a dependency, or the task before on the lane) that ended last, as simulate() does on paper, until
// `begin_ns`: the end of the step before. What lies between the end of a predecessor and the start of its successor (waking
// up, or something outside the plan) is on no lane. `times` are by index into program.tasks, of one run.
std::array<double, kLanes> critical_path_ms(const Program& program, std::span<const TaskTime> times, std::int64_t begin_ns);

// Of a critical path, in whatever unit, what the step waited for NVMe.
double nvme_wait(const std::array<double, kLanes>& critical);

}  // namespace spillway
