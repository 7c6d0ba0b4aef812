// Products of matrices as gpu/gemm.cpp asks cuBLASLt for them, against the definition; and what the simulated library
// refuses and finds.
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include <cublasLt.h>
#include <gtest/gtest.h>

#include "cuda_sim/sample_device.h"
#include "gpu/gemm.h"
#include "spillway/error.h"
#include "support/kernel_check.h"

namespace {

int heuristics_asked = 0;

}  // namespace

// In place of the library's, which it calls: counts.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested, cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  static const auto library =
      reinterpret_cast<decltype(&cublasLtMatmulAlgoGetHeuristic)>(dlsym(RTLD_NEXT, "cublasLtMatmulAlgoGetHeuristic"));
  ++heuristics_asked;
  return library(handle, description, a, b, c, d, preference, requested, results, returned);
}

namespace spillway::cuda {
namespace {

using test::kDType;
using test::kRoundoff;

constexpr std::int64_t kWorkspaceBytes = 1 << 20;

template <class T>
class OnDevice {
 public:
  OnDevice(const std::vector<T>& values, cudaStream_t stream) : pinned_(values.size()), device_(values.size()), stream_(stream) {
    std::copy(values.begin(), values.end(), pinned_.values().begin());
    sample::upload<T>(device_, pinned_, stream);
  }
  T* data() const { return device_; }
  std::vector<double> read() {
    sample::download<T>(pinned_, device_, stream_);
    sample::must(cudaStreamSynchronize(stream_));
    return test::as_double(std::span<const T>(pinned_.values()));
  }

 private:
  sample::Pinned<T> pinned_;
  sample::Device<T> device_;
  cudaStream_t stream_;
};

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

double gelu_slope(double x, double step = 1e-5) { return (gelu(x + step) - gelu(x - step)) / (2 * step); }

// A kind of product and its operands: rows of a, b and the result lie further apart than they are long.
template <class T, class R>
struct Case {
  static constexpr std::int64_t m = 9, n = 24, k = 16, ld = 32;

  Case(bool a_is_transposed, bool b_is_transposed, Epilogue wanted, bool adds_to_itself)
      : a_transposed(a_is_transposed), b_transposed(b_is_transposed), epilogue(wanted), adds(adds_to_itself) {}

  double expected(std::int64_t i, std::int64_t j, const std::vector<double>& a, const std::vector<double>& b, const std::vector<double>& initial,
                  const std::vector<double>& bias, const std::vector<double>& aux) const {
    double sum = adds ? initial[i * ld + j] : 0.0;
    for (std::int64_t l = 0; l < k; ++l) sum += a[a_transposed ? l * ld + i : i * ld + l] * b[b_transposed ? j * ld + l : l * ld + j];
    if (epilogue == Epilogue::bias || epilogue == Epilogue::bias_gelu) sum += bias[j];
    if (epilogue == Epilogue::gelu || epilogue == Epilogue::bias_gelu) return gelu(sum);
    return epilogue == Epilogue::dgelu ? sum * gelu_slope(aux[i * ld + j]) : sum;
  }

  void run() {
    const sample::Stream stream;
    OnDevice<T> a(test::normal_values<T>(ld * ld, 1.0, 1), stream), b(test::normal_values<T>(ld * ld, 0.3, 2), stream);
    OnDevice<R> result(test::normal_values<R>(m * ld, 1.0, 3), stream), bias(test::normal_values<R>(n, 1.0, 4), stream);
    OnDevice<R> aux(test::normal_values<R>(m * ld, 1.0, 5), stream);
    const auto initial = result.read(), aux_before = aux.read();
    const sample::Device<std::byte> workspace(kWorkspaceBytes);
    const bool with_bias = epilogue == Epilogue::bias || epilogue == Epilogue::bias_gelu;
    const bool with_aux = epilogue != Epilogue::none && epilogue != Epilogue::bias;
    Gemm gemm;
    ASSERT_TRUE(gemm.try_multiply(stream, {.m = m,
                                           .n = n,
                                           .k = k,
                                           .operands = kDType<T>,
                                           .stored = kDType<R>,
                                           .a = {a.data(), ld, a_transposed},
                                           .b = {b.data(), ld, b_transposed},
                                           .result = result.data(),
                                           .ld = ld,
                                           .added = adds ? result.data() : nullptr,
                                           .epilogue = epilogue,
                                           .bias = with_bias ? bias.data() : nullptr,
                                           .aux = with_aux ? aux.data() : nullptr,
                                           .workspace = {static_cast<std::byte*>(workspace), kWorkspaceBytes}}));
    const auto got = result.read(), a64 = a.read(), b64 = b.read(), bias64 = bias.read();
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < ld; ++j) {
        const std::int64_t at = i * ld + j;
        if (j >= n) {
          ASSERT_EQ(got[at], initial[at]) << "behind row " << i;
          continue;
        }
        const double value = expected(i, j, a64, b64, initial, bias64, aux_before);
        ASSERT_NEAR(got[at], value, 1e-5 + kRoundoff<R> * std::fabs(value)) << i << ", " << j;
      }
  }

