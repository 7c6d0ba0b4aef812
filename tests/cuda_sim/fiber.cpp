#include "cuda_sim/fiber.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "cuda_sim/violation.h"

#define SANITIZER_FUNCTION extern "C" __attribute__((weak, visibility("default")))
SANITIZER_FUNCTION void __sanitizer_start_switch_fiber(void** fake_stack_save, const void* bottom, std::size_t size);
SANITIZER_FUNCTION void __sanitizer_finish_switch_fiber(void* fake_stack_save, const void** bottom_old, std::size_t* size_old);
SANITIZER_FUNCTION void* __tsan_get_current_fiber();
SANITIZER_FUNCTION void* __tsan_create_fiber(unsigned flags);
SANITIZER_FUNCTION void __tsan_destroy_fiber(void* fiber);
SANITIZER_FUNCTION void __tsan_switch_to_fiber(void* fiber, unsigned flags);

// Saves what a callee has to keep, changes stacks, restores. A system call less than swapcontext.
extern "C" void cuda_sim_switch_stack(void** save, void* load);
asm(R"(
.text
.p2align 4
.type cuda_sim_switch_stack, @function
.hidden cuda_sim_switch_stack
.globl cuda_sim_switch_stack
cuda_sim_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_sim_switch_stack, .-cuda_sim_switch_stack
)");

namespace cuda_sim {

namespace {

// Instrumented code at -O1 takes several times the stack that -O2 takes.
constexpr std::size_t kStackBytes = 128 * 1024;
constexpr unsigned kNoEdge = 1;  // __tsan_switch_to_fiber_no_sync

// The fiber that is being entered; the OS thread's own.
constinit thread_local Fiber* entering = nullptr;

}  // namespace

Fiber::Fiber() {
  pthread_attr_t attributes;
  void* bottom = nullptr;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0 || pthread_attr_getstack(&attributes, &bottom, &size_) != 0) {
    violation("the bounds of a stream thread's stack are unknown");
  }
  pthread_attr_destroy(&attributes);
  bottom_ = bottom;
  if (__tsan_get_current_fiber != nullptr) identity_ = __tsan_get_current_fiber();
}

Fiber::Fiber(void (*body)(void*), void* argument) : body_(body), argument_(argument) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const memory = mmap(nullptr, page + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) violation("no memory for the stack of a CUDA thread");
  stack_ = static_cast<std::byte*>(memory);
  bottom_ = stack_ + page;
  size_ = kStackBytes;
  // As if switched away from just before enter(): six registers and a return address, above which the stack pointer is
  // 8 past a multiple of 16, as after a call.
  auto** top = reinterpret_cast<void**>(stack_ + page + kStackBytes - 8);
  *--top = reinterpret_cast<void*>(&Fiber::enter);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  stack_pointer_ = top;
}

Fiber::~Fiber() {
  if (owns_identity_) __tsan_destroy_fiber(identity_);
  if (stack_ != nullptr) munmap(stack_, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + kStackBytes);
}

void Fiber::enter() {
  Fiber& self = *entering;
  if (__sanitizer_finish_switch_fiber != nullptr) __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
  self.body_(self.argument_);
  violation("a fiber returned");
}

void Fiber::take_identity() {
  if (__tsan_create_fiber == nullptr || owns_identity_) return;
  identity_ = __tsan_create_fiber(0);
  owns_identity_ = true;
}

void Fiber::switch_from(Fiber& from, bool identities) {
  entering = this;
  if (identities && __tsan_switch_to_fiber != nullptr) __tsan_switch_to_fiber(identity_, kNoEdge);
  if (__sanitizer_start_switch_fiber != nullptr) __sanitizer_start_switch_fiber(&from.fake_stack_, bottom_, size_);
  cuda_sim_switch_stack(&from.stack_pointer_, stack_pointer_);
  if (__sanitizer_finish_switch_fiber != nullptr) __sanitizer_finish_switch_fiber(from.fake_stack_, nullptr, nullptr);
}

}  // namespace cuda_sim
