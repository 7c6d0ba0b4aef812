#include <fmt/format.h>

#include "comm/mpi_world.h"
#include "spillway/error.h"

namespace spillway::comm {

bool has_mpi() { return false; }

std::unique_ptr<World> make_mpi_world(const WorldOptions&, const Launch& launch, std::int64_t) {
  throw CommError(fmt::format(
      "[comm] joining as rank {} of {}: this build of Spillway has no MPI; install libopenmpi-dev and build again with -Dmpi=enabled, "
      "or start one process without mpirun",
      launch.rank, launch.size));
}

}  // namespace spillway::comm
