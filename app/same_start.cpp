#include "app/same_start.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "spillway/error.h"

namespace spillway::app {

namespace {

std::string given(const std::string& value) { return value.empty() ? "(not given)" : value; }

// One thing a line. Where the files are that only rank 0 writes is its own affair, but --out decides whether there are saves.
std::string start_of(const TrainOptions& options, const Config& config) {
  return fmt::format(
      "--model {}\n--data {}\n--steps {}\n--sequence-length {}\n--eval-data {}\n--eval-every {}\n--eval-batches {}\n--out {}\n--seed {}\n"
      "--save-every {}\n--keep {}\n--resume {}\n--on-save-error {}\n{}",
      options.run.model, fmt::join(options.run.data, " "), options.run.steps, options.run.sequence_length, given(fmt::format("{}", fmt::join(options.eval_data, " "))),
      options.eval_every, options.eval_batches, given(options.out), options.seed, options.save_every, options.keep, given(options.resume), options.on_save_error,
      config.effective_json);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    line.erase(0, line.find_first_not_of(' '));
    if (line.ends_with(',')) line.pop_back();
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

void require_same_start(Job& job, const TrainOptions& options, const Config& config) {
  const std::vector<std::string> all = job.exchange(start_of(options, config));
  job.agree([&] {
    const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& text) { return text != all[0]; });
    if (other == all.end()) return;
    const std::vector<std::string> here = lines_of(all[0]), there = lines_of(*other);
    const auto differing = static_cast<std::size_t>(std::ranges::mismatch(here, there).in1 - here.begin());
    const auto line = [&](const std::vector<std::string>& lines) { return differing < lines.size() ? lines[differing] : std::string("nothing"); };
    throw ConfigError(fmt::format("the ranks were started differently: rank 0 has {}, rank {} has {}; give all ranks the same arguments and the same "
                                  "configuration",
                                  line(here), other - all.begin(), line(there)));
  });
}

}  // namespace spillway::app
