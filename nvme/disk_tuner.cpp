#include "spillway/disk_tuner.h"

#include <algorithm>
#include <chrono>
#include <tuple>

namespace spillway {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kKiB = 1 << 10, kMiB = 1 << 20;
constexpr std::int64_t kMostInFlight = 64 * kMiB;
constexpr double kAsGoodAs = 0.97;  // of the best rate

struct Measured {
  DiskSetting setting;
  std::vector<DiskRates> rounds;
};

double median(const std::vector<DiskRates>& rounds, double DiskRates::*rate) {
  std::vector<double> values;
  for (const DiskRates& round : rounds) values.push_back(round.*rate);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

DiskSample sample_of(const Measured& measured) {
  DiskSample sample{measured.setting, measured.rounds.front(), static_cast<int>(measured.rounds.size())};
  for (double DiskRates::*rate : {&DiskRates::read_bytes, &DiskRates::write_bytes, &DiskRates::mixed_bytes, &DiskRates::latency_s, &DiskRates::block_latency_s}) {
    sample.rates.*rate = median(measured.rounds, rate);
  }
  return sample;
}

DiskProbeOptions probe_of(const DiskSetting& setting, double seconds_per_rate) {
  DiskProbeOptions probe;
  probe.engine.name = setting.engine;
  probe.engine.depth = setting.depth;
  probe.block_bytes = setting.block_bytes;
  probe.file_bytes = 2 * kMostInFlight;
  probe.seconds_per_rate = seconds_per_rate;
  return probe;
}

double mixed_rate(std::span<const std::vector<DiskSample>> by_folder, std::size_t setting) {
  double sum = 0.0;
  for (const std::vector<DiskSample>& folder : by_folder) sum += folder[setting].rates.mixed_bytes;
  return sum;
}

}  // namespace

std::vector<DiskSetting> disk_settings(std::span<const std::string> engines, bool quick) {
  std::vector<DiskSetting> settings;
  const std::int64_t block_step = quick ? 4 : 2;
  const int depth_step = quick ? 8 : 2;
  for (const std::string& engine : engines) {
    for (std::int64_t block = (quick ? 256 : 128) * kKiB; block <= 8 * kMiB; block *= block_step) {
      for (int depth = quick ? 2 : 1; depth <= 128 && block * depth <= kMostInFlight; depth *= depth_step) settings.push_back({engine, block, depth});
    }
  }
  return settings;
}

std::vector<std::vector<DiskSample>> sweep_disks(std::span<const std::string> folders, const DiskSweepOptions& options) {
  const Clock::time_point start = Clock::now();
  std::vector<std::vector<Measured>> measured(folders.size());
  for (std::vector<Measured>& folder : measured) {
    for (const DiskSetting& setting : options.settings) folder.push_back({setting, {}});
  }
  const int total = options.rounds * static_cast<int>(folders.size() * options.settings.size());
  const auto in_time = [&] { return std::chrono::duration<double>(Clock::now() - start).count() < options.limit_s; };
  int done = 0;
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t setting = 0; setting < options.settings.size(); ++setting) {
      for (std::size_t folder = 0; folder < folders.size() && in_time(); ++folder) {
        measured[folder][setting].rounds.push_back(probe_disk(folders[folder], probe_of(options.settings[setting], options.seconds_per_rate)));
        if (options.progress) options.progress(++done, total);
      }
    }
  }
  std::vector<std::vector<DiskSample>> samples(folders.size());
  for (std::size_t setting = 0; setting < options.settings.size(); ++setting) {
    if (std::any_of(measured.begin(), measured.end(), [&](const auto& folder) { return folder[setting].rounds.empty(); })) continue;
    for (std::size_t folder = 0; folder < folders.size(); ++folder) samples[folder].push_back(sample_of(measured[folder][setting]));
  }
  return samples;
}

std::size_t best_setting(std::span<const std::vector<DiskSample>> by_folder) {
  const std::size_t count = by_folder.front().size();
  double most = 0.0;
  for (std::size_t i = 0; i < count; ++i) most = std::max(most, mixed_rate(by_folder, i));
  const auto cost = [&](std::size_t i) {
    const DiskSetting& setting = by_folder.front()[i].setting;
    return std::tuple(setting.bytes_in_flight(), setting.depth, i);
  };
  std::size_t best = count;
  for (std::size_t i = 0; i < count; ++i) {
    if (mixed_rate(by_folder, i) >= kAsGoodAs * most && (best == count || cost(i) < cost(best))) best = i;
  }
  return best;
}

}  // namespace spillway
