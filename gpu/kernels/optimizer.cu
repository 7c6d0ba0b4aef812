// The optimizers' update for a tile whose state is on the device: the bits of optimizer_update() (spillway/optimizer.h).
//
// Memory is the limit: Adam moves 28 bytes an element with a 16-bit gradient and weight, 0.9 of the bandwidth expected
// (1.5e11 parameters a second at 4.8 TB/s); with 8-bit moments 16, at 0.7, since a block's codes wait for its largest value.
#include <algorithm>
#include <cassert>
#include <cstdint>
#include <type_traits>

#include "base/optimizer_scalars.h"
#include "base/stochastic_rounding.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/moment_formats.h"
#include "gpu/kernels/optimizer_rules.h"
#include "gpu/kernels/vectors.h"
#include "intrinsics/warp.h"

namespace spillway::cuda {

namespace {

// Elements of a thread. Of 8-bit moments a warp takes a block.
template <MomentFormat format>
inline constexpr int kWidth = format == MomentFormat::block8 ? static_cast<int>(kMomentBlock) / gpu::kWarpSize : 4;

struct DeviceTile {
  float* master;
  void* moments[kMaxMoments];
  std::uint8_t* scales[kMaxMoments];
  const void* gradient;
  void* weight;  // or nullptr
  std::int64_t n;
  std::uint32_t position;
  DType gradient_dtype, weight_dtype;
};

// As load() and store(); without `vectors` element by element.
template <bool vectors, int width, class T>
__device__ void load_values(const T* from, std::int64_t count, float (&values)[width]) {
  if constexpr (vectors) {
    load(from, count, values);
  } else {
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] = k < count ? to_float(from[k]) : 0.0f;
  }
}

template <bool vectors, int width, class T>
__device__ void store_values(const float (&values)[width], T* to, std::int64_t count) {
  if constexpr (vectors) {
    store(values, to, count);
  } else {
#pragma unroll
    for (int k = 0; k < width; ++k) {
      if (k < count) to[k] = from_float<T>(values[k]);
    }
  }
}

// Bits that are no number.
template <bool vectors, int width, class T>
__device__ void store_bits(const T (&bits)[width], T* to, std::int64_t count) {
  if (vectors && count >= width) {
    Vector<T, width> vector;
#pragma unroll
    for (int k = 0; k < width; ++k) vector.values[k] = bits[k];
    *reinterpret_cast<Vector<T, width>*>(to) = vector;
  } else {
#pragma unroll
    for (int k = 0; k < width; ++k) {
      if (k < count) to[k] = bits[k];
    }
  }
}

// The dtypes are the same for the whole launch, and a kernel that waits for memory has time to ask.
template <bool vectors, int width>
__device__ void load_gradient(const DeviceTile& tile, std::int64_t i, std::int64_t count, float (&values)[width]) {
  switch (tile.gradient_dtype) {
    case DType::f32: return load_values<vectors>(static_cast<const float*>(tile.gradient) + i, count, values);
    case DType::bf16: return load_values<vectors>(static_cast<const __nv_bfloat16*>(tile.gradient) + i, count, values);
    case DType::f16: return load_values<vectors>(static_cast<const __half*>(tile.gradient) + i, count, values);
  }
}

template <bool vectors, int width>
__device__ void store_weight(const float (&values)[width], const DeviceTile& tile, std::int64_t i, std::int64_t count) {
  if (tile.weight == nullptr) return;
  switch (tile.weight_dtype) {
    case DType::f32: return store_values<vectors>(values, static_cast<float*>(tile.weight) + i, count);
    case DType::bf16: return store_values<vectors>(values, static_cast<__nv_bfloat16*>(tile.weight) + i, count);
    case DType::f16: return store_values<vectors>(values, static_cast<__half*>(tile.weight) + i, count);
  }
}

// Elements i to i + count - 1, whose moments are at hand.
template <OptimizerKind kind, bool vectors, int width>
__device__ void update_elements(const DeviceTile& tile, const OptimizerScalars& scalars, std::int64_t i, std::int64_t count,
                                float (&first)[width], float (&second)[width]) {
  float master[width], gradient[width];
  load_values<vectors>(tile.master + i, count, master);
  load_gradient<vectors>(tile, i, count, gradient);
#pragma unroll
  for (int k = 0; k < width; ++k) {
    Elements e{master[k], gpu::mul_rn(scalars.gradient_scale, gradient[k]), first[k], second[k]};
    UpdateRule<kind>::apply(scalars, e);
    master[k] = e.master;
    first[k] = e.first;
    second[k] = e.second;
  }
  store_values<vectors>(master, tile.master + i, count);
  store_weight<vectors>(master, tile, i, count);
}

__device__ unsigned random_bits(const DeviceTile& tile, const OptimizerScalars& scalars, std::int64_t i) {
  return rounding_bits(scalars.keys, tile.position + static_cast<std::uint32_t>(i));
}

template <MomentFormat format, bool vectors, int width>
__device__ void load_moment(const void* moment, std::int64_t i, std::int64_t count, float (&values)[width]) {
  using T = std::conditional_t<format == MomentFormat::bf16, __nv_bfloat16, float>;
  load_values<vectors>(static_cast<const T*>(moment) + i, count, values);
}

template <int moment, MomentFormat format, bool vectors, int width>
__device__ void store_moment(const float (&values)[width], const DeviceTile& tile, const OptimizerScalars& scalars, std::int64_t i,
                             std::int64_t count) {
  if constexpr (format == MomentFormat::bf16) {
    std::uint16_t bits[width];
#pragma unroll
    for (int k = 0; k < width; ++k) bits[k] = stochastic_bf16(values[k], bits_of_moment<moment>(random_bits(tile, scalars, i + k)));
    store_bits<vectors>(bits, static_cast<std::uint16_t*>(tile.moments[moment]) + i, count);
  } else {
    store_values<vectors>(values, static_cast<float*>(tile.moments[moment]) + i, count);
  }
}

template <OptimizerKind kind, MomentFormat format, bool vectors>
__global__ void __launch_bounds__(kElementThreads) update_kernel(DeviceTile tile, OptimizerScalars scalars) {
  constexpr int width = kWidth<format>, kMoments = UpdateRule<kind>::kMoments;
  for_each_vector<width>(tile.n, [&](std::int64_t i, std::int64_t count) {
    float first[width] = {}, second[width] = {};
    if constexpr (kMoments > 0) load_moment<format, vectors>(tile.moments[0], i, count, first);
    if constexpr (kMoments > 1) load_moment<format, vectors>(tile.moments[1], i, count, second);
    update_elements<kind, vectors>(tile, scalars, i, count, first, second);
    if constexpr (kMoments > 0) store_moment<0, format, vectors>(first, tile, scalars, i, count);
    if constexpr (kMoments > 1) store_moment<1, format, vectors>(second, tile, scalars, i, count);
  });
}

template <MomentLaw law, bool vectors, int width>
__device__ void load_codes(const std::uint8_t* codes, std::int64_t count, std::uint8_t scale_byte, float (&values)[width]) {
  const float scale = scale_of(scale_byte);
  if (vectors && count >= width) {
    const Vector<std::uint8_t, width> vector = load_vector<width>(codes);
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] = decode<law>(vector.values[k], scale);
  } else {
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] = k < count ? decode<law>(codes[k], scale) : 0.0f;
  }
}

