// A timeline in Chrome's trace event format (JSON object form), which Perfetto and chrome://tracing load: the
// measured run and, beside it, the predicted one, each a process with one row per lane.
// Format: "Trace Event Format", Google, sections "JSON Object Format", "Complete Events", "Metadata Events".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "report/file_output.h"

namespace spillway {

enum class Timeline : std::uint8_t { measured, predicted };

struct TraceEvent {
  std::string_view name = {};  // "forward", "update tile"
  int lane = 0;                // index into the writer's lanes
  std::int64_t start_ns = 0;   // since an origin shared by all events of the file
  std::int64_t duration_ns = 0;
  std::int64_t step = 0;
  std::string_view layer = {};  // empty: none
  std::int64_t tile = -1;       // negative: none
  std::int64_t bytes = -1;      // moved; negative: none
};

// Streams to disk through a buffer of constant size; the file appears when finish() is called. Not thread-safe.
class TraceWriter {
 public:
  // Throws IoError, as the other members do.
  TraceWriter(const std::string& path, std::span<const std::string> lanes);

  // In any order. Events of one lane that overlap in time (transfers in flight together) are put on further
  // rows of it, because the format lets a row hold only nested events.
  void add(Timeline timeline, const TraceEvent& event);

  void finish();  // once, at the end

 private:
  static constexpr int kTimelines = 2;
  static constexpr int kRowsPerLane = 16;  // events beyond share the last row

  std::vector<std::int64_t>& ends_of(Timeline timeline, int lane);
  void begin_event();
  void name_process(Timeline timeline);
  void open_row(Timeline timeline, int lane, int row);
  int row_for(Timeline timeline, const TraceEvent& event);
  void flush();

  WholeFile file_;
  std::vector<std::string> lanes_;
  std::vector<std::vector<std::int64_t>> row_ends_;  // of each row, per timeline and lane
  std::string buffer_;
  bool first_ = true;
};

}  // namespace spillway
