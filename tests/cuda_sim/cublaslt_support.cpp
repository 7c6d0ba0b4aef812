#include "cuda_sim/cublaslt_support.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cuda_sim/violation.h"

namespace cuda_sim {

std::map<ProductType, int> read_gemm_support() {
  const char* const named = std::getenv("CUDA_SIM_GEMM_SUPPORT");
  const char* const path = named != nullptr ? named : CUDA_SIM_DEFAULT_GEMM_SUPPORT;
  std::ifstream file(path);
  if (!file) violation("cublasLtCreate: cannot read the table of accepted products, %s", path);
  std::map<ProductType, int> table;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line.substr(0, line.find('#')));
    ProductType type;
    int alignment = 0;
    if (!(fields >> type.operands)) continue;
    if (!(fields >> type.result >> type.operations >> type.epilogue >> alignment) || alignment <= 0)
      violation("cublasLtCreate: %s: not a line of the table of accepted products: %s", path, line.c_str());
    table[type] = alignment;
  }
  return table;
}

}  // namespace cuda_sim
