// Why the kernel refused a ring, in words a user can act on.
#pragma once

#include <string>

namespace spillway {

// `error`: errno of io_uring_setup(); `disabled`: the value of the sysctl kernel.io_uring_disabled, or -1
// if this kernel has none.
std::string io_uring_setup_error(int error, int disabled);

// The sysctl's value now.
int io_uring_disabled_sysctl();

// What to do about memory that could not be locked, with the limit there is now.
std::string locked_memory_advice();

}  // namespace spillway
