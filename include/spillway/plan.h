// The plan: the complete graph of one training step (and of one evaluation batch), with the lane, the
// dependencies and the memory of every task. Built once before training from descriptions alone;
// checked, simulated, executed and shown as it stands.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/communicator.h"
#include "spillway/config.h"
#include "spillway/dtype.h"
#include "spillway/model.h"
#include "spillway/optimizer.h"

namespace spillway {

enum class Tier : std::uint8_t { device, host, nvme };
inline constexpr int kTiers = 3;

std::string_view name_of(Tier tier);

// Every buffer starts on a multiple of this and takes whole ones: pages on the host and in the swap file
// (direct I/O); on the device, what any kernel wants.
constexpr std::int64_t alignment_of(Tier tier) { return tier == Tier::device ? 256 : 4096; }

// A resource that executes its tasks in plan order. The first four are streams of the device, the rest
// are threads of the host. `snapshot` copies state out for a checkpoint when one was asked for, and else passes its tasks by. The NVMe lanes keep several transfers in flight and retire them in order; weights and activations have
// a lane of their own, so that what forward and backward wait for does not queue behind state of the optimizer.
enum class Lane : std::uint8_t { compute, h2d, d2h, comm, cpu, snapshot, nvme_fetch, nvme_read, nvme_write };
inline constexpr int kLanes = 9;

constexpr bool is_stream(Lane lane) { return lane <= Lane::comm; }
constexpr bool is_nvme(Lane lane) { return lane >= Lane::nvme_fetch; }
std::string_view name_of(Lane lane);

enum class TaskKind : std::uint8_t {
  read_weights,     // nvme_fetch  a layer's weights to host staging
  gather,           // h2d         a layer's weights, or this rank's shard of them, to the device (comm: from there)
  all_gather,       // comm        the shards of a layer's weights, before use
  forward,          // compute
  backward,         // compute     the head's includes its forward and the loss
  save_activation,  // d2h         a layer's input to host memory
  write_activation, // nvme_fetch  from there to NVMe
  read_activation,  // nvme_fetch  back to host staging
  load_activation,  // h2d         to the device
  drain_partial,    // d2h         one micro-batch's f32 gradient to the host accumulator or its staging
  accumulate,       // compute|cpu adds a micro-batch's f32 gradient to the accumulator
  pack_gradient,    // compute     rounds a bucket of the f32 gradient to the wire dtype, by the rank that reduces it
  reduce_scatter,   // comm        every rank gets what all ranks have of its slice
  sum_gradient,     // compute     adds that up in f32, in the order of ranks
  finalize,         // compute|cpu rounds the gradient to the wire dtype, square sums on the way
  gather_gradient,  // comm        the finished slices of ranks that hold the same shard
  drain_gradient,   // d2h         the finished gradient to host memory, in the wire dtype
  write_gradient,   // nvme_write  tiles of a gradient, finished or accumulated so far, from host staging to NVMe
  read_gradient,    // nvme_read   back to host staging: to be added to, or to the ring
  drain_statistics, // d2h         square sums and losses
  exchange_statistics,  // cpu     losses and square sums of all ranks
  gate,             // cpu         global norm, clip factor, overflow verdict, learning rate
  read_tile,        // nvme_read   a tile's optimizer state to the host ring
  update_tile,      // compute|cpu the optimizer
  write_tile,       // nvme_write  the state back
  publish,          // h2d|d2h     a tile's new 16-bit weights across the link
  write_weights,    // nvme_write  a tile's new 16-bit weights to NVMe
  all_gather_updated,  // comm     a layer's new weights, if every rank keeps all of them
  snapshot,         // snapshot    a tile's state, or frozen weights, to the checkpoint
};

inline constexpr int kTaskKinds = static_cast<int>(TaskKind::snapshot) + 1;

std::string_view name_of(TaskKind kind);

// Whether ranks meet in the task. (pack_gradient names the collective it prepares, and exchange_statistics is a
// control message.)
constexpr bool is_collective(TaskKind kind) {
  return kind == TaskKind::all_gather || kind == TaskKind::reduce_scatter || kind == TaskKind::gather_gradient ||
         kind == TaskKind::all_gather_updated;
}

// Of those on NVMe lanes, which write.
constexpr bool writes_nvme(TaskKind kind) {
  return kind == TaskKind::write_tile || kind == TaskKind::write_weights || kind == TaskKind::write_activation || kind == TaskKind::write_gradient;
}

// What the bytes of a buffer are, for the ledger.
enum class Owner : std::uint8_t {
  weights, optimizer_state, gradients, activations, workspace, staging, batch, statistics, communication
};
inline constexpr int kOwners = 9;

std::string_view name_of(Owner owner);

// A range of one tier's arena (for nvme: of the swap file). Persistent buffers keep their bytes from
// step to step; the others live from their first to their last access in plan order. On NVMe all are persistent,
// gradients and activations too: an extent is never shared.
struct Buffer {
  std::string name;
  Tier tier;
  Owner owner;
  bool persistent;
  std::int64_t bytes;
  std::int64_t offset = -1;
};

// What a task uses a buffer for.
enum class Role : std::uint8_t {
  weights, tied_weights, batch, x, y, dy, dx, workspace, gradient, tied_gradient, loss, square_sums,
  host_square_sums, world_statistics, verdict, state, new_weights, source, destination
};

// Bytes [begin, end) of a buffer.
struct Access {
  int buffer;
  Role role;
  bool reads;
  bool writes;
  std::int64_t begin;
  std::int64_t end;
};

// The task must have finished before the dependent one starts: in the same run of the program, or in
// the run before.
struct Dependency {
  int task;
  bool previous_run;

