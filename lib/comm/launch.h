// How this process was started, read from the environment. Pure: no MPI here.
#pragma once

#include <functional>
#include <string>

namespace spillway::comm {

enum class Launcher {
  none,       // on its own
  mpi,        // by mpirun, srun or alike: ranks that can join through MPI
  file,       // ranks of one machine that meet at a file: they were given one, or torchrun started them
  torchrun,   // torchrun's on several machines, where its ranks meet by other means
  bare_srun,  // srun without an MPI plugin: tasks that do not know each other
};

struct Launch {
  Launcher launcher = Launcher::none;
  int rank = 0;
  int size = 1;        // 0: more than this process, as many as MPI says
  int local_rank = 0;  // among the ranks of this machine
  int local_size = 0;  // 0: not told
  std::string job;     // the same for all ranks of a job and no other's
  std::string folder;  // of the job on this machine, which its launcher removes; empty: not told
  std::string rendezvous;  // the file to meet at; empty: one named after the job
};

// The value of a variable, or null; std::getenv, or a test's table.
using Environment = std::function<const char*(const char*)>;

// Throws CommError if a variable that counts ranks is no number.
Launch detect_launch(const Environment& environment);

}  // namespace spillway::comm
