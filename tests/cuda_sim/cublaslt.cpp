// The simulated cuBLASLt: as much of the real header as gpu/gemm.cpp calls. It refuses what the table of accepted products
// does not list, and holds each call to what its algorithm was chosen for, to the extents of device memory and to its
// workspace, which it fills with NaN.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "cuda_sim/cublaslt_multiply.h"
#include "cuda_sim/cublaslt_support.h"
#include "cuda_sim/stream_work.h"

#pragma GCC visibility push(default)
#include <cublasLt.h>
#pragma GCC visibility pop

using namespace cuda_sim;

struct cublasLtContext {
  std::map<ProductType, int> support;
};

namespace {

constexpr std::size_t kWorkspaceBytes = 64 << 10;  // of every algorithm

struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t a_operation, b_operation;
  std::uint32_t epilogue;
  const void* bias;
  void* aux;
  std::int64_t aux_ld;
};

struct Preference {
  std::uint64_t workspace_bytes;
  std::uint32_t reductions;
  std::uint32_t alignment[4];  // A, B, C, D
};

struct Layout {
  cudaDataType_t type;
  std::int64_t rows, columns, ld;

  bool operator==(const Layout&) const = default;
};

// A product without its addresses.
struct Problem {
  std::int32_t a_operation, b_operation;
  std::uint32_t epilogue;
  Layout a, b, d;
  std::int64_t aux_ld;
};

// What a choice is good for.
struct Algorithm {
  std::uint64_t problem;       // hash
  std::uint32_t alignment[4];  // A, B, C, D
  std::uint32_t workspace_bytes;
};

// The library's opaque structures as ours: their bytes are the caller's, and may be anything before Init.
template <class Ours, class Opaque>
Ours& as(Opaque* opaque) {
  static_assert(sizeof(Ours) <= sizeof(Opaque) && alignof(Ours) <= alignof(Opaque));
  return *reinterpret_cast<Ours*>(opaque);
}

template <class Ours, class Opaque>
const Ours& as(const Opaque* opaque) {
  static_assert(sizeof(Ours) <= sizeof(Opaque) && alignof(Ours) <= alignof(Opaque));
  return *reinterpret_cast<const Ours*>(opaque);
}

template <class T>
cublasStatus_t assign(T& to, const void* from, std::size_t bytes) {
  if (from == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

std::string name_of(cudaDataType_t type) {
  return type == CUDA_R_32F ? "fp32" : type == CUDA_R_16BF ? "bf16" : type == CUDA_R_16F ? "fp16" : "?";
}

std::string name_of(std::uint32_t epilogue) {
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT: return "none";
    case CUBLASLT_EPILOGUE_BIAS: return "bias";
    case CUBLASLT_EPILOGUE_GELU_AUX: return "gelu";
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: return "bias_gelu";
    case CUBLASLT_EPILOGUE_DGELU: return "dgelu";
    default: return "?";
  }
}

bool has_bias(std::uint32_t epilogue) { return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }
bool has_aux(std::uint32_t epilogue) { return epilogue != CUBLASLT_EPILOGUE_DEFAULT && epilogue != CUBLASLT_EPILOGUE_BIAS; }

Problem problem_of(const Description& description, const Layout& a, const Layout& b, const Layout& d) {
  return {description.a_operation, description.b_operation, description.epilogue, a, b, d, description.aux_ld};
}

ProductType type_of(const Problem& p) {
  const auto letter = [](std::int32_t operation) { return std::string(operation == CUBLAS_OP_N ? "N" : operation == CUBLAS_OP_T ? "T" : "?"); };
  return {name_of(p.a.type), name_of(p.d.type), letter(p.a_operation) + letter(p.b_operation), name_of(p.epilogue)};
}

std::uint64_t hash_of(const Problem& p) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const std::int64_t value :
       {std::int64_t{p.a_operation}, std::int64_t{p.b_operation}, std::int64_t{p.epilogue}, std::int64_t{p.a.type}, p.a.rows, p.a.columns,
        p.a.ld, std::int64_t{p.b.type}, p.b.rows, p.b.columns, p.b.ld, std::int64_t{p.d.type}, p.d.rows, p.d.columns, p.d.ld, p.aux_ld})
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 1099511628211u;
  return hash;
}

// Whether the layouts can be multiplied at all.
bool is_product(const Problem& p) {
  const bool at = p.a_operation == CUBLAS_OP_T, bt = p.b_operation == CUBLAS_OP_T;
  const auto holds = [](const Layout& m) { return m.rows > 0 && m.columns > 0 && m.ld >= m.rows; };
  return holds(p.a) && holds(p.b) && holds(p.d) && p.a.type == p.b.type && (at ? p.a.columns : p.a.rows) == p.d.rows &&
         (bt ? p.b.rows : p.b.columns) == p.d.columns && (at ? p.a.rows : p.a.columns) == (bt ? p.b.columns : p.b.rows);
}