  bool operator==(const Dependency&) const = default;
};

struct Task {
  TaskKind kind;
  Lane lane;
  int layer = -1;
  int micro_batch = -1;
  int tile = -1;               // of a snapshot: index into Plan::snapshots
  int collective = -1;         // index into Plan::collectives
  double flops = 0.0;          // matrix products, for the cost model
  std::int64_t bytes = 0;      // moved by the task over its lane's resource, for the cost model
  std::vector<Access> accesses;
  std::vector<Dependency> dependencies;
};

// Tasks in plan order: each lane executes its own in this order, every dependency within a run points
// backwards.
struct Program {
  std::vector<Task> tasks;
};

// A tile lies within one shard.
struct TilePlan {
  int layer;
  std::int64_t begin;   // elements of the layer's flat buffer
  std::int64_t end;
  Tier tier;            // of its optimizer state
  int state_buffer;     // persistent: as `layout` says
  int weights_extent;   // index into Plan::extents if the layer's weights are on NVMe, else -1
  int state_extent;     // likewise for the state
  int weights_chunk = -1;  // index into Plan::weights_chunks: the same elements
  StateLayout layout{};    // of its optimizer state

  std::int64_t num_elements() const { return end - begin; }
  std::int64_t state_bytes() const { return layout.bytes; }
};

// The place of an element of a layer's flat buffer in the whole model: OptimizerTile::position.
constexpr std::uint64_t model_position(int layer, std::int64_t element) {
  return (static_cast<std::uint64_t>(layer) << 40) + static_cast<std::uint64_t>(element);
}

// What this rank has of a layer. Trained elements come first in the flat buffer, frozen ones after them.
struct LayerPlan {
  std::string name;
  std::int64_t num_elements;
  std::int64_t num_trainable;
  Tier weights_tier;
  int weights_buffer;        // persistent, dtype of the model
  bool resident;             // the buffer is the whole layer, on the device, and used in place; else it holds `owned`
                             // and, from byte frozen_offset on, `frozen`, and is gathered before use
  ElementRange owned;        // trained elements whose state is here
  ElementRange slice;        // those of `owned` whose gradient this rank reduces
  ElementRange frozen;       // frozen elements in the buffer
  std::int64_t frozen_offset;
  bool update_on_device;     // where its optimizer runs
  Tier gradient_tier;        // where the finished gradient waits for it: on NVMe tile after tile, the last padded to a page
  int gradient_buffer;       // the finished gradient of `owned`; -1 if nothing is trained here
  DType gradient_dtype;      // storage of the finished gradient
  int first_tile;
  int num_tiles;
  std::int64_t first_piece;  // its first square sum, in doubles, within the statistics buffers
  bool square_sums_on_host;  // finalised by the cpu lane, else by the device
  Tier activation_tier;      // where its output waits for the next layer's backward
  int activation_buffer;     // persistent, if that is on NVMe; else -1

