// Dependencies from addresses: a task waits for whoever last wrote what it touches, and for everyone
// who read what it overwrites. One mechanism serves data flow and reuse of memory alike, so that
// correctness never rests on timing.
#pragma once

#include "spillway/plan.h"

namespace spillway {

// Sets Task::dependencies of a program whose buffers have offsets. Edges that follow from others or from
// the order of a lane are left out. Read-after-write, write-after-read and write-after-write, within a
// run and from the run before.
void derive_dependencies(const Plan& plan, Program& program);

}  // namespace spillway
