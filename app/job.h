// The processes of a run, as the program sees them: one by one on their own, or together under a launcher.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "spillway/communicator.h"

namespace spillway::app {

// What went wrong is said already, here or by another rank: this one ends quietly, with the status of it.
struct Silent {
  int status;
};

// The exit status by the kind of error.
int exit_status(const std::exception& error);

class Job {
 public:
  // Joins the other processes of the launch, if there are any, and divides the machine's cores among those on it: call it
  // before any thread is started. Throws CommError.
  explicit Job(const WorldOptions& options);

  World& world() { return *world_; }
  int rank() const { return world_->rank(); }
  int size() const { return world_->size(); }
  int local_rank() const { return world_->local_rank(); }
  int local_size() const { return world_->local_size(); }
  bool leads() const { return rank() == 0; }  // prints, and writes the run's files

  // Calls act(), on all ranks, and goes on only if none has failed: else the first that has throws its error, on all
  // others Silent is thrown. For what every rank does alike and each may refuse.
  void agree(const std::function<void()>& act);

  // This rank ends because of `error`: tells the others, unless all have it from agree(). True if the user has been told,
  // by the watch over the other ranks.
  bool end_with(const std::exception& error);

  // Over all ranks, in their order; the same on each.
  double sum(double mine);
  std::int64_t sum(std::int64_t mine);
  std::int64_t smallest(std::int64_t mine);
  // What rank 0 has.
  std::string of_leader(const std::string& mine);
  // For what runs between the ranks before there is an engine.
  Communicator& control() { return *control_; }
  std::vector<std::string> exchange(const std::string& mine) { return control_->exchange(mine); }

 private:
  void divide_cores();
  template <class T>
  std::vector<T> of_all(T mine);

  bool all_know_ = false;
  std::unique_ptr<World> world_;
  std::unique_ptr<Communicator> control_;
};

}  // namespace spillway::app
