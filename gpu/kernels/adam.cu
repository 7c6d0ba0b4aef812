// The optimizer update for a tile whose state is on the device: the operations of adam_update() (spillway/cpu_adam.h),
// each rounded once and none fused, hence its bits. Square root and division are the correctly rounded ones, and
// subnormals are kept (nvcc's default; -ftz would lose them).
//
// 28 bytes an element with a 16-bit gradient and weight: memory is the limit, 0.9 of its bandwidth expected (1.5e11
// parameters a second at 4.8 TB/s).
#include "base/adam_scalars.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/vectors.h"

namespace spillway::cuda {

namespace {

using gpu::add_rn;
using gpu::mul_rn;

constexpr int kWidth = 4;  // 16 bytes of state

template <class Gradient, class Weight>
struct TypedTile {
  float* master;
  float* exp_avg;
  float* exp_avg_sq;
  const Gradient* gradient;
  Weight* weight;  // or nullptr
  std::int64_t n;
};

struct Element {
  float master, exp_avg, exp_avg_sq;
};

__device__ Element updated(const Element& before, float gradient, const AdamScalars& k) {
  float g = mul_rn(k.gradient_scale, gradient), master = before.master;
  if (k.decoupled) {
    master = mul_rn(master, k.decay_factor);
  } else {
    g = add_rn(g, mul_rn(k.weight_decay, master));
  }
  const float exp_avg = add_rn(mul_rn(k.beta1, before.exp_avg), mul_rn(k.one_minus_beta1, g));
  const float exp_avg_sq = add_rn(mul_rn(k.beta2, before.exp_avg_sq), mul_rn(mul_rn(k.one_minus_beta2, g), g));
  const float denominator = add_rn(gpu::div_rn(gpu::sqrt_rn(exp_avg_sq), k.sqrt_correction2), k.epsilon);
  return {gpu::sub_rn(master, gpu::div_rn(mul_rn(k.step_size, exp_avg), denominator)), exp_avg, exp_avg_sq};
}

template <class Gradient, class Weight, int width>
__global__ void __launch_bounds__(kElementThreads) adam_kernel(TypedTile<Gradient, Weight> tile, AdamScalars scalars) {
  for_each_vector<width>(tile.n, [&](std::int64_t i, std::int64_t count) {
    float master[width], exp_avg[width], exp_avg_sq[width], gradient[width];
    load(tile.master + i, count, master);
    load(tile.exp_avg + i, count, exp_avg);
    load(tile.exp_avg_sq + i, count, exp_avg_sq);
    load(tile.gradient + i, count, gradient);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      const Element after = updated({master[k], exp_avg[k], exp_avg_sq[k]}, gradient[k], scalars);
      master[k] = after.master;
      exp_avg[k] = after.exp_avg;
      exp_avg_sq[k] = after.exp_avg_sq;
    }
    store(master, tile.master + i, count);
    store(exp_avg, tile.exp_avg + i, count);
    store(exp_avg_sq, tile.exp_avg_sq + i, count);
    if (tile.weight != nullptr) store(master, tile.weight + i, count);
  });
}

template <class Gradient, class Weight>
void update(cudaStream_t stream, const AdamTile& tile, const AdamScalars& scalars) {
  const TypedTile<Gradient, Weight> typed{tile.master, tile.exp_avg, tile.exp_avg_sq, static_cast<const Gradient*>(tile.gradient),
                                          static_cast<Weight*>(tile.weight), tile.n};
  const bool aligned = is_aligned<kWidth>(typed.master) && is_aligned<kWidth>(typed.exp_avg) && is_aligned<kWidth>(typed.exp_avg_sq) &&
                       is_aligned<kWidth>(typed.gradient) && is_aligned<kWidth>(typed.weight);
  with_vectors_if<kWidth>(aligned, [&](auto width) {
    launch("adam", adam_kernel<Gradient, Weight, width>, element_shape(tile.n, width), stream, typed, scalars);
  });
}

}  // namespace

void adam(cudaStream_t stream, const AdamTile& tile, const AdamParams& params) {
  if (tile.n == 0) return;
  const AdamScalars scalars = adam_scalars(params);
  with_storage_type(tile.gradient_dtype, [&](auto gradient) {
    using Gradient = typename decltype(gradient)::type;
    // Without a weight its dtype means nothing: one kernel less for each.
    with_storage_type(tile.weight == nullptr ? DType::f32 : tile.weight_dtype, [&](auto weight) {
      update<Gradient, typename decltype(weight)::type>(stream, tile, scalars);
    });
  });
}

}  // namespace spillway::cuda
