// Asks the cuBLASLt it is linked with which products it accepts, and prints the lines of gpu/gemm_support.txt: on a card
// what NVIDIA's has, on the simulation what that file says.
#include <array>
#include <cstdio>
#include <string>

#include "cuda_sim/sample_device.h"
#include "gpu/gemm.h"

namespace {

using namespace spillway;
using cuda::Epilogue;

struct Kind {
  bool to_f32;
  bool a_transposed, b_transposed;  // row-major
  Epilogue epilogue;
  const char *operations, *epilogue_name;  // as cuBLASLt has them: B first
};

// What gpu/linear.cpp and gpu/loss_head.cpp ask for.
constexpr std::array kKinds{
    Kind{false, false, true, Epilogue::none, "TN", "none"},          Kind{false, false, false, Epilogue::none, "NN", "none"},
    Kind{true, false, true, Epilogue::none, "TN", "none"},           Kind{true, true, false, Epilogue::none, "NT", "none"},
    Kind{false, false, true, Epilogue::bias, "TN", "bias"},          Kind{false, false, true, Epilogue::gelu, "TN", "gelu"},
    Kind{false, false, true, Epilogue::bias_gelu, "TN", "bias_gelu"}, Kind{false, false, false, Epilogue::dgelu, "NN", "dgelu"},
};

constexpr std::int64_t kMatrixBytes = 1 << 20, kWorkspaceBytes = 32 << 20;  // a matrix is 288 x 288 at most
constexpr std::int64_t kMostAlignment = 64;

// Of matrices whose every address and row is a multiple of `alignment` bytes and of no more.
bool is_accepted(cuda::Gemm& gemm, cudaStream_t stream, std::byte* memory, DType dtype, const Kind& kind, std::int64_t alignment) {
  const std::int64_t size = 9 * alignment / size_of(dtype);  // rows and columns of square matrices
  const DType stored = kind.to_f32 ? DType::f32 : dtype;
  const auto place = [&](int index) { return memory + index * kMatrixBytes + alignment; };
  const bool with_bias = kind.epilogue == Epilogue::bias || kind.epilogue == Epilogue::bias_gelu;
  const bool with_aux = kind.epilogue != Epilogue::none && kind.epilogue != Epilogue::bias;
  const bool enqueued = gemm.try_multiply(stream, {.m = size,
                                                   .n = size,
                                                   .k = size,
                                                   .operands = dtype,
                                                   .stored = stored,
                                                   .a = {place(0), size, kind.a_transposed},
                                                   .b = {place(1), size, kind.b_transposed},
                                                   .result = place(2),
                                                   .ld = size,
                                                   .epilogue = kind.epilogue,
                                                   .bias = with_bias ? place(3) : nullptr,
                                                   .aux = with_aux ? place(4) : nullptr,
                                                   .workspace = {memory + 5 * kMatrixBytes, kWorkspaceBytes}});
  // That it runs is part of the answer.
  if (enqueued) sample::must(cudaStreamSynchronize(stream));
  return enqueued;
}

void print_line(cuda::Gemm& gemm, cudaStream_t stream, std::byte* memory, DType dtype, const Kind& kind) {
  // From best to worst, up to the first refusal.
  std::int64_t accepted = 0;
  for (std::int64_t alignment = kMostAlignment; alignment >= size_of(dtype); alignment /= 2) {
    if (!is_accepted(gemm, stream, memory, dtype, kind, alignment)) break;
    accepted = alignment;
  }
  if (accepted == 0) return;
  const std::string operands(name_of(dtype)), result(name_of(kind.to_f32 ? DType::f32 : dtype));
  std::printf("%-11s %-7s %-4s %-10s %lld\n", operands.c_str(), result.c_str(), kind.operations, kind.epilogue_name,
              static_cast<long long>(accepted));
}

}  // namespace

int main() {
  cuda::Gemm gemm;
  const sample::Stream stream;
  const sample::Device<std::byte> memory(5 * kMatrixBytes + kWorkspaceBytes);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Kind& kind : kKinds)
      // To f32 is what it is anyway: fp32's dweight, and no second line for its y.
      if (dtype != DType::f32 || !kind.to_f32 || kind.a_transposed) print_line(gemm, stream, memory, dtype, kind);
  return 0;
}
