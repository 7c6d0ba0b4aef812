// What a model is to the rest of Spillway: a shape, and an ordered list of layers, each with one flat
// buffer of parameters. Nothing here knows where anything lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/dtype.h"

namespace spillway {

class Ops;
class Stream;
struct ScratchSizes;

// A GPT-2-shaped decoder: learned positions, pre-LayerNorm, GELU, causal attention, tied head.
struct ModelSpec {
  std::string name;
  std::int64_t layers = 0;      // transformer blocks
  std::int64_t channels = 0;    // width; a multiple of heads
  std::int64_t heads = 0;
  std::int64_t vocabulary = 0;  // token ids are 0 .. vocabulary-1
  std::int64_t context = 0;     // longest sequence (rows of the position table)
  std::int64_t mlp_channels = 0;  // hidden width of the MLP; 0: 4 * channels
  float layernorm_epsilon = 1e-5f;

  bool operator==(const ModelSpec&) const = default;
};

// The named shapes: gpt2-tiny, gpt2-10m, gpt2, gpt2-medium, gpt2-large, gpt2-xl.
// Throws ConfigError naming the closest preset for an unknown name.
ModelSpec model_preset(std::string_view name);
std::span<const std::string_view> model_preset_names();

// Throws ConfigError that names the field, the value and what is allowed.
void validate(const ModelSpec& spec);

enum class ParamInit : std::uint8_t { zeros, ones, normal };

// Elements [begin, end) of a flat buffer.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  bool operator==(const ElementRange&) const = default;
};

// One named tensor inside a layer's flat buffer.
struct ParamSpec {
  std::string name;                // as in GPT-2's public checkpoints: "h.0.attn.c_attn.weight"
  std::vector<std::int64_t> shape;  // matrices are (outputs, inputs)
  std::int64_t offset;             // first element within the layer's flat buffer
  std::int64_t num_elements;
  ParamInit init;
  float stddev;                    // of ParamInit::normal
  bool trainable = true;           // false: it keeps its values; no optimizer state, no gradient traffic
};

enum class LayerKind : std::uint8_t { embedding, block, head };

// B sequences of T tokens; T <= ModelSpec::context.
struct BatchShape {
  std::int64_t batch;
  std::int64_t time;
};

// Forward of one layer. All pointers are device memory, of the Ops' dtype unless typed; tokens and targets are
// pinned host memory that kernels read in place. The workspace starts at a multiple of 64 bytes.
struct ForwardArgs {
  Ops& ops;
  Stream& stream;
  BatchShape shape;
  const void* weights;        // this layer's flat buffer
  const void* tied_weights;   // the flat buffer of tied_layer(), else nullptr
  const std::int32_t* tokens;   // (B, T); embedding only
  const std::int32_t* targets;  // (B, T); head only
  const void* x;              // (B, T, C) input activation; nullptr for the embedding
  void* y;                    // (B, T, C) output activation; nullptr for the head
  double* loss_sum;           // (1) f64, sum of token losses; head only
  std::span<std::byte> workspace;  // workspace_bytes(Pass::forward, ...)
};

// Backward of one layer, recomputing what it needs from x. The head's backward includes its forward.
struct BackwardArgs {
  Ops& ops;
  Stream& stream;
  BatchShape shape;
  const void* weights;
  const void* tied_weights;
  const std::int32_t* tokens;   // embedding only
  const std::int32_t* targets;  // head only
  const void* x;              // (B, T, C) the same input as forward's; nullptr for the embedding
  const void* dy;             // (B, T, C) gradient of the output; nullptr for the head
  void* dx;                   // (B, T, C) gradient of the input; nullptr for the embedding; may alias dy
  float* gradient;            // (num_elements) f32, this layer's flat gradient; overwritten, except that
                              // the embedding adds to the part another layer's tied_gradient wrote
  float* tied_gradient;       // flat gradient of tied_layer(): the tied part is overwritten; else nullptr
  float gradient_scale;       // head only: factor on the gradient of one token's loss
  double* loss_sum;           // (1) f64; head only
  std::span<std::byte> workspace;  // workspace_bytes(Pass::backward, ...)
};

enum class Pass : std::uint8_t { forward, backward };

// The unit that is gathered and released. Immutable after construction; thread-safe.
class Layer {
 public:
  virtual ~Layer() = default;

  virtual const std::string& name() const = 0;  // "embedding", "block 3", "head"
  virtual LayerKind kind() const = 0;
  virtual std::span<const ParamSpec> params() const = 0;  // in flat order, without gaps
  virtual std::int64_t num_elements() const = 0;

  // Elements [0, trainable_elements()) of the flat buffer are trained, those behind them are frozen. Backward writes
  // the gradient of both.
  virtual std::int64_t trainable_elements() const = 0;

  // Index of the layer whose weights this one also reads and whose gradient it also writes; -1: none.
  virtual int tied_layer() const = 0;

  // Device bytes of temporaries in one call. Pure.
  virtual std::int64_t workspace_bytes(Pass pass, const BatchShape& shape, DType dtype,
                                       const ScratchSizes& scratch) const = 0;

  // Multiply-adds counted as 2, of the matrix products (and attention) in one call.
  virtual double flops(Pass pass, const BatchShape& shape) const = 0;

  virtual void forward(const ForwardArgs& args) const = 0;
  virtual void backward(const BackwardArgs& args) const = 0;
};

// The layers in forward order: embedding, blocks, head. Throws ConfigError from validate().
// Parameters whose name matches one of `frozen_patterns` (* stands for any characters, ? for one) are frozen: they lie
// behind the others in their layer's flat buffer, otherwise the order is the same. Throws ConfigError for a pattern
// that matches none, and when nothing is left to train. Without patterns everything is trained.
std::vector<std::unique_ptr<Layer>> make_layers(const ModelSpec& spec);
std::vector<std::unique_ptr<Layer>> make_layers(const ModelSpec& spec, std::span<const std::string> frozen_patterns);

// The initial value of elements [begin, begin + out.size()) of a parameter: a function of the seed, the
// parameter's name and the element's index alone, so that any placement and any tile size starts alike.
void initial_values(const ParamSpec& param, std::uint64_t seed, std::int64_t begin, std::span<float> out);

}  // namespace spillway
