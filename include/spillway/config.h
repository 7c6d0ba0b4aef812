// The typed form of a DeepSpeed JSON file plus Spillway's own section. Made by lib/config; read by
// everyone; every default is DeepSpeed's unless the comment says otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spillway/dtype.h"
#include "spillway/model.h"
#include "spillway/optimizer.h"

namespace spillway {

// Where a kind of state may live: DeepSpeed's "none", "cpu", "nvme".
enum class OffloadDevice : std::uint8_t { none, cpu, nvme };

struct OffloadConfig {
  OffloadDevice device = OffloadDevice::none;
  std::vector<std::string> nvme_paths;  // folders, no two of them the same; some exactly when device is nvme
  bool pin_memory = true;
  double ratio = 1.0;       // share of the state on `device`; the rest stays one tier higher
};

// What the optimizer in use has no such parameter for is at OptimizerParams' default.
struct OptimizerConfig {
  std::string type = "AdamW";  // Adam, AdamW, Adagrad, Lion or SGD
  StateFormat state{};         // the update rule that comes to, and spillway.moments
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;   // applied to every parameter, as DeepSpeed does for one parameter group
  bool decoupled_decay = true;  // "Adam" is AdamW too unless adam_w_mode is false
  bool bias_correction = true;
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  double learning_rate_decay = 0.0;
};

enum class ScheduleKind : std::uint8_t { constant, warmup, warmup_decay, warmup_cosine };
enum class WarmupShape : std::uint8_t { log, linear };

struct SchedulerConfig {
  ScheduleKind kind = ScheduleKind::constant;
  double warmup_min_lr = 0.0;
  double warmup_max_lr = 0.0;      // resolved: the optimizer's lr when the file leaves it out (WarmupLR)
  std::int64_t warmup_num_steps = 1000;
  WarmupShape warmup_type = WarmupShape::log;
  std::int64_t total_num_steps = 0;
  double warmup_min_ratio = 0.0;   // WarmupCosineLR
  double cos_min_ratio = 1e-4;     // WarmupCosineLR
};

// fp16 only. DeepSpeed's dynamic loss scaler.
struct LossScaleConfig {
  bool dynamic = true;
  double static_scale = 0.0;       // used when !dynamic
  int initial_scale_power = 16;
  std::int64_t window = 1000;
  int hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_scale = 1.0;
};

// DeepSpeed's "aio" section: how each folder of the NVMe tier is read and written.
struct AioConfig {
  std::optional<std::int64_t> block_size;   // bytes of one request, rounded up to whole pages; unset: 1 MiB
  std::optional<std::int64_t> queue_depth;  // requests in flight per ring; unset: by the disk's measured latency and bandwidth
  int intra_op_parallelism = 1;             // rings per folder
  bool single_submit = true;                // each request is submitted by itself: see SwapStoreOptions
  bool overlap_events = true;               // false: a batch of requests is waited for before the next is submitted
};

// How state is put on tiers.
enum class PlacementPolicy : std::uint8_t {
  exact,  // each kind of state on the tier its `device` names (and `ratio` splits)
  fill,   // as high as the memory budgets allow; `device` is the lowest tier it may sink to
};

enum class AccumulationOrder : std::uint8_t { micro_batch_major };

// The "spillway" section.
struct SpillwayConfig {
  std::optional<std::int64_t> device_memory;  // bytes; unset: what the device has
  std::optional<std::int64_t> host_memory;    // bytes; unset: what the machine has available
  std::optional<std::int64_t> nvme_memory;    // bytes; unset: what is free under the folders of nvme_path
  std::int64_t tile_size = 4 * 1024 * 1024;   // elements; a multiple of 2048
  int prefetch_depth = 2;                     // layers gathered, and tiles read, ahead of use; >= 1
  PlacementPolicy placement = PlacementPolicy::exact;
  AccumulationOrder schedule = AccumulationOrder::micro_batch_major;
  std::string io_engine = "auto";             // auto, io_uring, libaio, threads
  bool verify = true;                         // checksum every tile read back from NVMe
  bool submission_polling = false;            // io_uring: see IoEngineOptions
  bool completion_polling = false;
  // Where finished gradients wait for an optimizer that runs on the host: cpu or nvme.
  OffloadDevice offload_gradients = OffloadDevice::cpu;
  // Folders for gradients and activation checkpoints; some exactly when one of these is on nvme. Left out of the file: the
  // folders of the two offload sections.
  std::vector<std::string> nvme_paths;
  int threads = 0;                            // compute threads; 0: one per core of the affinity mask
  std::vector<std::string> frozen;            // patterns (* and ?) of parameter names that are not trained
  double comm_timeout_s = 60.0;               // a rank not heard for so long is given up
  std::int64_t hash_every = 1000;             // steps between comparisons of the ranks' state; 0: never
  std::optional<std::int64_t> checkpoint_memory;  // bytes of host memory a save may copy state to; unset: enough for one step's stop
  std::string profile;                        // file of measured rates; empty: measure at start
};

// Where a value in force came from, one row per key the file has or could have had.
struct KeyReport {
  std::string path;    // "zero_optimization.offload_optimizer.device"
  std::string value;   // as JSON
  enum class Source : std::uint8_t { file, default_value, derived, automatic } source;
  std::string note;    // what was done with it, if anything is worth saying; e.g. "no effect here"
};

struct Config {
  // train_batch_size = micro_batch_size * accumulation_steps * world_size, always.
  std::int64_t train_batch_size = 0;
  std::int64_t micro_batch_size = 0;
  std::int64_t accumulation_steps = 1;
  std::int64_t world_size = 1;

