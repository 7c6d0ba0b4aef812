// Metrics as JSON lines: one object per line with a "record" of "start", "step", "eval" or "save" and the fields of
// metrics.h under their own names. A number that is not finite is null. The file can be read at any time:
// every line in it is whole.
#pragma once

#include <cstdint>
#include <string>

#include "report/file_output.h"
#include "report/metrics.h"

namespace spillway {

class MetricsWriter {
 public:
  // Throws IoError, as write() does. A run that goes on after `steps_before` keeps what the file has of these steps, and
  // drops what the run before it did after its last checkpoint.
  explicit MetricsWriter(const std::string& path, std::int64_t steps_before = 0);

  void write(const StartRecord& record);
  void write(const StepRecord& record);
  void write(const EvalRecord& record);
  void write(const SaveRecord& record);

 private:
  LineFile file_;
};

}  // namespace spillway
