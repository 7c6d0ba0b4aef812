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

#include "spillway/config.h"
#include "spillway/dtype.h"
#include "spillway/model.h"

namespace spillway {

enum class Tier : std::uint8_t { device, host, nvme };
inline constexpr int kTiers = 3;

std::string_view name_of(Tier tier);

// Every buffer starts on a multiple of this and takes whole ones: pages on the host and in the swap file
// (direct I/O); on the device, what any kernel wants.
constexpr std::int64_t alignment_of(Tier tier) { return tier == Tier::device ? 256 : 4096; }

// A resource that executes its tasks in plan order. The first four are streams of the device, the rest
// are threads of the host. The NVMe lanes keep several transfers in flight and retire them in order; weights have
// a lane of their own, so that what a forward waits for does not queue behind state that the optimizer will want.
enum class Lane : std::uint8_t { compute, h2d, d2h, comm, cpu, nvme_fetch, nvme_read, nvme_write };
inline constexpr int kLanes = 8;

constexpr bool is_stream(Lane lane) { return lane <= Lane::comm; }
constexpr bool is_nvme(Lane lane) { return lane >= Lane::nvme_fetch; }
std::string_view name_of(Lane lane);

enum class TaskKind : std::uint8_t {
  read_weights,     // nvme_fetch  a layer's weights to host staging
  gather,           // h2d         a layer's weights to the device
  forward,          // compute
  backward,         // compute     the head's includes its forward and the loss
  save_activation,  // d2h         a layer's input to host memory
  load_activation,  // h2d         and back
  drain_partial,    // d2h         one micro-batch's f32 gradient to the host accumulator or its staging
  accumulate,       // compute|cpu adds a micro-batch's f32 gradient to the accumulator
  finalize,         // compute|cpu rounds the gradient to the wire dtype, square sums on the way
  drain_gradient,   // d2h         the finished gradient to host memory, in the wire dtype
  drain_statistics, // d2h         square sums and losses
  gate,             // cpu         global norm, clip factor, overflow verdict, learning rate
  read_tile,        // nvme_read   a tile's optimizer state to the host ring
  update_tile,      // compute|cpu the optimizer
  write_tile,       // nvme_write  the state back
  publish,          // h2d|d2h     a tile's new 16-bit weights across the link
  write_weights,    // nvme_write  a tile's new 16-bit weights to NVMe
};

inline constexpr int kTaskKinds = static_cast<int>(TaskKind::write_weights) + 1;

std::string_view name_of(TaskKind kind);

// What the bytes of a buffer are, for the ledger.
enum class Owner : std::uint8_t {
  weights, optimizer_state, gradients, activations, workspace, staging, batch, statistics
};
inline constexpr int kOwners = 8;

std::string_view name_of(Owner owner);

// A range of one tier's arena (for nvme: of the swap file). Persistent buffers keep their bytes from
// step to step; the others live from their first to their last access in plan order.
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
  host_square_sums, verdict, state, new_weights, source, destination
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
  int tile = -1;
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

struct TilePlan {
  int layer;
  std::int64_t begin;   // elements of the layer's flat buffer
  std::int64_t end;
  Tier tier;            // of its optimizer state
  int state_buffer;     // persistent: master | first moment | second moment, each section_bytes() long
  int weights_extent;   // index into Plan::extents if the layer's weights are on NVMe, else -1
  int state_extent;     // likewise for the state

  std::int64_t num_elements() const { return end - begin; }
  // Each of the three sections of a tile's state starts on a page.
  std::int64_t section_bytes() const { return (num_elements() * 4 + 4095) / 4096 * 4096; }
  std::int64_t state_bytes() const { return 3 * section_bytes(); }
};

struct LayerPlan {
  std::string name;
  std::int64_t num_elements;
  Tier weights_tier;
  int weights_buffer;        // persistent, dtype of the model, flat
  bool update_on_device;     // where its optimizer runs
  DType gradient_dtype;      // storage of the finished gradient
  int first_tile;
  int num_tiles;
  std::int64_t first_piece;  // its first square sum, in doubles, within the statistics buffers
  bool square_sums_on_host;  // finalised by the cpu lane, else by the device
};

// One range of the swap file that is transferred whole.
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
  std::int64_t tile_size = 4 * 1024 * 1024;
  int prefetch_depth = 2;
  PlacementPolicy placement = PlacementPolicy::exact;
  int zero_stage = 0;
  OffloadDevice offload_param = OffloadDevice::none;
  double offload_param_ratio = 1.0;
  OffloadDevice offload_optimizer = OffloadDevice::none;
  double offload_optimizer_ratio = 1.0;
  std::int64_t persistence_threshold = 0;  // elements; layers at or below stay on the device
  bool activations_on_host = false;
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
  Program step;
  Program evaluation;
  std::array<TierUse, kTiers> tiers;
  int batch_buffer = -1;             // host: micro-batch after micro-batch, tokens then targets, int32; read in place
  int statistics_buffer = -1;        // host copy of the device's: losses (one f64 per micro-batch), then square sums
  int host_square_sums_buffer = -1;  // square sums of layers the cpu lane finalises; -1: none
  int verdict_buffer = -1;           // host: stands for what the gate decides and later tasks obey
  int maintenance_buffer = -1;       // host: one tile's state and one tile's weights, for use between steps
  std::uint64_t hash = 0;

  bool fits() const;
  std::int64_t num_parameters() const;
  std::int64_t state_bytes() const;  // 16-bit weights, f32 master and moments, finished gradients
};

// Bytes of a tile's 16-bit weights as stored, padded to a page.
std::int64_t padded_weight_bytes(const TilePlan& tile, DType dtype);

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
