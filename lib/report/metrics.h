// What a run tells about itself, step by step. Plain values, filled by the trainer, shown by the progress
// line and written by the metrics writer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/swap_store.h"

namespace spillway {

// Bytes by tier.
struct TierBytes {
  std::int64_t device = 0;
  std::int64_t host = 0;
  std::int64_t nvme = 0;
};

// What does not change during a run.
struct StartRecord {
  std::string model = {};
  std::int64_t params = 0;
  std::string dtype = {};   // "bf16"
  std::string device = {};  // "host", "cuda:0"
  int zero_stage = 0;
  std::string offload_param = {};      // "none", "cpu", "nvme"
  std::string offload_optimizer = {};  // "none", "cpu", "nvme"
  std::string offload_gradients = {};  // "cpu", "nvme"
  std::string offload_activations = {};  // "none", "cpu", "nvme"
  std::int64_t world_size = 1;
  std::int64_t micro_batch_size = 0;
  std::int64_t accumulation_steps = 0;
  std::int64_t train_batch_size = 0;
  std::int64_t sequence_length = 0;
  std::int64_t first_step = 1;
  std::int64_t total_steps = 0;
  std::uint64_t seed = 0;
  double predicted_step_ms = 0.0;
  std::string binding_lane = {};
  TierBytes planned = {};  // peak by plan
};

struct LaneTime {
  std::string lane = {};  // "compute", "nvme_read", ...
  double busy_ms = 0.0;
};

struct StepRecord {
  std::int64_t step = 0;  // 1 for the first
  double loss = 0.0;      // mean over the step's tokens
  double learning_rate = 0.0;
  double gradient_norm = 0.0;  // global, before clipping
  double loss_scale = 1.0;
  bool skipped = false;  // non-finite gradient: nothing was updated
  double tokens_per_s = 0.0;
  double samples_per_s = 0.0;
  double step_ms = 0.0;
  double predicted_step_ms = 0.0;
  double data_ms = 0.0;              // loading and copying of this step's samples
  std::vector<LaneTime> lanes = {};  // busy in the step before, whose last task has ended by now; empty in the first
  TierBytes peak = {};               // so far
  std::vector<SwapPathHealth> nvme_paths = {};  // since the record before
  double nvme_wait_ms = 0.0;         // of the step that `lanes` is about, how long it waited for these
};

struct EvalRecord {
  std::int64_t step = 0;  // after this many steps
  double loss = 0.0;      // mean over the evaluated tokens
  std::int64_t tokens = 0;
  double eval_ms = 0.0;
};

// A checkpoint, written or not.
struct SaveRecord {
  std::int64_t step = 0;  // after this many steps
  std::string folder = {};
  std::int64_t bytes = 0;
  double seconds = 0.0;
  std::string state_hash = {};
  std::string error = {};  // empty: it was written
};

// What one rank has used and moved.
struct RankRecord {
  int rank = 0;
  std::string host = {};
  TierBytes peak = {};
  TierBytes planned = {};
  std::int64_t rss_peak = 0;
  std::int64_t sent_bytes = 0;  // to other ranks, in collectives, in all
};

}  // namespace spillway