  // Byte of the weights buffer at which an element it holds starts.
  std::int64_t weights_offset(std::int64_t element, std::int64_t width) const {
    if (resident) return element * width;
    return element < num_trainable ? (element - owned.begin) * width : frozen_offset + (element - frozen.begin) * width;
  }
};

// A range of a layer's weights in its buffer here, no larger than a tile: how weights are filled and looked at
// between steps.
struct WeightsChunk {
  int layer;
  std::int64_t begin;  // elements of the layer's flat buffer
  std::int64_t end;
  int extent;          // if the weights are on NVMe, else -1

  std::int64_t num_elements() const { return end - begin; }
};

// Something this rank saves: the state of a tile, or frozen weights.
struct SnapshotPlan {
  int tile;   // -1: frozen weights
  int chunk;  // index into Plan::weights_chunks of frozen weights, else -1
};

// The ranks a collective joins: all of them; those that share a layer out among themselves; those that hold the
// same shard.
enum class RankGroup : std::uint8_t { world, partition, replicas };
inline constexpr int kRankGroups = 3;

struct CollectivePlan {
  RankGroup group;
  std::vector<Part> parts;          // of an all-gather: in its buffer; of a reduce-scatter: what this rank sends
  std::vector<Part> receive_parts;  // of a reduce-scatter
  std::vector<ElementRange> sources;  // of a reduce-scatter: the elements of the layer that each part is made of

  // Bytes of what all ranks together contribute once: an all-gather's result, a reduce-scatter's input.
  std::int64_t payload_bytes() const;
};

// One range of the swap file that is transferred whole. Those of a buffer stand side by side, in order; a task that
// touches a range of it transfers those within.
struct ExtentPlan {
  std::string name;
  int buffer;
  std::int64_t begin;  // bytes within the buffer
  std::int64_t bytes;
};

struct TierUse {
  std::int64_t peak = 0;                    // bytes of arena the plan needs
  std::optional<std::int64_t> budget;       // unset: unlimited
  std::array<std::int64_t, kOwners> by_owner{};  // bytes at the moment of the peak

