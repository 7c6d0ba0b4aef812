// What the module does not have yet.
#include "gpu/nccl_world.h"
#include "spillway/error.h"

namespace spillway::cuda {

std::unique_ptr<World> make_nccl_world(World&, Device&, const WorldOptions&) {
  throw CommError("[nccl] join the ranks: this build has no NCCL");
}

}  // namespace spillway::cuda
