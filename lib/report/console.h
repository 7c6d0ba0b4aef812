// What people read on the terminal. Pure functions: the caller prints.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "report/metrics.h"
#include "report/summary.h"

namespace spillway {

// "12,345,678".
std::string with_thousands(std::int64_t value);

// "950 ms", "12.3 s", "4 min 05 s", "2 h 03 min".
std::string human_duration(double ms);

// How much of the time since the last line a lane was busy, 0 to 1.
struct LaneShare {
  std::string lane = {};
  double share = 0.0;
};

// One step on one line, without a newline:
//   step  120/1000 | loss 2.3411 | lr 3.00e-04 | norm 1.24 | 1,234 tok/s | 412 ms (predicted 398 ms) | cpu 22%
// Lanes that were never busy are left out. A skipped step says so, with the loss scale.
std::string progress_line(const StepRecord& record, std::int64_t total_steps, std::span<const LaneShare> lanes);

// A file to look at after a run, and what it shows.
struct OutputFile {
  std::string what = {};  // "loss curve"
  std::string path = {};
};

// The last lines of a run: loss first and last, state against budgets and their peaks, where the files are.
// Ends in a newline.
std::string closing_text(const Summary& summary, std::span<const OutputFile> files);

}  // namespace spillway
