// Metrics as JSON lines: one object per line with a "record" of "start", "step" or "eval" and the fields of
// metrics.h under their own names. A number that is not finite is null. The file can be read at any time:
// every line in it is whole.
#pragma once

#include <string>

#include "report/file_output.h"
#include "report/metrics.h"

namespace spillway {

class MetricsWriter {
 public:
  explicit MetricsWriter(const std::string& path);  // throws IoError, as write() does

  void write(const StartRecord& record);
  void write(const StepRecord& record);
  void write(const EvalRecord& record);

 private:
  LineFile file_;
};

}  // namespace spillway
