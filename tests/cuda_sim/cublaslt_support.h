// Which products the simulated cuBLASLt has algorithms for: the table of gpu/gemm_support.txt, whose head says what its
// columns mean. CUDA_SIM_GEMM_SUPPORT names another file.
#pragma once

#include <map>
#include <string>
#include <tuple>

namespace cuda_sim {

struct ProductType {
  std::string operands, result;  // "fp32", "bf16", "fp16"
  std::string operations;        // "TN"
  std::string epilogue;          // "none", "bias", "gelu", "bias_gelu", "dgelu"

  auto operator<=>(const ProductType&) const = default;
};

// Bytes of alignment by the types of products that are accepted with it. A file that is not one is a violation.
std::map<ProductType, int> read_gemm_support();

}  // namespace cuda_sim
