// The optimizers of this library as contenders of adam_bench.py, and beside them, on the same memory, the traffic alone. One
// process for each number of threads, which is that of the cores it is bound to.
//
//   adam_turns PARAMETERS
//
// It prints one JSON object that lists what it has, then answers each line of standard input by one:
//   turn NAME            runs it kPasses times: {"seconds": [...]}
//   state NAME FILE      f32 masters after two steps of the job from the start, every (n / 65536)-th, into FILE: {}
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/parallel.h"
#include "spillway/error.h"
#include "spillway/optimizer.h"
#include "support/huge_array.h"
#include "support/machine.h"
#include "support/traffic.h"

namespace spillway::bench {
namespace {

constexpr int kPasses = 2;  // even: two passes of traffic restore what they change
constexpr std::int64_t kPiece = std::int64_t{1} << 18;
constexpr std::int64_t kSamples = 65536;
constexpr float kGradientScale = 1.0f / 1.7f;  // unscales and clips

struct Job {
  std::string_view name;
  OptimizerKind kind = OptimizerKind::adam;
  MomentFormat moments = MomentFormat::f32;
  DType gradient = DType::bf16;  // and of the weight, if it is 16 bits: else there is none
  bool split_master = false;
  bool norm_first = false;
};

constexpr std::array kJobs = {
    Job{.name = "fp32", .gradient = DType::f32},
    Job{.name = "pipeline bf16"},
    Job{.name = "pipeline fp16", .gradient = DType::f16},
    Job{.name = "pipeline fp16 with norm", .gradient = DType::f16, .norm_first = true},
    Job{.name = "split master", .split_master = true},
    Job{.name = "moments bf16", .moments = MomentFormat::bf16},
    Job{.name = "moments 8bit", .moments = MomentFormat::block8},
    Job{.name = "adagrad", .kind = OptimizerKind::adagrad},
    Job{.name = "lion", .kind = OptimizerKind::lion},
    Job{.name = "sgd", .kind = OptimizerKind::sgd},
    Job{.name = "sgd momentum", .kind = OptimizerKind::sgd_momentum},
};

// The start, the same in peers/adam_peer.py: from a hash of the index masters within 1/16 and gradients within 1/2, never 0,
// exact in every type.
constexpr std::uint32_t hash_of(std::int64_t index) {
  std::uint32_t x = static_cast<std::uint32_t>(index) * 0x9e3779b1u + 0x85ebca6bu;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  return x ^ (x >> 15);
}
constexpr float first_master(std::uint32_t hash) { return static_cast<float>(static_cast<std::int32_t>(hash >> 8) - (1 << 23)) * 0x1p-27f; }
constexpr float gradient_of(std::uint32_t hash) { return static_cast<float>(2 * static_cast<std::int32_t>(hash >> 24) - 255) * 0x1p-9f; }

template <class F>
void for_pieces(std::int64_t n, const F& f) {
  parallel_for((n + kPiece - 1) / kPiece, [&](std::int64_t piece) { f(piece * kPiece, std::min(kPiece, n - piece * kPiece)); });
}

constexpr std::size_t index_of(MomentFormat format) { return static_cast<std::size_t>(format); }

// The arrays of every job. Jobs with moments of one format share the state; touched first by the threads that compute.
class Memory {
 public:
  explicit Memory(std::int64_t n) : n_(n), gradients_{HugeArray(n * 4), HugeArray(n * 2), HugeArray(n * 2)}, weight_(n * 2), split_(n * 4) { reset(); }

  std::int64_t n() const { return n_; }
  void* gradient(DType dtype) const { return gradients_[static_cast<std::size_t>(dtype)].as<void>(); }
  void* weight() const { return weight_.as<void>(); }

  OptimizerTile tile_of(const Job& job) const {
    OptimizerTile tile = tile_at(states_[index_of(job.moments)].as<std::byte>(), layouts_[index_of(job.moments)]);
    tile.gradient = gradient(job.gradient);
    tile.gradient_dtype = job.gradient;
    if (job.gradient != DType::f32) {
      tile.weight = weight();
      tile.weight_dtype = job.gradient;
    }
    if (job.split_master) {
      tile.master = nullptr;
      tile.weight = split_.as<std::uint16_t>();
      tile.master_low = split_.as<std::uint16_t>() + n_;
    }
    return tile;
  }

