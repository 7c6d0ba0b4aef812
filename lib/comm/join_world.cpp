#include <fmt/format.h>

#include <cstdlib>

#include "comm/launch.h"
#include "comm/mpi_world.h"
#include "spillway/communicator.h"
#include "spillway/error.h"

namespace spillway {

std::unique_ptr<World> join_world(const WorldOptions& options) {
  const comm::Launch launch = comm::detect_launch([](const char* name) { return std::getenv(name); });
  switch (launch.launcher) {
    case comm::Launcher::none: return make_self_world();
    case comm::Launcher::mpi: return comm::make_mpi_world(options, launch);
    case comm::Launcher::torchrun:
      throw CommError(fmt::format(
          "[comm] joining as rank {0} of {1} of torchrun (RANK, WORLD_SIZE and MASTER_ADDR are set): the ranks of Spillway meet "
          "through MPI; start them with: mpirun -n {1} spillway train ...",
          launch.rank, launch.size));
    case comm::Launcher::bare_srun:
      throw CommError(fmt::format(
          "[comm] joining as task {0} of {1} of srun: it was started without PMIx, so the tasks cannot find each other; start them "
          "with: srun --mpi=pmix -n {1} spillway train ... (or, inside the allocation, mpirun -n {1} spillway train ...)",
          launch.rank, launch.size));
  }
  return make_self_world();
}

}  // namespace spillway
