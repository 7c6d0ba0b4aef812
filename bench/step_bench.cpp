// The step benchmark: what a step costs with everything on NVMe, where compute binds and where I/O binds,
// and how well it was predicted.
//
//   nvme_over_memory_compute_bound  step with everything on NVMe / step with everything in memory, the
//                                   worse of "none" and "cpu", with a batch that keeps the cores busy
//   io_bound_over_fio               step with everything on NVMe and next to no computation / (bytes it
//                                   reads and writes / fio's mixed rate beside it)
//   predicted_over_measured         of all configurations the one farthest from 1
//
// The contestants take turns in one process, a round is a turn of each. A ratio is the median of the
// rounds' ratios, so that what else the machine does during a round is in both its sides.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hash.h"
#include "spillway/error.h"
#include "support/fio.h"
#include "support/machine.h"
#include "support/step_engine.h"

namespace spillway::bench {
namespace {

struct Effort {
  int rounds;
  int steps;  // timed in a turn
  double fio_s;
};

// A folder beside the executable, which is on a disk where /tmp may not be; removed with the object.
class ScratchFolder {
 public:
  explicit ScratchFolder(const char* program) : path_(std::filesystem::path(program).parent_path() / "step-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) throw IoError("[bench] make folder " + path_ + ": choose a place that can be written");
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Contestant {
  Contestant(std::string_view placement, const StepSetup& setup) : name(placement), engine(setup) {}

  // Returns the turn's median.
  double take_turn(int steps) {
    const Turn turn = engine.run(steps);
    step_ms.insert(step_ms.end(), turn.step_ms.begin(), turn.step_ms.end());
    bytes_per_step = turn.bytes_per_step;
    fmt::print("{:>6}: {:.1f} ms\n", name, fmt::join(turn.step_ms, " "));
    return median(turn.step_ms);
  }
  double median_ms() const { return median(step_ms); }
  double predicted_over_measured() const { return engine.predicted_ms() / median_ms(); }

  // Where a steady step's time went: each lane's busy time, measured and predicted.
  void print_lanes() {
    const std::optional<StepTimes> times = engine.engine().last_times();
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double predicted = engine.engine().prediction().busy_s[lane] * 1e3;
      if (predicted == 0.0) continue;
      fmt::print("{:>6}: lane {:<10} busy {:7.1f} ms of the last step, predicted {:7.1f}\n", name, name_of(static_cast<Lane>(lane)),
                 times->busy_ms[lane], predicted);
    }
  }

  std::string json() {
    return fmt::format(R"({{"placement": "{}", "step_ms": {:.2f}, "predicted_ms": {:.2f}, "predicted_over_measured": {:.3f}, )"
                       R"("nvme_bytes_per_step": {:.0f}, "steps": {}, "config": {}}})",
                       name, median_ms(), engine.predicted_ms(), predicted_over_measured(), bytes_per_step, step_ms.size(),
                       engine.config_json());
  }

  std::string_view name;
  StepEngine engine;
  std::vector<double> step_ms;
  double bytes_per_step = 0.0;
};

// Offload changes where, never what: no time of a wrong result is worth reporting.
void verify(const std::vector<Contestant*>& contestants) {
  constexpr int kSteps = 2;
  for (Contestant* contestant : contestants) contestant->engine.run(kSteps);
  const std::uint64_t expected = contestants.front()->engine.engine().state_hash();
  for (Contestant* contestant : contestants) {
    const std::uint64_t found = contestant->engine.engine().state_hash();
    if (found == expected) continue;
    throw Error(fmt::format("[bench] verify: after {} steps the state of \"{}\" is {}, of \"{}\" {}; they must be the same", kSteps + 1,
                            contestants.front()->name, hex64(expected), contestant->name, hex64(found)));
  }
  fmt::print("verified: the same state in every placement, {}\n", hex64(expected));
}

struct Outcome {
  double ratio = 0.0;
  std::vector<double> predictions;  // over measured
  std::string json;
};

Outcome compute_bound(const std::string& folder, const Effort& effort) {
  constexpr std::int64_t kMicroBatch = 16, kTime = 256;
  Contestant none("none", {"none", kMicroBatch, kTime, folder}), cpu("cpu", {"cpu", kMicroBatch, kTime, folder}),
      nvme("nvme", {"nvme", kMicroBatch, kTime, folder});
  fmt::print("compute bound: gpt2-10m, {} sequences of {} tokens\n", kMicroBatch, kTime);
  const std::vector<Contestant*> contestants = {&none, &cpu, &nvme};
  verify(contestants);
  std::vector<double> over_none, over_cpu;
  for (int round = 0; round < effort.rounds; ++round) {
    const double none_ms = none.take_turn(effort.steps);
    const double nvme_ms = nvme.take_turn(effort.steps);
    const double cpu_ms = cpu.take_turn(effort.steps);
    over_none.push_back(nvme_ms / none_ms);
    over_cpu.push_back(nvme_ms / cpu_ms);
  }
  Outcome outcome;
  std::vector<std::string> runs;
  for (Contestant* contestant : contestants) {
    contestant->print_lanes();
    outcome.predictions.push_back(contestant->predicted_over_measured());
    runs.push_back(contestant->json());
  }
  outcome.ratio = std::max(median(over_none), median(over_cpu));
  outcome.json = fmt::format(R"({{"sequences": {}, "tokens_a_sequence": {}, "nvme_over_none": [{:.3f}], "nvme_over_cpu": [{:.3f}], "runs": [{}]}})",
                             kMicroBatch, kTime, fmt::join(over_none, ", "), fmt::join(over_cpu, ", "), fmt::join(runs, ", "));
  return outcome;
}

Outcome io_bound(const std::string& folder, const Effort& effort) {
  constexpr std::int64_t kMicroBatch = 1, kTime = 16;
  Contestant none("none", {"none", kMicroBatch, kTime, folder}), nvme("nvme", {"nvme", kMicroBatch, kTime, folder});
  fmt::print("I/O bound: gpt2-10m, {} sequence of {} tokens\n", kMicroBatch, kTime);
  verify({&none, &nvme});
  Fio fio(folder, nvme.engine.engine().plan().tiers[static_cast<std::size_t>(Tier::nvme)].peak);
  fio.mixed_rate(effort.fio_s);  // lays its file out
  std::vector<double> rates = {fio.mixed_rate(effort.fio_s)}, ratios;
  for (int round = 0; round < effort.rounds; ++round) {
    const double step_s = nvme.take_turn(4 * effort.steps) * 1e-3;
    rates.push_back(fio.mixed_rate(effort.fio_s));
    const double beside = (rates[rates.size() - 2] + rates.back()) / 2.0;
    ratios.push_back(step_s * beside / nvme.bytes_per_step);
    fmt::print("{:>6}: {:.0f} MB/s\n", "fio", rates.back() * 1e-6);
  }
  nvme.print_lanes();
  Outcome outcome;
  outcome.ratio = median(ratios);
  outcome.predictions = {nvme.predicted_over_measured()};
  outcome.json = fmt::format(R"({{"sequences": {}, "tokens_a_sequence": {}, "rounds": [{:.3f}], "runs": [{}], )"
                             R"("fio_mixed_bytes_per_s": {:.0f}, "fio_rounds": [{:.0f}]}})",
                             kMicroBatch, kTime, fmt::join(ratios, ", "), nvme.json(), median(rates), fmt::join(rates, ", "));
  return outcome;
}

void run(const char* program, bool quick) {
  const Effort effort = quick ? Effort{3, 2, 1.0} : Effort{9, 2, 1.5};
  const ScratchFolder folder(program);
  const Outcome compute = compute_bound(folder.path(), effort);
  const Outcome io = io_bound(folder.path(), effort);
  std::vector<double> predictions = compute.predictions;
  predictions.insert(predictions.end(), io.predictions.begin(), io.predictions.end());
  const double worst = *std::max_element(predictions.begin(), predictions.end(),
                                         [](double a, double b) { return std::abs(std::log(a)) < std::abs(std::log(b)); });
  fmt::print(R"({{"nvme_over_memory_compute_bound": {:.3f}, "io_bound_over_fio": {:.3f}, "predicted_over_measured": {:.3f}, )"
             R"("compute_bound": {}, "io_bound": {}, "machine": {}}})"
             "\n",
             compute.ratio, io.ratio, worst, compute.json, io.json, machine_json());
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--quick") {
      quick = true;
    } else if (argument != "--json") {  // the only format there is
      std::fputs("usage: step_bench [--quick] [--json]\n", stderr);
      return 2;
    }
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    spillway::bench::run(argv[0], quick);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step_bench: %s\n", error.what());
    return 1;
  }
}
