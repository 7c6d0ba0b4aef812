#include "cuda_sim/sanitizers.h"

#include "cuda_sim/violation.h"

// Present only in a program with the sanitizer's runtime.
#define SANITIZER_FUNCTION extern "C" __attribute__((weak, visibility("default")))
SANITIZER_FUNCTION void __tsan_acquire(void*);
SANITIZER_FUNCTION void __tsan_release(void*);
SANITIZER_FUNCTION void __tsan_read_range(void*, unsigned long);
SANITIZER_FUNCTION void __tsan_write_range(void*, unsigned long);
SANITIZER_FUNCTION void* __asan_region_is_poisoned(void*, std::size_t);
SANITIZER_FUNCTION void AnnotateIgnoreWritesBegin(const char*, int);
SANITIZER_FUNCTION void AnnotateIgnoreWritesEnd(const char*, int);
SANITIZER_FUNCTION void __asan_poison_memory_region(void const volatile*, std::size_t);
SANITIZER_FUNCTION void __asan_unpoison_memory_region(void const volatile*, std::size_t);

namespace cuda_sim {

namespace {

void check_accessible(const void* p, std::size_t bytes) {
  if (!under_asan() || bytes == 0) return;
  if (void* const bad = __asan_region_is_poisoned(const_cast<void*>(p), bytes)) {
    violation("work uses %zu bytes at %p, of which those from %p on are freed or past the end of their allocation", bytes, p, bad);
  }
}

}  // namespace

bool under_asan() { return __asan_poison_memory_region != nullptr; }
bool under_tsan() { return __tsan_acquire != nullptr; }

void tsan_release(void* token) {
  if (under_tsan()) __tsan_release(token);
}

void tsan_acquire(void* token) {
  if (under_tsan()) __tsan_acquire(token);
}

// While writes are ignored, what TSan's malloc and free do to its shadow is a reset, not an access.
Unseen::Unseen() {
  if (under_tsan()) AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}

Unseen::~Unseen() {
  if (under_tsan()) AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
}

void poison(const void* p, std::size_t bytes) {
  if (under_asan()) __asan_poison_memory_region(p, bytes);
}

void unpoison(const void* p, std::size_t bytes) {
  if (under_asan()) __asan_unpoison_memory_region(p, bytes);
}

void reads_memory(const void* p, std::size_t bytes) {
  check_accessible(p, bytes);
  if (under_tsan()) __tsan_read_range(const_cast<void*>(p), bytes);
}

void writes_memory(void* p, std::size_t bytes) {
  check_accessible(p, bytes);
  if (under_tsan()) __tsan_write_range(p, bytes);
}

}  // namespace cuda_sim