std::int64_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address);
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

// The smallest alignment of all that a kernel would load and store in groups. A vector has no distance between columns.
std::int64_t least_alignment(const Description& description, const Problem& p, const Preference& preference) {
  std::int64_t least = *std::min_element(std::begin(preference.alignment), std::end(preference.alignment));
  const auto count = [&](std::int64_t bytes) { least = std::min(least, bytes & (~bytes + 1)); };
  for (const Layout& m : {p.a, p.b, p.d}) count(m.ld * bytes_of(m.type));
  if (has_bias(p.epilogue)) count(alignment_of(description.bias));
  if (has_aux(p.epilogue)) count(std::min(alignment_of(description.aux), alignment_of(reinterpret_cast<const void*>(p.aux_ld * bytes_of(p.d.type)))));
  return least;
}

bool is_supported(const cublasLtContext& library, const Description& description, const Problem& p, const Preference& preference) {
  if (description.compute != CUBLAS_COMPUTE_32F || description.scale != CUDA_R_32F) return false;
  if (has_bias(p.epilogue) && description.bias == nullptr) return false;
  if (has_aux(p.epilogue) && (description.aux == nullptr || p.aux_ld < p.d.rows || p.aux_ld % 8 != 0)) return false;
  const auto accepted = library.support.find(type_of(p));
  return accepted != library.support.end() && least_alignment(description, p, preference) >= accepted->second;
}

// An operand of a call.
struct Part {
  const char* name;
  const void* data;
  std::size_t bytes;
  std::uint32_t alignment;  // that its algorithm was chosen for

  bool overlaps(const Part& other) const {
    const auto* p = static_cast<const std::byte*>(data);
    const auto* q = static_cast<const std::byte*>(other.data);
    return p < q + other.bytes && q < p + bytes;
  }
};

void check_part(const Part& part) {
  if (!is_device_range(part.data, part.bytes))
    violation("cublasLtMatmul: %s, %zu bytes at %p, is not within one allocation of device memory", part.name, part.bytes, part.data);
  if (reinterpret_cast<std::uintptr_t>(part.data) % part.alignment != 0)
    violation("cublasLtMatmul: %s at %p is not aligned to the %u bytes that its algorithm was chosen for", part.name, part.data, part.alignment);
}

void check_apart(const Part& written, const Part& other) {
  if (written.overlaps(other)) violation("cublasLtMatmul: %s, which is written, overlaps %s", written.name, other.name);
}

Matrix matrix_of(const Layout& layout) { return {layout.type, layout.rows, layout.columns, layout.ld}; }

// The call as enqueued: everything by value.
struct Call {
  Multiplication op;
  Part a, b, c, d, bias, aux, workspace;

  void check() const {
    for (const Part* part : {&a, &b, &d, &workspace}) check_part(*part);
    for (const Part* part : {&c, &bias, &aux})
      if (part->data != nullptr) check_part(*part);
    for (const Part* part : {&a, &b, &bias, &aux, &workspace})
      if (part->data != nullptr) check_apart(d, *part);
    for (const Part* part : {&a, &b, &c, &bias, &aux})
      if (part->data != nullptr) check_apart(workspace, *part);
    if (c.data != nullptr && c.data != d.data) check_apart(d, c);
  }

