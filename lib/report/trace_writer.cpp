#include "report/trace_writer.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <limits>

#include <fmt/format.h>

namespace spillway {

namespace {

constexpr std::size_t kBufferBytes = 256 * 1024;
constexpr std::size_t kLargestEvent = 4 * 1024;  // room kept in the buffer, so that it does not grow

constexpr int process_id(Timeline timeline) { return static_cast<int>(timeline) + 1; }

constexpr std::string_view name_of(Timeline timeline) {
  return timeline == Timeline::measured ? "measured" : "predicted";
}

// Names are ASCII by construction; anything else becomes '?', so that the file is valid JSON whatever comes.
void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c >= ' ' && c <= '~' ? c : '?';
  }
  out += '"';
}

double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

}  // namespace

TraceWriter::TraceWriter(const std::string& path, std::span<const std::string> lanes)
    : file_(path), lanes_(lanes.begin(), lanes.end()), row_ends_(kTimelines * lanes.size()) {
  for (auto& ends : row_ends_) ends.reserve(kRowsPerLane);
  buffer_.reserve(kBufferBytes);
  buffer_ += "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (const Timeline timeline : {Timeline::measured, Timeline::predicted}) {
    name_process(timeline);
    for (int lane = 0; lane < static_cast<int>(lanes_.size()); ++lane) open_row(timeline, lane, 0);
  }
}

std::vector<std::int64_t>& TraceWriter::ends_of(Timeline timeline, int lane) {
  return row_ends_[static_cast<std::size_t>(timeline) * lanes_.size() + static_cast<std::size_t>(lane)];
}

void TraceWriter::begin_event() {
  if (!first_) buffer_ += ",\n";
  first_ = false;
}

void TraceWriter::name_process(Timeline timeline) {
  const int pid = process_id(timeline);
  begin_event();
  fmt::format_to(std::back_inserter(buffer_),
                 R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"{}"}}}})", pid,
                 name_of(timeline));
  begin_event();
  fmt::format_to(std::back_inserter(buffer_),
                 R"({{"ph":"M","pid":{},"name":"process_sort_index","args":{{"sort_index":{}}}}})", pid, pid);
}

void TraceWriter::open_row(Timeline timeline, int lane, int row) {
  const int pid = process_id(timeline), tid = lane * kRowsPerLane + row + 1;
  ends_of(timeline, lane).push_back(std::numeric_limits<std::int64_t>::min());
  const std::string& name = lanes_[static_cast<std::size_t>(lane)];
  begin_event();
  fmt::format_to(std::back_inserter(buffer_),
                 R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":)", pid, tid);
  append_quoted(buffer_, row == 0 ? name : fmt::format("{} ({})", name, row + 1));
  buffer_ += "}}";
  begin_event();
  fmt::format_to(std::back_inserter(buffer_),
                 R"({{"ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})", pid,
                 tid, tid);
}

int TraceWriter::row_for(Timeline timeline, const TraceEvent& event) {
  auto& ends = ends_of(timeline, event.lane);
  std::size_t row = 0;
  while (row < ends.size() && ends[row] > event.start_ns) ++row;
  if (row == kRowsPerLane) row = kRowsPerLane - 1;
  if (row == ends.size()) open_row(timeline, event.lane, static_cast<int>(row));
  ends[row] = std::max(ends[row], event.start_ns + event.duration_ns);
  return static_cast<int>(row);
}

void TraceWriter::add(Timeline timeline, const TraceEvent& event) {
  assert(event.lane >= 0 && event.lane < static_cast<int>(lanes_.size()) && event.duration_ns >= 0);
  const int row = row_for(timeline, event);
  begin_event();
  buffer_ += R"({"ph":"X","name":)";
  append_quoted(buffer_, event.name);
  fmt::format_to(std::back_inserter(buffer_),
                 R"(,"cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"step":{})",
                 name_of(timeline), process_id(timeline), event.lane * kRowsPerLane + row + 1,
                 microseconds(event.start_ns), microseconds(event.duration_ns), event.step);
  if (!event.layer.empty()) {
    buffer_ += R"(,"layer":)";
    append_quoted(buffer_, event.layer);
  }
  if (event.tile >= 0) fmt::format_to(std::back_inserter(buffer_), R"(,"tile":{})", event.tile);
  if (event.bytes >= 0) fmt::format_to(std::back_inserter(buffer_), R"(,"bytes":{})", event.bytes);
  buffer_ += "}}";
  if (buffer_.size() > kBufferBytes - kLargestEvent) flush();
}

void TraceWriter::flush() {
  file_.append(buffer_);
  buffer_.clear();
}

void TraceWriter::finish() {
  buffer_ += "\n]}\n";
  flush();
  file_.commit();
}

}  // namespace spillway
