// OpenBLAS, loaded at run time: the only file that knows it.
//
// OpenBLAS picks its kernels while it is being loaded, by CPU family and model; a processor newer than
// the library gets those of the oldest one (SSE3 on a current Xeon, less than a third of its speed). Only the
// environment of the moment of loading can tell it better, so the library is opened here, after a look
// at what the CPU can do, instead of being linked.
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include <cblas.h>

#include "host/gemm.h"
#include "spillway/error.h"

namespace spillway::host {

namespace {

constexpr const char* kCoreVariable = "OPENBLAS_CORETYPE";

// The OpenBLAS kernels this CPU can run, by their names there; nullptr: leave it to OpenBLAS.
const char* best_core() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return "SkylakeX";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return __builtin_cpu_is("amd") ? "Zen" : "Haswell";
#endif
  return nullptr;
}

void* open_library() {
  for (const char* const name : {"libopenblas.so.0", "libopenblas.so"})
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  throw DeviceError("[host] load OpenBLAS for matrix products: " + std::string(dlerror()) +
                    "; install it (Debian: apt install libopenblas0)");
}

template <class F>
F* find(void* library, const char* name) {
  if (void* const symbol = dlsym(library, name)) return reinterpret_cast<F*>(symbol);
  throw DeviceError("[host] load OpenBLAS for matrix products: " + std::string(dlerror()) + "; this is not OpenBLAS");
}

// Loads the library; it stays loaded.
decltype(cblas_sgemm)* load_sgemm() {
  const char* const core = std::getenv(kCoreVariable) ? nullptr : best_core();
  if (core) setenv(kCoreVariable, core, 1);
  void* const library = open_library();
  if (core) unsetenv(kCoreVariable);  // not for child processes
  // OpenBLAS would start threads of its own; pieces of the result are the parallelism here.
  find<decltype(openblas_set_num_threads)>(library, "openblas_set_num_threads")(1);
  return find<decltype(cblas_sgemm)>(library, "cblas_sgemm");
}

decltype(cblas_sgemm)* blas_sgemm() {
  static decltype(cblas_sgemm)* const function = load_sgemm();
  return function;
}

}  // namespace

void load_blas() { blas_sgemm(); }

void sgemm(Transposed a_transposed, Transposed b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
           const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  const auto transpose = [](Transposed t) { return t == Transposed::yes ? CblasTrans : CblasNoTrans; };
  const auto blas = [](std::int64_t x) { return static_cast<blasint>(x); };
  blas_sgemm()(CblasRowMajor, transpose(a_transposed), transpose(b_transposed), blas(m), blas(n), blas(k), alpha, a, blas(lda),
               b, blas(ldb), beta, c, blas(ldc));
}

}  // namespace spillway::host
