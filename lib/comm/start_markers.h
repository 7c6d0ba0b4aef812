// Which ranks of this machine have started: one small file each in a folder of the job, there only while the ranks
// find each other. It is how a rank that waits for ever inside MPI_Init can say whom for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "comm/launch.h"

namespace spillway::comm {

class StartMarkers {
 public:
  // Marks this rank as started, in the job's folder or else under `temporary`. Does without where that cannot be done.
  StartMarkers(const Launch& launch, const std::filesystem::path& temporary);
  ~StartMarkers() { remove(); }
  StartMarkers(const StartMarkers&) = delete;
  StartMarkers& operator=(const StartMarkers&) = delete;

  // Removes the mark, and the folder with the last one.
  void remove();

  // Local ranks that have not started, in order. Empty too if it cannot be known.
  std::vector<int> missing_local_ranks() const;

  // "[comm] rank 1 of 4 (host x) waited 60 s for the other ranks to start: rank 2 has not".
  std::string explain(double waited_s, const std::string& host) const;

 private:
  std::filesystem::path mark_of(int local_rank) const;

  const Launch launch_;
  std::filesystem::path folder_;  // empty: none
};

}  // namespace spillway::comm
