#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "comm/file_world.h"
#include "comm/launch.h"
#include "comm/mpi_world.h"
#include "spillway/communicator.h"
#include "spillway/error.h"

namespace spillway {

namespace {

const char* getenv_of_process(const char* name) { return std::getenv(name); }

}  // namespace

std::unique_ptr<World> join_world(const WorldOptions& options) {
  const comm::Launch launch = comm::detect_launch(getenv_of_process);
  switch (launch.launcher) {
    case comm::Launcher::none: return make_self_world();
    case comm::Launcher::mpi: return comm::make_mpi_world(options, launch);
    case comm::Launcher::file: return comm::make_file_world(options, launch);
    case comm::Launcher::torchrun:
      throw CommError(fmt::format(
          "[comm] joining as rank {0} of {1} of torchrun (RANK, WORLD_SIZE and MASTER_ADDR are set): its ranks meet without MPI on one "
          "machine only (TORCHELASTIC_RUN_ID set, LOCAL_WORLD_SIZE equal to WORLD_SIZE); start them with: mpirun -n {1} spillway train ...",
          launch.rank, launch.size));
    case comm::Launcher::bare_srun:
      throw CommError(fmt::format(
          "[comm] joining as task {0} of {1} of srun: it was started without PMIx, so the tasks cannot find each other; start them "
          "with: srun --mpi=pmix -n {1} spillway train ... (or, inside the allocation, mpirun -n {1} spillway train ...)",
          launch.rank, launch.size));
  }
  return make_self_world();
}

int launched_ranks() { return std::max(1, comm::detect_launch(getenv_of_process).size); }

}  // namespace spillway