  bool fits() const { return !budget || peak <= *budget; }
};

// A description of a layer: everything the planner knows about a model.
struct LayerShape {
  std::string name;
  LayerKind kind;
  std::int64_t num_elements;
  int tied_layer;
  std::int64_t forward_workspace;   // bytes
  std::int64_t backward_workspace;  // bytes
  double forward_flops;
  double backward_flops;
  std::int64_t num_frozen = 0;      // the last of num_elements
};

struct PlanRequest {
  std::vector<LayerShape> layers;  // embedding, blocks, head
  // The same layers for another batch shape, so that a refusal can propose one; empty: it does not.
  std::function<std::vector<LayerShape>(const BatchShape&)> layers_for;
  BatchShape shape;                // of one micro-batch
  std::int64_t channels = 0;
  std::int64_t accumulation_steps = 1;
  DType dtype = DType::bf16;       // weights and activations
  DType wire = DType::bf16;        // finished gradients
  StateFormat state;               // of the optimizer
  std::int64_t tile_size = 4 * 1024 * 1024;
  int prefetch_depth = 2;
  PlacementPolicy placement = PlacementPolicy::exact;
  int zero_stage = 0;
  OffloadDevice offload_param = OffloadDevice::none;
  double offload_param_ratio = 1.0;
  OffloadDevice offload_optimizer = OffloadDevice::none;
  double offload_optimizer_ratio = 1.0;
  std::int64_t persistence_threshold = 0;  // elements; layers at or below stay on the device
  OffloadDevice offload_gradients = OffloadDevice::cpu;  // finished ones, of layers that are updated on the host
  OffloadDevice offload_activations = OffloadDevice::none;
  int rank = 0;
  int world_size = 1;
  int hpz_partition_size = 1;      // ranks that shard among themselves, from stage 1 on; 1: all
  std::int64_t reduce_bucket_size = 500'000'000;     // elements
  std::int64_t allgather_bucket_size = 500'000'000;
  std::int64_t prefetch_bucket_size = 50'000'000;
  std::int64_t max_reuse_distance = 1'000'000'000;
  bool overlap_comm = true;
  std::int64_t snapshot_bytes = 0;  // host memory for the state on its way to a checkpoint; 0: no snapshots in a step
  std::array<std::optional<std::int64_t>, kTiers> budgets;
};

// The request for a model under a configuration. `layers` are make_layers()'s; request.layers_for borrows them.
PlanRequest make_request(const Config& config, const ModelSpec& spec,
                         const std::vector<std::unique_ptr<Layer>>& layers, std::int64_t sequence_length,
                         const ScratchSizes& scratch);

struct Plan {
  PlanRequest request;
  std::vector<Buffer> buffers;
  std::vector<LayerPlan> layers;
  std::vector<TilePlan> tiles;
  std::vector<ExtentPlan> extents;
  std::vector<WeightsChunk> weights_chunks;
  std::vector<SnapshotPlan> snapshots;       // in the order of the step's snapshot tasks
  std::vector<CollectivePlan> collectives;
  std::int64_t partition_size = 1;           // ranks that share state among themselves; the others are replicas
  Program step;
  Program evaluation;
  std::array<TierUse, kTiers> tiers;
  int batch_buffer = -1;             // host: micro-batch after micro-batch, tokens then targets, int32; read in place
  int statistics_buffer = -1;        // host copy of the device's: losses (one f64 per micro-batch), then square sums
  int host_square_sums_buffer = -1;  // square sums of layers the cpu lane finalises; -1: none
  int verdict_buffer = -1;           // host: stands for what the gate decides and later tasks obey
  int world_statistics_buffer = -1;  // host: a WorldStatistics per rank; -1 in a world of one
  int gradient_piece_buffer = -1;    // host: kNormPiece f32, where the gate looks at gradients
  int gradient_tile_buffer = -1;     // host: one tile of a gradient on NVMe, likewise; -1: none is there
  int snapshot_buffer = -1;          // host: places for snapshots; -1: none
  int maintenance_buffer = -1;       // host: one tile's state, its moments as f32 if they are kept in another format,
                                     // and one tile's weights, for use between steps
  std::int64_t maintenance_moments_bytes = 0;  // of it, before the weights, those moments
  std::int64_t maintenance_weights_bytes = 0;  // of it, at its end, the weights
  std::uint64_t hash = 0;
  std::uint64_t common_hash = 0;     // of what all ranks must agree on: the collectives, in order, and what they serve

  bool fits() const;
  std::int64_t num_parameters() const;
  std::int64_t tokens_per_step() const;  // of all ranks
  std::int64_t state_bytes() const;  // 16-bit weights, f32 master, moments, finished gradients
};

// What a rank contributes to the gate of a step.
struct WorldStatistics {
  double loss_sum;
  double square_sum;          // of its slices of the gradient
  std::int64_t tokens;        // that have a target
  std::uint64_t flags;        // of the caller: see EngineOptions
};

// Bytes of a value per element of a tile as stored on NVMe, padded to a page: of its weights, of its gradient.
std::int64_t padded_bytes(const TilePlan& tile, DType dtype);

// Places, lowers, allocates and derives dependencies. The result may exceed the budgets: see fits().
// Under PlacementPolicy::fill, state sinks until it fits or nothing is left that may sink.
Plan build_plan(const PlanRequest& request);

// build_plan(), then the checks of check_plan() and the budgets. Throws MemoryError with the ledger and
// the changes that would make it fit.
Plan make_plan(const PlanRequest& request);

// Verifies a plan from the outside, sharing no code with what built it: every lane terminates; every
// read of a transient buffer has an earlier write; any two accesses to the same bytes of which one
// writes are ordered, within a run and across consecutive runs; every buffer lies inside its tier's
// peak. Returns the violations, one sentence each; empty means sound.
std::vector<std::string> check_plan(const Plan& plan);

// The ledger as text: per tier its rows, total and budget.
std::string ledger_text(const Plan& plan);

// The text of the refusal: ledger, what is missing, and up to three changes that were tried and fit.
std::string refusal_text(const Plan& plan);

}  // namespace spillway
