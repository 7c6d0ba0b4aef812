// Copies from device memory to shared memory that run while the thread goes on.
#pragma once

#ifndef __CUDACC__
#error "this is nvcc's half of intrinsics/copy_async.h; the simulation's folder has to come first in the include path"
#endif

namespace spillway::gpu {

// A thread's copies under way, in groups. What has arrived is the copying thread's to read after wait(), the block's
// after a barrier behind that.
class AsyncCopies {
 public:
  // Starts a copy of 16 bytes, or, if `wanted` is false, fills them with zeros. Both addresses are multiples of 16;
  // `global` is not read if not wanted.
  __device__ void copy_16(void* shared, const void* global, bool wanted) {
    const int read = wanted ? 16 : 0;  // what is not read is filled with zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
                 "l"(__cvta_generic_to_global(global)), "r"(read)
                 : "memory");
  }

  // What was started since the last call is a group, which may be empty.
  __device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

  // Until no more than the `kPending` youngest groups are under way.
  template <int kPending>
  __device__ void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  }
};

}  // namespace spillway::gpu