  // To the start: moments are zero.
  void reset() {
    for (std::size_t format = 0; format < kMomentFormats; ++format) {
      auto* state = states_[format].as<std::byte>();
      for_pieces(layouts_[format].bytes, [&](std::int64_t first, std::int64_t n) { std::memset(state + first, 0, static_cast<std::size_t>(n)); });
    }
    for_pieces(n_, [this](std::int64_t first, std::int64_t n) {
      for (std::int64_t i = first; i < first + n; ++i) set_first_values(i);
    });
  }

 private:
  void set_first_values(std::int64_t i) {
    const std::uint32_t hash = hash_of(i);
    const float gradient = gradient_of(hash), master = first_master(hash);
    gradients_[0].as<float>()[i] = gradient;
    gradients_[1].as<bf16>()[i] = from_float<bf16>(gradient);
    gradients_[2].as<f16>()[i] = from_float<f16>(gradient);
    weight_.as<bf16>()[i] = from_float<bf16>(master);
    for (const HugeArray& state : states_) state.as<float>()[i] = master;
    const auto bits = std::bit_cast<std::uint32_t>(master);
    split_.as<std::uint16_t>()[i] = static_cast<std::uint16_t>((bits + 0x8000u) >> 16);
    split_.as<std::uint16_t>()[n_ + i] = static_cast<std::uint16_t>(bits);
  }

  std::int64_t n_;
  std::array<StateLayout, kMomentFormats> layouts_ = {state_layout({OptimizerKind::adam, MomentFormat::f32}, n_),
                                                      state_layout({OptimizerKind::adam, MomentFormat::bf16}, n_),
                                                      state_layout({OptimizerKind::adam, MomentFormat::block8}, n_)};
  std::array<HugeArray, kMomentFormats> states_ = {HugeArray(layouts_[0].bytes), HugeArray(layouts_[1].bytes), HugeArray(layouts_[2].bytes)};
  std::array<HugeArray, 3> gradients_;  // by DType
  HugeArray weight_;
  HugeArray split_;  // weights, then the lower halves of masters
};

// Bytes a parameter that a job has to move.
double bytes_of(const Job& job) {
  constexpr std::int64_t kMany = std::int64_t{1} << 20;
  double bytes = static_cast<double>(state_traffic({job.kind, job.moments}, kMany)) / static_cast<double>(kMany);
  bytes += static_cast<double>(size_of(job.gradient)) * (job.norm_first ? 2 : 1);
  if (job.gradient == DType::f32) return bytes;
  return job.split_master ? bytes : bytes + 2.0;  // a split master is 4 bytes read and written as well, its weight among them
}

class Contender {
 public:
  explicit Contender(std::int64_t n) : memory_(n) {}

  // The first line.
  std::string introduction() const {
    std::vector<std::string> jobs, roofs;
    for (const Job& job : kJobs) jobs.push_back(fmt::format(R"("{}": {:.4f})", job.name, bytes_of(job)));
    for (const bool sixteen_bit : {false, true}) {
      std::vector<std::string> names;
      for (const TrafficKernel& kernel : traffic_kernels(sixteen_bit)) names.push_back(fmt::format(R"("{}")", kernel.name));
      roofs.push_back(fmt::format(R"("{}": [{}])", sixteen_bit ? "roof 16-bit" : "roof fp32", fmt::join(names, ", ")));
    }
    return fmt::format(R"({{"threads": {}, "isa": "{}", "bytes": {{{}}}, {}, "machine": {}}})", parallel_threads(), active_isa(), fmt::join(jobs, ", "),
                       fmt::join(roofs, ", "), machine_json());
  }

