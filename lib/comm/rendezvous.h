// How ranks of one machine find each other without MPI: at a file. Rank 0 makes it, the others wait for it; when all are
// there its name is removed, and what they share lives on until the last of them ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/launch.h"
#include "comm/process_identity.h"
#include "comm/shared_file.h"

namespace spillway::comm {

struct Meeting {
  SharedFile file;
  std::vector<ProcessIdentity> members;  // by rank
  std::int64_t begin;                    // of what is reserved for the caller: whole pages of zeros
  Mapping header;
  // Where the file ends: whoever needs more takes it from here.
  std::atomic<std::int64_t>* end;
};

// The file that ranks of this launch meet at: the one they were told, or one of the job's name in /dev/shm or else the
// temporary folder.
std::string rendezvous_path(const Launch& launch);

// Waits for the other ranks. `bytes` beyond the header are reserved for all; all ranks give the same. A file left by a run that
// is no more is replaced. Throws CommError: others do not come within timeout_s or die before all have come, another run
// meets here, or this is somebody's file.
Meeting meet(const Launch& launch, const std::string& path, std::int64_t bytes, double timeout_s);

}  // namespace spillway::comm
