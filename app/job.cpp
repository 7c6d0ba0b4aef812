#include "app/job.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "base/affinity.h"
#include "base/core_share.h"
#include "base/log.h"
#include "spillway/error.h"

namespace spillway::app {

namespace {

// Exit statuses of errors, in the order in which their types are tried.
template <class E>
bool is(const std::exception& error) {
  return dynamic_cast<const E*>(&error) != nullptr;
}

[[noreturn]] void throw_as(int status, const std::string& text) {
  switch (status) {
    case 2: throw ConfigError(text);
    case 3: throw DataError(text);
    case 4: throw MemoryError(text);
    case 5: throw IoError(text);
    case 6: throw DeviceError(text);
    case 7: throw CommError(text);
    default: throw Error(text);
  }
}

}  // namespace

int exit_status(const std::exception& error) {
  if (is<ConfigError>(error)) return 2;
  if (is<DataError>(error)) return 3;
  if (is<MemoryError>(error)) return 4;
  if (is<IoError>(error)) return 5;
  if (is<DeviceError>(error)) return 6;
  if (is<CommError>(error)) return 7;
  return 1;
}

Job::Job(const WorldOptions& options) : world_(join_world(options)), control_(world_->communicator()) {
  if (!leads()) log_for_rank(rank());
  divide_cores();
}

void Job::divide_cores() {
  if (size() == 1) return;
  const std::vector<int> mine = allowed_cores();
  std::vector<std::vector<int>> masks(static_cast<std::size_t>(local_size()));
  std::vector<std::string> lines = control_->exchange(fmt::format("{} {} {}", world_->host(), world_->local_rank(), core_list(mine)));
  for (const std::string& line : lines) {
    const auto first = line.find(' '), second = line.find(' ', first + 1);
    if (line.substr(0, first) != world_->host()) continue;
    masks[static_cast<std::size_t>(std::stoi(line.substr(first + 1, second - first - 1)))] = parse_core_list(std::string_view(line).substr(second + 1));
  }
  const CoreShare share = share_cores(masks, node_of_cores(), world_->local_rank());
  const Binding binding = bind_to_cores(share.cores);
  if (!binding.note.empty()) log_warning(binding.note);
  // One line for each machine.
  if (world_->local_rank() == 0) log_info(fmt::format("{}: {}", world_->host(), share.how));
}

void Job::agree(const std::function<void()>& act) {
  std::string mine;
  try {
    act();
  } catch (const CommError&) {
    throw;  // the others know
  } catch (const std::exception& error) {
    mine = fmt::format("{} {}", exit_status(error), error.what());
  }
  const std::vector<std::string> all = control_->exchange(mine);
  const auto failed = std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
  if (failed == all.end()) return;
  all_know_ = true;
  const auto failing = static_cast<int>(failed - all.begin());
  const int status = std::stoi(*failed);
  if (failing != rank()) throw Silent{status};
  const std::string text = failed->substr(failed->find(' ') + 1);
  throw_as(status, failing == 0 ? text : fmt::format("rank {} on {}: {}", failing, world_->host(), text));
}

bool Job::end_with(const std::exception& error) {
  if (all_know_) return false;
  world_->fail(error.what());
  if (!is<CommError>(error)) return false;
  // What another rank has ended the work with was printed when it was heard.
  try {
    world_->check();
  } catch (const CommError& heard) {
    return std::string_view(heard.what()) == error.what();
  }
  return false;
}

template <class T>
std::vector<T> Job::of_all(T mine) {
  std::vector<T> all(static_cast<std::size_t>(size()));
  control_->exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

double Job::sum(double mine) {
  double sum = 0.0;
  for (const double value : of_all(mine)) sum += value;
  return sum;
}

std::int64_t Job::sum(std::int64_t mine) {
  std::int64_t sum = 0;
  for (const std::int64_t value : of_all(mine)) sum += value;
  return sum;
}

std::int64_t Job::smallest(std::int64_t mine) {
  const std::vector<std::int64_t> all = of_all(mine);
  return *std::min_element(all.begin(), all.end());
}

std::string Job::of_leader(const std::string& mine) { return control_->exchange(mine)[0]; }

}  // namespace spillway::app
