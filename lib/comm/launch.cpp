#include "comm/launch.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <optional>

#include "spillway/error.h"

namespace spillway::comm {

namespace {

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  std::optional<int> number(const char* name) const {
    const char* text = environment_(name);
    if (text == nullptr) return std::nullopt;
    int value = 0;
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, value);
    if (error != std::errc() || stop != end || value < 0)
      throw CommError(fmt::format("[comm] reading how this process was started: {}={} is no number of ranks; unset it, or start with mpirun",
                                  name, text));
    return value;
  }

  std::string text(const char* name) const {
    const char* value = environment_(name);
    return value == nullptr ? "" : value;
  }

  bool has(const char* name) const { return environment_(name) != nullptr; }

 private:
  const Environment& environment_;
};

// PMIx gives a rank its job's name; what came before it, nothing.
std::string job_of(const Reader& read) {
  if (read.has("PMIX_NAMESPACE")) return read.text("PMIX_NAMESPACE");
  if (read.has("SLURM_JOB_ID")) return read.text("SLURM_JOB_ID") + "." + read.text("SLURM_STEP_ID");
  return "";
}

// SPILLWAY_RENDEZVOUS says where to meet; whoever starts the ranks says which is which, as torchrun does.
Launch meet_at_file(const Reader& read) {
  Launch launch;
  launch.rendezvous = read.text("SPILLWAY_RENDEZVOUS");
  const auto rank = read.number("RANK"), size = read.number("WORLD_SIZE");
  if (launch.rendezvous.empty() || !rank || !size || *rank >= *size)
    throw CommError(fmt::format("[comm] reading how this process was started: SPILLWAY_RENDEZVOUS={} with RANK={} and WORLD_SIZE={}; needed are a file "
                                "that does not exist yet, the same for all ranks, and a RANK below WORLD_SIZE, or none of them",
                                launch.rendezvous, read.text("RANK"), read.text("WORLD_SIZE")));
  if (*size == 1) return Launch{};
  launch.launcher = Launcher::file;
  launch.rank = launch.local_rank = *rank;
  launch.size = launch.local_size = *size;
  return launch;
}

Launch of_torchrun(const Reader& read) {
  Launch launch;
  launch.launcher = Launcher::torchrun;
  launch.size = *read.number("WORLD_SIZE");
  launch.rank = read.number("RANK").value_or(0);
  if (!read.has("TORCHELASTIC_RUN_ID") || read.number("LOCAL_WORLD_SIZE") != launch.size || launch.rank >= launch.size) return launch;
  launch.launcher = Launcher::file;
  launch.local_rank = launch.rank;
  launch.local_size = launch.size;
  // Without --rdzv-id all runs have the same one, but each its own port; a restart must not meet what it replaces.
  launch.job = fmt::format("{}-{}-{}", read.text("TORCHELASTIC_RUN_ID"), read.text("MASTER_PORT"), read.text("TORCHELASTIC_RESTART_COUNT"));
  return launch;
}

}  // namespace

Launch detect_launch(const Environment& environment) {
  const Reader read(environment);
  if (read.has("SPILLWAY_RENDEZVOUS")) return meet_at_file(read);
  Launch launch;
  launch.job = job_of(read);
  launch.folder = read.text("PMIX_SERVER_TMPDIR");
  if (const auto size = read.number("OMPI_COMM_WORLD_SIZE")) {  // Open MPI's mpirun
    launch.size = *size;
    launch.rank = read.number("OMPI_COMM_WORLD_RANK").value_or(0);
    launch.local_rank = read.number("OMPI_COMM_WORLD_LOCAL_RANK").value_or(0);
    launch.local_size = read.number("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(0);
  } else if (const auto pmix_rank = read.number("PMIX_RANK")) {  // srun --mpi=pmix, which leaves counting to Slurm's own variables
    launch.size = read.number("SLURM_STEP_NUM_TASKS").value_or(0);
    launch.rank = *pmix_rank;
    launch.local_rank = read.number("SLURM_LOCALID").value_or(0);
  } else if (const auto pmi_rank = read.number("PMI_RANK")) {  // PMI-1 and PMI-2
    launch.size = read.number("PMI_SIZE").value_or(0);
    launch.rank = *pmi_rank;
    launch.local_rank = read.number("SLURM_LOCALID").value_or(0);
  } else if (read.number("SLURM_STEP_NUM_TASKS").value_or(1) > 1) {
    // Inside an sbatch script only SLURM_NTASKS is set: that program runs once, whatever was allocated.
    launch.launcher = Launcher::bare_srun;
    launch.size = *read.number("SLURM_STEP_NUM_TASKS");
    launch.rank = read.number("SLURM_PROCID").value_or(0);
    return launch;
  } else if (read.has("RANK") && read.has("MASTER_ADDR") && read.number("WORLD_SIZE").value_or(1) > 1) {
    return of_torchrun(read);
  }
  // A world of one needs nobody, and starts faster without MPI.
  if (launch.size == 1) return Launch{};
  launch.launcher = Launcher::mpi;
  return launch;
}

}  // namespace spillway::comm