  DType dtype = DType::f32;               // of weights and activations
  DType communication_dtype = DType::f32;  // of a gradient on the wire; default: dtype
  LossScaleConfig loss_scale;             // used when dtype is f16
  double gradient_clipping = 1.0;         // global L2 norm; 0: off

  OptimizerConfig optimizer;
  SchedulerConfig scheduler;

  int zero_stage = 0;
  OffloadConfig offload_param;
  OffloadConfig offload_optimizer;
  std::int64_t param_persistence_threshold = 100000;  // elements; layers at or below it stay on the device (stage 3)

  // Several ranks.
  std::int64_t reduce_bucket_size = 500'000'000;     // elements a reduce-scatter moves at a time; >= 1
  std::int64_t allgather_bucket_size = 500'000'000;  // elements an all-gather moves at a time; >= 1
  std::int64_t prefetch_bucket_size = 50'000'000;    // elements gathered ahead of use, but at least one layer; 0: none
  std::int64_t max_reuse_distance = 1'000'000'000;   // stage 3: weights used again within so many elements stay; 0: never
  bool overlap_comm = true;                          // collectives beside compute; false: in its order
  std::int64_t hpz_partition_size = 1;               // ranks that shard among themselves; 1: all (zero_hpz_partition_size)

  // Where a layer's input waits for its backward: spillway.offload_activations, or cpu with
  // activation_checkpointing.cpu_checkpointing.
  OffloadDevice offload_activations = OffloadDevice::none;
  AioConfig aio;

  std::int64_t steps_per_print = 0;  // 0: the command line's default
  bool wall_clock_breakdown = false;

  SpillwayConfig spillway;

  std::vector<KeyReport> keys;
  std::vector<std::string> warnings;  // one sentence each
  std::string effective_json;         // the whole configuration in force, as DeepSpeed JSON
};

// Facts the file may leave open ("auto", a missing third of the batch triangle) and the caller knows.
struct ConfigContext {
  std::int64_t world_size = 1;
  std::int64_t total_steps = 0;   // --steps; fills scheduler.total_num_steps "auto"
};

// Reads DeepSpeed JSON (comments and trailing commas allowed). Throws ConfigError that names the file,
// the JSON path, what was found, what is allowed, and the closest known key for an unknown one.
Config load_config(const std::string& file, const ConfigContext& context);
Config parse_config(const std::string& text, const std::string& file_name, const ConfigContext& context);

// A model given as a JSON file of ModelSpec's fields (or GPT-2's n_layer, n_embd, ... names).
ModelSpec load_model_spec(const std::string& file);

// The folders of the NVMe tier, none twice (by whatever name), and which of them each kind of state may lie in: indices
// into `paths`, none if it is not there.
struct NvmeFolders {
  std::vector<std::string> paths;
  std::vector<int> weights, optimizer_state, gradients, activations;
};
NvmeFolders nvme_folders(const Config& config);

// "48MiB", "1.5GB", "4096", 5e8: bytes. Throws ConfigError mentioning `what`.
std::int64_t parse_bytes(const std::string& text, const std::string& what);

}  // namespace spillway
