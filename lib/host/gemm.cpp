// Matrix products: a fixed two-level partition around single-threaded sgemm.
//
// The result is cut into blocks and the sums into chunks, all bounded, so that the f32 copies of the
// operands (panels) and of the result (sums) are bounded too. Within a block and chunk, pieces of the
// result go to the threads; every piece is one sgemm call. Chunks follow one another, so each element
// is summed in one order, whatever the number of threads.
#include "host/gemm.h"

#include <cassert>
#include <type_traits>
#include <utility>

#include "base/parallel.h"
#include "base/clones.h"
#include "host/dtype_of.h"
#include "host/partition.h"

namespace spillway::host {

namespace {

constexpr std::int64_t kBlockRows = 512, kBlockColumns = 1024, kChunk = 1024;  // 2 + 4 + 2 MiB of f32
constexpr std::int64_t kPieceRows = 128, kPieceColumns = 256;
constexpr std::int64_t kGrain = 16;  // floats in the widest vector

struct Partition {
  Cut rows, columns, sums;

  explicit constexpr Partition(const GemmShape& shape)
      : rows(cut_evenly(shape.m, kBlockRows, kGrain)),
        columns(cut_evenly(shape.n, kBlockColumns, kGrain)),
        sums(cut_evenly(shape.k, kChunk, kGrain)) {}

  constexpr std::int64_t a_elements() const { return rows.size * sums.size; }
  constexpr std::int64_t b_elements() const { return columns.size * sums.size; }
  constexpr std::int64_t sum_elements() const { return rows.size * columns.size; }
};

template <class T>
SPILLWAY_CLONES void widen(const T* __restrict in, float* __restrict out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = to_float(in[i]);
}

// One row of the result: out = sums (+ bias (+ residual)). `out` may be `residual` itself.
template <class T>
SPILLWAY_CLONES void round_row(const float* __restrict sums, const T* bias, const T* residual, T* out, std::int64_t n) {
  if (bias && residual) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) out[i] = from_float<T>(sums[i] + to_float(bias[i]) + to_float(residual[i]));
  } else if (bias) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) out[i] = from_float<T>(sums[i] + to_float(bias[i]));
  } else if (residual) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) out[i] = from_float<T>(sums[i] + to_float(residual[i]));
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i] = from_float<T>(sums[i]);
  }
}

struct F32Matrix {
  const float* data;
  std::int64_t ld;
};

// A rectangle of an operand and the room for its f32 copy. f32 operands are used where they lie.
template <class T>
class Panel {
 public:
  explicit Panel(float* room) : room_(room) {}

  // Points the panel at a rectangle; the same rectangle again costs nothing.
  void select(const T* data, std::int64_t ld, std::int64_t rows, std::int64_t columns) {
    stale_ = stale_ || data != data_ || rows != cut_.total || columns != columns_;
    data_ = data;
    ld_ = ld;
    columns_ = columns;
    cut_ = cut_rows(rows, columns);
  }

  std::int64_t stale_pieces() const { return !std::is_same_v<T, float> && stale_ ? cut_.count() : 0; }

  void widen_piece(std::int64_t piece) const {
    const std::int64_t first = cut_.begin(piece);
    for (std::int64_t row = first; row < first + cut_.length(piece); ++row)
      widen(data_ + row * ld_, room_ + row * columns_, columns_);
  }

  void mark_fresh() { stale_ = false; }

  F32Matrix matrix() const {
    if constexpr (std::is_same_v<T, float>)
      return {data_, ld_};
    else
      return {room_, columns_};
  }

 private:
  float* room_;
  const T* data_ = nullptr;
  std::int64_t ld_ = 0, columns_ = 0;
  Cut cut_{0, 1};
  bool stale_ = true;
};

struct Range {
  std::int64_t begin, length;
};

template <class T>
void select(Panel<T>& panel, Transposed transposed, const T* data, std::int64_t ld, Range outer, Range inner) {
  if (transposed == Transposed::yes) std::swap(outer, inner);
  panel.select(data + outer.begin * ld + inner.begin, ld, outer.length, inner.length);
}

template <class A, class B>
void widen_panels(Panel<A>& a, Panel<B>& b) {
  const std::int64_t a_pieces = a.stale_pieces();
  parallel_for(a_pieces + b.stale_pieces(), [&](std::int64_t piece) {
    if (piece < a_pieces)
      a.widen_piece(piece);
    else
      b.widen_piece(piece - a_pieces);
  });
  a.mark_fresh();
  b.mark_fresh();
}

template <class A, class B, class C>
GemmResult result_kind(const Gemm<A, B, C>& op) {
  return std::is_same_v<C, float> && !op.bias && !op.residual ? GemmResult::plain_f32 : GemmResult::rounded;
}

