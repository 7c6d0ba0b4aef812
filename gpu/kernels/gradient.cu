// Gradient bookkeeping: accumulation over micro-batches, and rounding to the wire dtype with the square sums of the
// global norm.
//
// A warp takes a piece of kNormPiece elements: its 32 lanes are the 32 lanes that lib/host/gradient.cpp defines the sum
// by, so the bits are the host's. The square of an f32 is exact in f64, so that fusing it with the addition changes nothing.
//
// Accumulation moves 12 bytes an element, finalizing 4 and the stored dtype's 2 or 4: 0.9 of the bandwidth expected. A
// lane's 128 additions follow one another, about 1 us; for the latency of memory not to be added at each of them, a lane
// has kUnrolled loads on their way at once.
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/vectors.h"
#include "intrinsics/warp.h"

namespace spillway::cuda {

namespace {

constexpr int kAddWidth = kVectorWidth<float>;
constexpr int kWarpsPerBlock = 4;
constexpr int kUnrolled = 16;

template <int width>
__global__ void __launch_bounds__(kElementThreads) accumulate_kernel(float* accumulator, const float* gradient, std::int64_t n) {
  for_each_vector<width>(n, [&](std::int64_t i, std::int64_t count) {
    float sum[width], added[width];
    load(accumulator + i, count, sum);
    load(gradient + i, count, added);
#pragma unroll
    for (int k = 0; k < width; ++k) sum[k] = gpu::add_rn(sum[k], added[k]);
    store(sum, accumulator + i, count);
  });
}

// Rounds to Wire, writes as Out. `out` may be `accumulated`.
template <class Wire, class Out>
__global__ void __launch_bounds__(kWarpsPerBlock* gpu::kWarpSize)
    finalize_kernel(const float* accumulated, Out* out, double* square_sums, std::int64_t n) {
  const std::int64_t piece = std::int64_t{blockIdx.x} * kWarpsPerBlock + gpu::warp_index();
  const std::int64_t end = (piece + 1) * kNormPiece < n ? (piece + 1) * kNormPiece : n;
  double sum = 0.0;
  for (std::int64_t i = piece * kNormPiece + gpu::lane_index(); i < end; i += kUnrolled * gpu::kWarpSize) {
    float values[kUnrolled];
#pragma unroll
    for (int k = 0; k < kUnrolled; ++k) {
      const std::int64_t at = i + k * gpu::kWarpSize;
      values[k] = at < end ? accumulated[at] : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < kUnrolled; ++k) {
      const std::int64_t at = i + k * gpu::kWarpSize;
      if (at < end) {
        const float rounded = to_float(from_float<Wire>(values[k]));
        out[at] = from_float<Out>(rounded);
        sum = gpu::fma_rn(double{rounded}, double{rounded}, sum);
      }
    }
  }
  for (unsigned width = gpu::kWarpSize / 2; width > 0; width /= 2) sum = gpu::add_rn(sum, gpu::shuffle_down(sum, width));
  if (piece * kNormPiece < n && gpu::lane_index() == 0) square_sums[piece] = sum;
}

template <class Wire, class Out>
void finalize(cudaStream_t stream, const FinalizeGradient& op) {
  const auto blocks = static_cast<unsigned>(divide_up(norm_pieces(op.n), kWarpsPerBlock));
  launch("finalize_gradient", finalize_kernel<Wire, Out>, LaunchShape{dim3(blocks), dim3(kWarpsPerBlock * gpu::kWarpSize)}, stream,
         op.accumulated, static_cast<Out*>(op.out), op.square_sums, op.n);
}

}  // namespace

void accumulate(cudaStream_t stream, float* accumulator, const float* gradient, std::int64_t n) {
  if (n == 0) return;
  with_vectors_if<kAddWidth>(is_aligned<kAddWidth>(accumulator) && is_aligned<kAddWidth>(gradient), [&](auto width) {
    launch("accumulate", accumulate_kernel<width>, element_shape(n, width), stream, accumulator, gradient, n);
  });
}

void finalize_gradient(cudaStream_t stream, const FinalizeGradient& op) {
  if (op.n == 0) return;
  with_storage_type(op.wire, [&](auto wire) {
    using Wire = typename decltype(wire)::type;
    if (op.out_dtype == DType::f32) {
      finalize<Wire, float>(stream, op);
    } else {
      finalize<Wire, Wire>(stream, op);
    }
  });
}

}  // namespace spillway::cuda