  void run() const {
    const Unseen unseen;
    for (const Part* part : {&a, &b, &c, &bias})
      if (part->data != nullptr) reads_memory(part->data, part->bytes);
    if (aux.data != nullptr) op.after == After::gelu ? writes_memory(op.aux, aux.bytes) : reads_memory(aux.data, aux.bytes);
    writes_memory(op.d_data, d.bytes);
    auto* const start = static_cast<std::byte*>(const_cast<void*>(workspace.data));
    writes_memory(start, workspace.bytes);
    multiply(op);
    // Nobody may find anything in it, and all of it is the call's.
    std::memset(start, 0xff, kWorkspaceBytes);
    std::memset(start + workspace.bytes - kWorkspaceBytes, 0xff, kWorkspaceBytes);
  }
};

}  // namespace

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "the operation completed successfully";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality requested is not supported";
    default: return "the function failed to launch on the GPU";
  }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (enter_call("cublasLtCreate") != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext{read_gemm_support()};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t description, std::size_t size, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
  if (size < sizeof(Description)) return CUBLAS_STATUS_ALLOC_FAILED;
  as<Description>(description) = {compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, 0};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t bytes) {
  auto& ours = as<Description>(description);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return assign(ours.a_operation, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return assign(ours.b_operation, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return assign(ours.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return assign(ours.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return assign(ours.aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return assign(ours.aux_ld, value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, std::size_t size, cudaDataType type, std::uint64_t rows,
                                                 std::uint64_t columns, std::int64_t ld) {
  if (size < sizeof(Layout)) return CUBLAS_STATUS_ALLOC_FAILED;
  as<Layout>(layout) = {type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), ld};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, std::size_t size) {
  if (size < sizeof(Preference)) return CUBLAS_STATUS_ALLOC_FAILED;
  as<Preference>(preference) = {0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  auto& ours = as<Preference>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return assign(ours.workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return assign(ours.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return assign(ours.alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return assign(ours.alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return assign(ours.alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return assign(ours.alignment[3], value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested, cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  *returned = 0;
  if (enter_call("cublasLtMatmulAlgoGetHeuristic") != cudaSuccess) return CUBLAS_STATUS_INTERNAL_ERROR;
  const auto& wanted = as<Preference>(preference);
  if (requested < 1 || as<Layout>(c) != as<Layout>(d)) return CUBLAS_STATUS_INVALID_VALUE;
  if ((wanted.reductions & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) != 0)
    violation("cublasLtMatmulAlgoGetHeuristic: reduction schemes %#x round partial sums; only NONE and COMPUTE_TYPE", wanted.reductions);
  const Problem problem = problem_of(as<Description>(description), as<Layout>(a), as<Layout>(b), as<Layout>(d));
  if (!is_product(problem)) return CUBLAS_STATUS_INVALID_VALUE;
  if (wanted.workspace_bytes < kWorkspaceBytes || !is_supported(*handle, as<Description>(description), problem, wanted))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  Algorithm chosen{.problem = hash_of(problem), .alignment = {}, .workspace_bytes = kWorkspaceBytes};
  std::copy(std::begin(wanted.alignment), std::end(wanted.alignment), chosen.alignment);
  results[0] = {};
  as<Algorithm>(&results[0].algo) = chosen;
  results[0].workspaceSize = kWorkspaceBytes;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1.0f;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta, const void* c, cublasLtMatrixLayout_t c_layout,
                              void* d, cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  if (enter_call("cublasLtMatmul") != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  const auto& how = as<Description>(description);
  const Problem p = problem_of(how, as<Layout>(a_layout), as<Layout>(b_layout), as<Layout>(d_layout));
  const auto& chosen = as<Algorithm>(algorithm);
  if (as<Layout>(c_layout) != p.d) return CUBLAS_STATUS_INVALID_VALUE;
  if (chosen.problem != hash_of(p)) violation("cublasLtMatmul: the algorithm was chosen for another product");
  if (workspace_bytes < chosen.workspace_bytes)
    violation("cublasLtMatmul: a workspace of %zu bytes for an algorithm that needs %u", workspace_bytes, chosen.workspace_bytes);
  const Matrix a_matrix = matrix_of(p.a), b_matrix = matrix_of(p.b), d_matrix = matrix_of(p.d);
  const float scale = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
  const void* const added = kept != 0.0f ? c : nullptr;
  const void* const bias = has_bias(p.epilogue) ? how.bias : nullptr;
  void* const aux = has_aux(p.epilogue) ? how.aux : nullptr;
  const After after = aux == nullptr ? After::nothing : p.epilogue == CUBLASLT_EPILOGUE_DGELU ? After::dgelu : After::gelu;
  const auto element = static_cast<std::uint32_t>(bytes_of(p.d.type));
  const Matrix aux_matrix{p.d.type, p.d.rows, p.d.columns, p.aux_ld};
  const Call call{.op = {a_matrix, b_matrix, d_matrix, p.a_operation == CUBLAS_OP_T, p.b_operation == CUBLAS_OP_T, scale, kept, a, b, added, d,
                         bias, after, aux, p.aux_ld},
                  .a = {"A", a, a_matrix.bytes(), chosen.alignment[0]},
                  .b = {"B", b, b_matrix.bytes(), chosen.alignment[1]},
                  .c = {"C", added, d_matrix.bytes(), chosen.alignment[2]},
                  .d = {"D", d, d_matrix.bytes(), chosen.alignment[3]},
                  .bias = {"the bias", bias, static_cast<std::size_t>(p.d.rows * bytes_of(p.d.type)), element},
                  .aux = {"aux", aux, aux_matrix.bytes(), element},
                  .workspace = {"the workspace", workspace, workspace_bytes, 256}};
  call.check();
  return enqueue(stream, "cublasLtMatmul", [call] { call.run(); }) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