// One block of the result, one chunk of the sums.
struct BlockStep {
  Range rows, columns, sums;
  bool first, last;  // chunk
};

template <class A, class B, class C>
void multiply_block(const Gemm<A, B, C>& op, const F32Matrix& a, const F32Matrix& b, float* sums, const BlockStep& step) {
  const bool plain = result_kind(op) == GemmResult::plain_f32;  // sums form in c itself
  const Cut row_cut = cut_evenly(step.rows.length, kPieceRows, kGrain);
  const Cut column_cut = cut_evenly(step.columns.length, kPieceColumns, kGrain);
  parallel_for(row_cut.count() * column_cut.count(), [&](std::int64_t piece) {
    const std::int64_t row_piece = piece / column_cut.count(), column_piece = piece % column_cut.count();
    const std::int64_t row = row_cut.begin(row_piece), rows = row_cut.length(row_piece);
    const std::int64_t column = column_cut.begin(column_piece), columns = column_cut.length(column_piece);
    C* const out = op.c + (step.rows.begin + row) * op.ldc + step.columns.begin + column;
    float* piece_sums = sums + row * step.columns.length + column;
    std::int64_t ld = step.columns.length;
    if constexpr (std::is_same_v<C, float>) {
      if (plain) {
        piece_sums = out;
        ld = op.ldc;
      }
    }
    sgemm(op.a_transposed, op.b_transposed, rows, columns, step.sums.length, 1.0f,
          a.data + (op.a_transposed == Transposed::yes ? row : row * a.ld), a.ld,
          b.data + (op.b_transposed == Transposed::yes ? column * b.ld : column), b.ld,
          step.first && !op.add_to_c ? 0.0f : 1.0f, piece_sums, ld);
    if (plain || !step.last) return;
    for (std::int64_t i = 0; i < rows; ++i)
      round_row<C>(piece_sums + i * ld, op.bias ? op.bias + step.columns.begin + column : nullptr,
                   op.residual ? op.residual + (out - op.c) + i * op.ldc : nullptr, out + i * op.ldc, columns);
  });
}

}  // namespace

std::int64_t gemm_scratch_bytes(const GemmShape& shape, DType a, DType b, GemmResult result) {
  const Partition partition(shape);
  std::int64_t elements = 0;
  if (a != DType::f32) elements += partition.a_elements();
  if (b != DType::f32) elements += partition.b_elements();
  if (result == GemmResult::rounded) elements += partition.sum_elements();
  return elements * size_of(DType::f32);
}

template <class A, class B, class C>
void gemm(const Gemm<A, B, C>& op) {
  const Partition partition(op.shape);
  assert(!op.add_to_c || result_kind(op) == GemmResult::plain_f32);
  assert(static_cast<std::int64_t>(op.scratch.size()) >=
         gemm_scratch_bytes(op.shape, dtype_of<A>, dtype_of<B>, result_kind(op)));
  float* const a_room = reinterpret_cast<float*>(op.scratch.data());
  float* const b_room = a_room + (std::is_same_v<A, float> ? 0 : partition.a_elements());
  float* const sums = b_room + (std::is_same_v<B, float> ? 0 : partition.b_elements());
  Panel<A> a(a_room);
  Panel<B> b(b_room);
  for (std::int64_t i = 0; i < partition.rows.count(); ++i)
    for (std::int64_t j = 0; j < partition.columns.count(); ++j)
      for (std::int64_t l = 0; l < partition.sums.count(); ++l) {
        const BlockStep step{{partition.rows.begin(i), partition.rows.length(i)},
                             {partition.columns.begin(j), partition.columns.length(j)},
                             {partition.sums.begin(l), partition.sums.length(l)},
                             l == 0,
                             l + 1 == partition.sums.count()};
        select(a, op.a_transposed, op.a, op.lda, step.rows, step.sums);
        select(b, op.b_transposed, op.b, op.ldb, step.sums, step.columns);
        widen_panels(a, b);
        multiply_block(op, a.matrix(), b.matrix(), sums, step);
      }
}

template void gemm(const Gemm<float, float, float>&);
template void gemm(const Gemm<bf16, bf16, bf16>&);
template void gemm(const Gemm<bf16, bf16, float>&);
template void gemm(const Gemm<float, bf16, bf16>&);
template void gemm(const Gemm<float, bf16, float>&);
template void gemm(const Gemm<f16, f16, f16>&);
template void gemm(const Gemm<f16, f16, float>&);
template void gemm(const Gemm<float, f16, f16>&);
template void gemm(const Gemm<float, f16, float>&);

}  // namespace spillway::host
