#include "gpu/gemm.h"

#include <algorithm>
#include <compare>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include <cublasLt.h>

#include "base/log.h"
#include "spillway/error.h"

namespace spillway::cuda {

namespace {

void check(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError("[cuda] " + what + ": " + cublasLtGetStatusString(status));
}

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

cublasLtEpilogue_t lt_epilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none: return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::bias: return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::gelu: return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::bias_gelu: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::dgelu: return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

const char* name_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none: return "product";
    case Epilogue::bias: return "product with bias";
    case Epilogue::gelu: return "product with GELU";
    case Epilogue::bias_gelu: return "product with bias and GELU";
    case Epilogue::dgelu: return "product with GELU's derivative";
  }
  return "product";
}

// Bytes that an address is a multiple of. The planner places buffers at multiples of 256 whatever their tier, so this,
// and with it the algorithm, is the same for every placement.
std::uint16_t alignment_of(const void* address) {
  constexpr std::uintptr_t kMost = 256;
  const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(address) | kMost;
  return static_cast<std::uint16_t>(bits & (~bits + 1));
}

// All that the choice of an algorithm may depend on.
struct Kind {
  std::int64_t m, n, k, a_ld, b_ld, ld;
  DType operands, stored;
  bool a_transposed, b_transposed;
  Epilogue epilogue;
  std::uint16_t a_alignment, b_alignment, added_alignment, result_alignment, bias_alignment, aux_alignment;

  auto operator<=>(const Kind&) const = default;
};

Kind kind_of(const Product& p) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .a_ld = p.a.ld,
          .b_ld = p.b.ld,
          .ld = p.ld,
          .operands = p.operands,
          .stored = p.stored,
          .a_transposed = p.a.transposed,
          .b_transposed = p.b.transposed,
          .epilogue = p.epilogue,
          .a_alignment = alignment_of(p.a.data),
          .b_alignment = alignment_of(p.b.data),
          .added_alignment = alignment_of(p.added ? p.added : p.result),
          .result_alignment = alignment_of(p.result),
          .bias_alignment = alignment_of(p.bias),
          .aux_alignment = alignment_of(p.aux)};
}

// Of everything that is loaded and stored in vectors.
std::int64_t least_alignment(const Product& p) {
  std::int64_t least = std::min({alignment_of(p.a.data), alignment_of(p.b.data), alignment_of(p.result), alignment_of(p.added),
                                 alignment_of(p.bias), alignment_of(p.aux)});
  for (const std::int64_t row_bytes : {p.a.ld * size_of(p.operands), p.b.ld * size_of(p.operands), p.ld * size_of(p.stored)})
    least = std::min(least, row_bytes & -row_bytes);
  return least;
}

std::string text_of(const Product& p) {
  const auto number = [](std::int64_t n) { return std::to_string(n); };
  return std::string(name_of(p.operands)) + " " + name_of(p.epilogue) + " of " + number(p.m) + "x" + number(p.k) +
         (p.a.transposed ? " (transposed)" : "") + " and " + number(p.k) + "x" + number(p.n) +
         (p.b.transposed ? " (transposed)" : "") + " into " + std::string(name_of(p.stored)) + ", the least aligned address or row at " +
         number(least_alignment(p)) + " bytes";
}

// One kind of product as cuBLASLt has it. Its matrices are column-major, so a row-major product is the product of the
// transposes in the other order: cuBLASLt's A is our b, its B our a, its rows our columns.
struct Plan {
  cublasLtMatmulDescOpaque_t description;
  cublasLtMatrixLayoutOpaque_t a, b, result;
  cublasLtMatmulAlgo_t algorithm;
  bool found;
};

void set(Plan& plan, cublasLtMatmulDescAttributes_t attribute, const auto& value) {
  check(cublasLtMatmulDescSetAttribute(&plan.description, attribute, &value, sizeof(value)), "describe a product to cuBLASLt");
}

void set_pointers(Plan& plan, const Product& p) {
  if (p.bias) set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  if (p.aux) set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux);
}

