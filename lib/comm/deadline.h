// Ends the process when something that cannot be interrupted takes too long: MPI_Init waits for ranks that never
// start, MPI_Finalize for ranks that are no more.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace spillway::comm {

class Deadline {
 public:
  // Unless destroyed before, after so long: prints explain() on standard error, lets the other ranks come to theirs,
  // cleans up and exits with status 7, as any CommError that ends the program.
  Deadline(double seconds, std::function<std::string()> explain, std::function<void()> clean_up = [] {});
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable met_changed_;
  bool met_ = false;
  std::thread thread_;
};

}  // namespace spillway::comm
