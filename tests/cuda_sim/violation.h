// What the simulation does not let a program do, though the hardware might.
#pragma once

namespace cuda_sim {

// Prints "cuda_sim: violation: ..." and aborts.
[[noreturn]] __attribute__((format(printf, 1, 2))) void violation(const char* format, ...);

}  // namespace cuda_sim