void describe(Plan& plan, const Product& p) {
  const auto operation = [](const Operand& o) { return static_cast<std::int32_t>(o.transposed ? CUBLAS_OP_T : CUBLAS_OP_N); };
  check(cublasLtMatmulDescInit(&plan.description, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describe a product to cuBLASLt");
  set(plan, CUBLASLT_MATMUL_DESC_TRANSA, operation(p.b));
  set(plan, CUBLASLT_MATMUL_DESC_TRANSB, operation(p.a));
  set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(lt_epilogue(p.epilogue)));
  if (p.aux) set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.ld);
  set_pointers(plan, p);
  const auto layout = [](cublasLtMatrixLayoutOpaque_t& of, DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t ld) {
    check(cublasLtMatrixLayoutInit(&of, cuda_type(dtype), static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows), ld),
          "describe a matrix to cuBLASLt");
  };
  layout(plan.a, p.operands, p.b.transposed ? p.n : p.k, p.b.transposed ? p.k : p.n, p.b.ld);
  layout(plan.b, p.operands, p.a.transposed ? p.k : p.m, p.a.transposed ? p.m : p.k, p.a.ld);
  layout(plan.result, p.stored, p.m, p.n, p.ld);
}

void choose_algorithm(cublasLtHandle_t handle, Plan& plan, const Kind& kind, std::size_t workspace_bytes) {
  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), "state preferences to cuBLASLt");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)), "state preferences to cuBLASLt");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
  // Parts of a split sum are kept in f32 and added in a step of their own: in order, and rounded once.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{kind.b_alignment});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t{kind.a_alignment});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::uint32_t{kind.added_alignment});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::uint32_t{kind.result_alignment});
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, &plan.description, &plan.a, &plan.b, &plan.result, &plan.result,
                                                               &preference, 1, &best, &count);
  // How the library says "none": these two, or an empty list.
  if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) check(status, "choose an algorithm of cuBLASLt");
  plan.found = status == CUBLAS_STATUS_SUCCESS && count > 0 && best.state == CUBLAS_STATUS_SUCCESS;
  plan.algorithm = best.algo;
}

}  // namespace

struct Gemm::State {
  cublasLtHandle_t handle = nullptr;
  std::mutex mutex;
  std::map<Kind, Plan> plans;
  std::set<std::pair<Epilogue, DType>> reported;

  ~State() {
    if (handle) cublasLtDestroy(handle);
  }

  // With the mutex held.
  Plan& plan(const Product& p) {
    const Kind kind = kind_of(p);
    const auto [entry, is_new] = plans.try_emplace(kind);
    Plan& plan = entry->second;
    if (is_new) {
      describe(plan, p);
      choose_algorithm(handle, plan, kind, p.workspace.size());
    } else if (plan.found) {
      set_pointers(plan, p);
    }
    return plan;
  }
};

Gemm::Gemm() : state_(std::make_unique<State>()) { check(cublasLtCreate(&state_->handle), "start cuBLASLt"); }

Gemm::~Gemm() = default;

bool Gemm::try_multiply(cudaStream_t stream, const Product& p) {
  const std::lock_guard lock(state_->mutex);
  Plan& plan = state_->plan(p);
  if (!plan.found) {
    if (state_->reported.emplace(p.epilogue, p.operands).second && p.epilogue != Epilogue::none)
      log_warning("[cuda] cuBLASLt has no " + text_of(p) + ": done in two steps, which costs another pass over the result");
    return false;
  }
  const float one = 1.0f, beta = p.added ? 1.0f : 0.0f;
  const cublasStatus_t status =
      cublasLtMatmul(state_->handle, &plan.description, &one, p.b.data, &plan.a, p.a.data, &plan.b, &beta, p.added ? p.added : p.result,
                     &plan.result, p.result, &plan.result, &plan.algorithm, p.workspace.data(), p.workspace.size(), stream);
  if (status != CUBLAS_STATUS_SUCCESS) check(status, text_of(p));
  return true;
}

void Gemm::multiply(cudaStream_t stream, const Product& p) {
  if (!try_multiply(stream, p)) throw DeviceError("[cuda] cuBLASLt has no " + text_of(p) + "; use --device host, or report this shape");
}

}  // namespace spillway::cuda