  std::string turn(const std::string& name) {
    std::vector<double> seconds;
    for (int pass = 0; pass < kPasses; ++pass) {
      const auto start = std::chrono::steady_clock::now();
      run(name);
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return fmt::format(R"({{"seconds": [{:.6f}]}})", fmt::join(seconds, ", "));
  }

  std::string write_state(const std::string& name, const std::string& path) {
    const Job& job = job_named(name);
    memory_.reset();
    for (step_ = 1; step_ <= 2; ++step_) update(job);
    std::vector<float> samples;
    for (std::int64_t i = 0; i < kSamples; ++i) samples.push_back(memory_.tile_of(job).master[i * (memory_.n() / kSamples)]);
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(samples.data()), static_cast<std::streamsize>(samples.size() * sizeof(float)));
    if (!file.flush()) throw IoError("[bench] write the masters into " + path + ": is the disk full?");
    return "{}";
  }

 private:
  static const Job& job_named(const std::string& name) {
    for (const Job& job : kJobs) {
      if (job.name == name) return job;
    }
    throw Error("[bench] no job or roof is called '" + name + "'");
  }

  void run(const std::string& name) {
    for (const bool sixteen_bit : {false, true}) {
      const std::string prefix = sixteen_bit ? "roof 16-bit: " : "roof fp32: ";
      for (const TrafficKernel& kernel : traffic_kernels(sixteen_bit)) {
        if (name == prefix + std::string(kernel.name)) return move(kernel, sixteen_bit);
      }
    }
    ++step_;
    update(job_named(name));
  }

  void move(const TrafficKernel& kernel, bool sixteen_bit) {
    const OptimizerTile tile = memory_.tile_of(kJobs[sixteen_bit ? 1 : 0]);
    const auto words = [](void* array) { return static_cast<std::uint32_t*>(array); };
    const TrafficArrays arrays{{words(tile.master), words(tile.moments[0]), words(tile.moments[1])}, tile.gradient, tile.weight};
    for_pieces(tile.n, [&](std::int64_t first, std::int64_t n) { kernel.pass(arrays, first, n); });
  }

  void update(const Job& job) {
    OptimizerParams params{.kind = job.kind, .weight_decay = 0.01, .momentum = 0.9, .step = step_};
    if (job.gradient != DType::f32) params.gradient_scale = kGradientScale;
    const OptimizerTile tile = memory_.tile_of(job);
    if (job.norm_first && !gradient_is_finite(tile)) throw Error("[bench] " + std::string(job.name) + ": the gradient is not finite");
    optimizer_update_parallel(tile, params);
  }

  bool gradient_is_finite(const OptimizerTile& tile) {
    partial_sums_.resize(static_cast<std::size_t>((tile.n + kPiece - 1) / kPiece));
    for_pieces(tile.n, [&](std::int64_t first, std::int64_t n) {
      const OptimizerTile part = part_of(tile, first, n);
      partial_sums_[static_cast<std::size_t>(first / kPiece)] = gradient_statistics(part.gradient, part.gradient_dtype, n).square_sum;
    });
    double sum = 0.0;
    for (const double partial : partial_sums_) sum += partial;
    return GradientStatistics{sum}.is_finite();
  }

  Memory memory_;
  std::int64_t step_ = 0;
  std::vector<double> partial_sums_;
};

void serve(std::int64_t parameters) {
  Contender contender(parameters);
  std::cout << contender.introduction() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const bool is_turn = line.starts_with("turn ");
    const std::size_t last = line.rfind(' ');  // of a state line: before the file's name
    const std::string answer = is_turn ? contender.turn(line.substr(5)) : contender.write_state(line.substr(6, last - 6), line.substr(last + 1));
    std::cout << answer << std::endl;
  }
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  const long long parameters = argc == 2 ? std::atoll(argv[1]) : 0;
  if (parameters < 65536 || parameters % 65536 != 0) {
    std::fputs("usage: adam_turns PARAMETERS, a multiple of 65536\n", stderr);
    return 2;
  }
  try {
    spillway::bench::serve(parameters);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "adam_turns: %s\n", error.what());
    return 1;
  }
}
