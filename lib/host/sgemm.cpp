// OpenBLAS, loaded at run time: the only file that knows it.
//
// OpenBLAS picks its kernels while it is being loaded, by CPU family and model; a processor newer than
// the library gets those of the oldest one (SSE3 on a current Xeon, less than a third of its speed). Only the
// environment of the moment of loading can tell it better, so the library is opened here, after a look
// at what the CPU can do, instead of being linked.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <cblas.h>

#include "base/text.h"
#include "host/gemm.h"
#include "spillway/error.h"

namespace spillway::host {

namespace {

constexpr const char* kCoreVariable = "OPENBLAS_CORETYPE";
constexpr const char* kThreadsVariable = "OPENBLAS_NUM_THREADS";

// Address space of one product's packing buffer: OpenBLAS's largest, what it takes on x86-64.
constexpr std::size_t kBufferBytes = std::size_t{128} << 20;

// The OpenBLAS kernels this CPU can run, by their names there; nullptr: leave it to OpenBLAS.
const char* best_core() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return "SkylakeX";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return __builtin_cpu_is("amd") ? "Zen" : "Haswell";
  // OpenBLAS takes the oldest of AMD's, and what an emulator says is one, for a processor that has 3DNow!. The kernels of
  // the generation after it do with SSE2.
  if (__builtin_cpu_is("amd") && !__builtin_cpu_supports("avx")) return "Barcelona";
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
  // OpenBLAS would start threads of its own; pieces of the result are the parallelism here.
  const bool threads = std::getenv(kThreadsVariable) == nullptr;
  if (core) setenv(kCoreVariable, core, 1);
  if (threads) setenv(kThreadsVariable, "1", 1);
  void* const library = open_library();
  if (core) unsetenv(kCoreVariable);  // not for child processes
  if (threads) unsetenv(kThreadsVariable);
  find<decltype(openblas_set_num_threads)>(library, "openblas_set_num_threads")(1);
  return find<decltype(cblas_sgemm)>(library, "cblas_sgemm");
}

decltype(cblas_sgemm)* blas_sgemm() {
  static decltype(cblas_sgemm)* const function = load_sgemm();
  return function;
}

// Whether the process may have this much memory. Asked first, because OpenBLAS, refused, tries again for ever.
void require_memory(std::size_t bytes) {
  void* const probe = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (probe == MAP_FAILED) {
    throw MemoryError("[host] map " + human_bytes(static_cast<std::int64_t>(bytes)) + " of address space for matrix products: " +
                      std::strerror(errno) + "; raise the limit of the process (ulimit -d, -v), or lower spillway.threads");
  }
  munmap(probe, bytes);
}

// OpenBLAS keeps a buffer for each product that runs at once, taken when it is first needed: here, where a
// refusal can be told, rather than inside a step.
void take_buffers(void* library, int products) {
  const auto take = reinterpret_cast<void* (*)(int)>(dlsym(library, "blas_memory_alloc"));
  const auto give_back = reinterpret_cast<void (*)(void*)>(dlsym(library, "blas_memory_free"));
  if (take == nullptr || give_back == nullptr) return;  // a build that hides them
  std::vector<void*> buffers;
  for (int i = 0; i < products; ++i) buffers.push_back(take(0));
  for (void* buffer : buffers) give_back(buffer);
}

}  // namespace

void load_blas(int products) {
  require_memory(static_cast<std::size_t>(products) * kBufferBytes);
  blas_sgemm();
  take_buffers(open_library(), products);
}

void sgemm(Transposed a_transposed, Transposed b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
           const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  const auto transpose = [](Transposed t) { return t == Transposed::yes ? CblasTrans : CblasNoTrans; };
  const auto blas = [](std::int64_t x) { return static_cast<blasint>(x); };
  blas_sgemm()(CblasRowMajor, transpose(a_transposed), transpose(b_transposed), blas(m), blas(n), blas(k), alpha, a, blas(lda),
               b, blas(ldb), beta, c, blas(ldc));
}

}  // namespace spillway::host