  bool a_transposed, b_transposed;
  Epilogue epilogue;
  bool adds;
};

template <class T>
void run_all_of() {
  Case<T, T>(false, true, Epilogue::none, false).run();
  Case<T, T>(false, true, Epilogue::none, true).run();
  Case<T, T>(false, true, Epilogue::bias, false).run();
  Case<T, T>(false, true, Epilogue::bias, true).run();
  Case<T, T>(false, false, Epilogue::none, false).run();
  Case<T, float>(false, true, Epilogue::none, false).run();
  Case<T, float>(true, false, Epilogue::none, false).run();
  Case<T, float>(true, false, Epilogue::none, true).run();
}

TEST(GpuGemm, IsTheProductOfRowMajorMatrices) {
  run_all_of<float>();
  run_all_of<bf16>();
  run_all_of<f16>();
}

TEST(GpuGemm, TakesGeluOfTheSums) {
  Case<bf16, bf16>(false, true, Epilogue::gelu, false).run();
  Case<bf16, bf16>(false, true, Epilogue::bias_gelu, false).run();
  Case<bf16, bf16>(false, false, Epilogue::dgelu, false).run();
  Case<f16, f16>(false, true, Epilogue::bias_gelu, false).run();
  Case<f16, f16>(false, false, Epilogue::dgelu, false).run();
}

// Square products of bf16 in one allocation: a, b, result and workspace.
struct Squares {
  static constexpr std::int64_t n = 16;

  Product product() const {
    return {.m = n,
            .n = n,
            .k = n,
            .operands = DType::bf16,
            .stored = DType::bf16,
            .a = {memory + 0, n},
            .b = {memory + 1024, n},
            .result = memory + 2048,
            .ld = n,
            .workspace = {memory + 4096, kWorkspaceBytes}};
  }

  sample::Stream stream;
  sample::Device<std::byte> memory{4096 + kWorkspaceBytes};
};

TEST(GpuGemm, AsksForAnAlgorithmOnceForEachKindOfProduct) {
  const Squares squares;
  Gemm gemm;
  heuristics_asked = 0;
  for (int i = 0; i < 3; ++i) gemm.multiply(squares.stream, squares.product());
  EXPECT_EQ(heuristics_asked, 1);
  Product elsewhere = squares.product();
  elsewhere.result = squares.memory + 3072;  // as well aligned
  gemm.multiply(squares.stream, elsewhere);
  EXPECT_EQ(heuristics_asked, 1);
  elsewhere.result = squares.memory + 3072 + 2;
  gemm.multiply(squares.stream, elsewhere);
  EXPECT_EQ(heuristics_asked, 2);
  Product refused = squares.product();
  refused.a.transposed = refused.b.transposed = true;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(gemm.try_multiply(squares.stream, refused));
  EXPECT_EQ(heuristics_asked, 3);
  squares.stream.synchronize();
}

TEST(GpuGemm, SaysWhichProductCannotBeHad) {
  const Squares squares;
  Gemm gemm;
  Product product = squares.product();
  product.a.transposed = product.b.transposed = true;
  try {
    gemm.multiply(squares.stream, product);
    FAIL() << "there is an algorithm";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("bf16 product of 16x16 (transposed) and 16x16 (transposed) into bf16"), std::string::npos) << error.what();
  }
}

TEST(GpuGemm, NeedsItsEpilogueAligned) {
  const Squares squares;
  Gemm gemm;
  Product product = squares.product();
  product.b.transposed = true;
  product.epilogue = Epilogue::bias;
  product.bias = squares.memory + 3072;
  EXPECT_TRUE(gemm.try_multiply(squares.stream, product));
  product.bias = squares.memory + 3072 + 2;
  EXPECT_FALSE(gemm.try_multiply(squares.stream, product));
  squares.stream.synchronize();
}

// The simulation's own checks.
class SimulatedCublasLt : public testing::Test {
 protected:
  SimulatedCublasLt() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static void multiply(void (*spoil)(Product&)) {
    const Squares squares;
    Gemm gemm;
    Product product = squares.product();
    spoil(product);
    gemm.multiply(squares.stream, product);
    squares.stream.synchronize();
  }
};

TEST_F(SimulatedCublasLt, FindsAResultOverAnOperand) {
  EXPECT_DEATH(multiply([](Product& p) { p.result = const_cast<void*>(p.a.data); }), "violation: cublasLtMatmul: D, which is written, overlaps B");
}

TEST_F(SimulatedCublasLt, FindsAnOperandPartlyOutsideItsAllocation) {
  EXPECT_DEATH(multiply([](Product& p) { p.result = p.workspace.data() + kWorkspaceBytes - 64; }),
               "violation: cublasLtMatmul: D, 512 bytes at .*, is not within one allocation of device memory");
}

TEST_F(SimulatedCublasLt, FindsAWorkspaceThatIsNotOnTheDevice) {
  EXPECT_DEATH(multiply([](Product& p) {
                 static std::vector<std::byte> host(kWorkspaceBytes);
                 p.workspace = host;
               }),
               "violation: cublasLtMatmul: the workspace, 1048576 bytes at .*, is not within one allocation of device memory");
}

}  // namespace
}  // namespace spillway::cuda