// The warp's block: its scale from the largest of the lanes' values, and each lane's codes. Behind the tile's end values are
// zeros, since the update of nothing by no gradient is nothing.
template <int moment, MomentLaw law, bool vectors, int width>
__device__ void store_codes(const float (&values)[width], const DeviceTile& tile, const OptimizerScalars& scalars, std::int64_t block,
                            std::int64_t i, std::int64_t count) {
  float largest = 0.0f;
#pragma unroll
  for (int k = 0; k < width; ++k) {
    largest = fmaxf(largest, values[k] == values[k] ? magnitude(values[k]) : __uint_as_float(0x7f800000u));
  }
  const BlockScale scale = block_scale<law>(gpu::warp_max(largest));
  if (gpu::lane_index() == 0) tile.scales[moment][block] = scale.byte;
  std::uint8_t codes[width];
#pragma unroll
  for (int k = 0; k < width; ++k) codes[k] = encode<law>(values[k], bits_of_moment<moment>(random_bits(tile, scalars, i + k)), scale);
  store_bits<vectors>(codes, static_cast<std::uint8_t*>(tile.moments[moment]) + i, count);
}

template <OptimizerKind kind, bool vectors>
__global__ void __launch_bounds__(kElementThreads) update_blocks_kernel(DeviceTile tile, OptimizerScalars scalars) {
  using Rule = UpdateRule<kind>;
  constexpr int width = kWidth<MomentFormat::block8>;
  constexpr unsigned kWarps = kElementThreads / gpu::kWarpSize;
  const std::int64_t blocks = (tile.n + kMomentBlock - 1) / kMomentBlock;
  for (std::int64_t block = std::int64_t{blockIdx.x} * kWarps + gpu::warp_index(); block < blocks; block += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t i = block * kMomentBlock + gpu::lane_index() * width, count = tile.n - i;  // none or less: the last block is short
    const auto codes = [&](int moment) { return static_cast<const std::uint8_t*>(tile.moments[moment]) + i; };
    float first[width], second[width] = {};
    load_codes<Rule::kLaws[0], vectors>(codes(0), count, tile.scales[0][block], first);
    if constexpr (Rule::kMoments > 1) load_codes<Rule::kLaws[1], vectors>(codes(1), count, tile.scales[1][block], second);
    update_elements<kind, vectors>(tile, scalars, i, count, first, second);
    store_codes<0, Rule::kLaws[0], vectors>(first, tile, scalars, block, i, count);
    if constexpr (Rule::kMoments > 1) store_codes<1, Rule::kLaws[1], vectors>(second, tile, scalars, block, i, count);
  }
}

