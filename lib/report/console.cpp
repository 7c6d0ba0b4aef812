#include "report/console.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "base/text.h"

namespace spillway {

namespace {

int digits(std::int64_t value) { return static_cast<int>(std::to_string(value).size()); }

std::string latency_text(const IoLatency& latency) {
  if (latency.count == 0) return "none";
  return fmt::format("{} ({} at the 99th percentile)", human_duration(latency.p50_s * 1e3), human_duration(latency.p99_s * 1e3));
}

// "/mnt/a: 1400 MB/s, reads 0.9 ms (2.1 ms at the 99th percentile), writes ...; ext4, io_uring, depth 16".
std::string path_text(const SwapPathHealth& path) {
  std::string text = fmt::format("{}: {:.0f} MB/s, reads {}, writes {}; {}, {}, depth {}", path.folder, path.bytes_per_s() * 1e-6, latency_text(path.read_latency),
                                 latency_text(path.write_latency), path.file_system, path.engine, path.depth);
  if (path.buffered) text += ", through the page cache";
  if (path.checksum_failures > 0) text += fmt::format("; {} CHECKSUM FAILURES", path.checksum_failures);
  return text;
}

}  // namespace

std::string with_thousands(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::size_t first_digit = value < 0 ? 1 : 0;
  for (std::size_t i = text.size(); i > first_digit + 3;) text.insert(i -= 3, 1, ',');
  return text;
}

std::string human_duration(double ms) {
  if (!std::isfinite(ms)) return "unknown";
  if (ms < 9.95) return fmt::format("{:.1f} ms", ms);
  if (ms < 999.5) return fmt::format("{:.0f} ms", ms);
  if (ms < 59'950.0) return fmt::format("{:.1f} s", ms / 1e3);
  const std::int64_t seconds = std::llround(ms / 1e3);
  if (seconds < 3600) return fmt::format("{} min {:02} s", seconds / 60, seconds % 60);
  return fmt::format("{} h {:02} min", seconds / 3600, seconds % 3600 / 60);
}

std::string progress_line(const StepRecord& r, std::int64_t total_steps, std::span<const LaneShare> lanes) {
  std::string line;
  const auto to = std::back_inserter(line);
  fmt::format_to(to, "step {:>{}}/{} | loss {:.4f} | lr {:.2e} | norm {:.3g} | {} tok/s | {} (predicted {})",
                 r.step, digits(total_steps), total_steps, r.loss, r.learning_rate, r.gradient_norm,
                 with_thousands(std::llround(r.tokens_per_s)), human_duration(r.step_ms),
                 human_duration(r.predicted_step_ms));
  std::string_view separator = " | ";
  for (const LaneShare& lane : lanes) {
    if (lane.share == 0.0) continue;
    fmt::format_to(to, "{}{} {:.0f}%", separator, lane.lane, 100.0 * lane.share);
    separator = " ";
  }
  if (r.skipped) fmt::format_to(to, " | skipped: gradient not finite, loss scale {:g}", r.loss_scale);
  return line;
}

std::string closing_text(const Summary& s, std::span<const OutputFile> files) {
  std::string text;
  const auto to = std::back_inserter(text);
  fmt::format_to(to, "loss         {:.4f} -> {:.4f} in {} steps", s.loss_first, s.loss_last,
                 with_thousands(s.steps));
  if (s.skipped_steps > 0) fmt::format_to(to, " ({} skipped)", s.skipped_steps);
  if (s.eval_loss) fmt::format_to(to, ", evaluation {:.4f}", *s.eval_loss);
  fmt::format_to(to, "\nspeed        {} tok/s, {} a step (predicted {}), bound by {}\n",
                 with_thousands(std::llround(s.tokens_per_s)), human_duration(s.step_ms_median),
                 human_duration(s.predicted_step_ms), s.binding_lane);
  fmt::format_to(to, "state        {} for {} parameters\n", human_bytes(s.state_bytes), human_count(s.params));
  const auto tier = [&](std::string_view name, const TierPeak& peak) {
    fmt::format_to(to, "{:<12} peak {}{}\n", name, human_bytes(peak.used),
                   peak.budget ? fmt::format(" of {}", human_bytes(*peak.budget)) : "");
  };
  tier("device", s.device);
  if (s.device_utilization && s.device_used_peak) {
    fmt::format_to(to, "             in use {:.0f}% of the time by the driver's account, with {} of its memory\n", 100.0 * *s.device_utilization,
                   human_bytes(*s.device_used_peak));
  }
  tier("host", s.host);
  tier("nvme", s.nvme);
  for (const SwapPathHealth& path : s.nvme_paths) fmt::format_to(to, "             {}\n", path_text(path));
  if (!s.nvme_paths.empty()) {
    fmt::format_to(to, "             a step waited {} for it (predicted {})\n", human_duration(s.nvme_wait_ms_per_step), human_duration(s.predicted_nvme_wait_ms));
  }
  fmt::format_to(to, "state hash   {}\n", s.state_hash);
  for (const OutputFile& file : files) fmt::format_to(to, "{:<12} {}\n", file.what, file.path);
  return text;
}

}  // namespace spillway