template <OptimizerKind kind, MomentFormat format, bool vectors>
void launch_update(cudaStream_t stream, const DeviceTile& tile, const OptimizerScalars& scalars) {
  const LaunchShape shape = element_shape(tile.n, kWidth<format>);
  if constexpr (format == MomentFormat::block8) {
    launch("optimizer update", update_blocks_kernel<kind, vectors>, shape, stream, tile, scalars);
  } else {
    launch("optimizer update", update_kernel<kind, format, vectors>, shape, stream, tile, scalars);
  }
}

template <OptimizerKind kind, MomentFormat format>
void update(cudaStream_t stream, const DeviceTile& tile, const OptimizerScalars& scalars) {
  constexpr int width = kWidth<format>;
  const auto aligned = [](const void* array, DType dtype) {
    return dtype == DType::f32 ? is_aligned<width>(static_cast<const float*>(array)) : is_aligned<width>(static_cast<const std::uint16_t*>(array));
  };
  bool vectors = aligned(tile.master, DType::f32) && aligned(tile.gradient, tile.gradient_dtype) && aligned(tile.weight, tile.weight_dtype);
  for (int moment = 0; moment < UpdateRule<kind>::kMoments; ++moment) {
    using T = std::conditional_t<format == MomentFormat::f32, float, std::conditional_t<format == MomentFormat::bf16, std::uint16_t, std::uint8_t>>;
    vectors = vectors && is_aligned<width>(static_cast<const T*>(tile.moments[moment]));
  }
  vectors ? launch_update<kind, format, true>(stream, tile, scalars) : launch_update<kind, format, false>(stream, tile, scalars);
}

template <OptimizerKind kind>
void update_kind(cudaStream_t stream, MomentFormat format, const DeviceTile& tile, const OptimizerScalars& scalars) {
  if constexpr (UpdateRule<kind>::kMoments == 0) {
    update<kind, MomentFormat::f32>(stream, tile, scalars);
  } else {
    switch (format) {
      case MomentFormat::f32: return update<kind, MomentFormat::f32>(stream, tile, scalars);
      case MomentFormat::bf16: return update<kind, MomentFormat::bf16>(stream, tile, scalars);
      case MomentFormat::block8: return update<kind, MomentFormat::block8>(stream, tile, scalars);
    }
  }
}

// Of positions that agree in their upper 32 bits, which share their keys.
void update_part(cudaStream_t stream, const OptimizerTile& t, const OptimizerParams& params) {
  const OptimizerScalars scalars = optimizer_scalars(params, t.position);
  const DeviceTile tile{t.master, {t.moments[0], t.moments[1]}, {t.scales[0], t.scales[1]}, t.gradient, t.weight, t.n,
                        static_cast<std::uint32_t>(t.position), t.gradient_dtype, t.weight_dtype};
  switch (params.kind) {
    case OptimizerKind::adam: return update_kind<OptimizerKind::adam>(stream, t.moment_format, tile, scalars);
    case OptimizerKind::adagrad: return update_kind<OptimizerKind::adagrad>(stream, t.moment_format, tile, scalars);
    case OptimizerKind::lion: return update_kind<OptimizerKind::lion>(stream, t.moment_format, tile, scalars);
    case OptimizerKind::sgd: return update_kind<OptimizerKind::sgd>(stream, t.moment_format, tile, scalars);
    case OptimizerKind::sgd_momentum: return update_kind<OptimizerKind::sgd_momentum>(stream, t.moment_format, tile, scalars);
  }
}

}  // namespace

void optimizer_update(cudaStream_t stream, const OptimizerTile& tile, const OptimizerParams& params) {
  assert(tile.n == 0 || (tile.master != nullptr && tile.master_low == nullptr));
  assert(tile.statistics == nullptr);
  constexpr std::uint64_t kSharedKeys = std::uint64_t{1} << 32;
  for (std::int64_t first = 0; first < tile.n;) {
    const std::uint64_t left = kSharedKeys - (tile.position + static_cast<std::uint64_t>(first)) % kSharedKeys;
    const std::int64_t n = std::min(tile.n - first, static_cast<std::int64_t>(left));
    update_part(stream, part_of(tile, first, n), params);
    first += n;
  }
}

}  // namespace spillway::cuda
