// Data parallelism for kernels: pieces whose number is a function of the problem, run on however many
// threads there are. Because pieces never depend on the thread count, neither do results.
#pragma once

#include <cstdint>
#include <type_traits>

namespace spillway {

// A non-owning reference to a callable taking a piece index.
class PieceFunction {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, PieceFunction>)
  PieceFunction(F&& f)  // NOLINT: implicit on purpose
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, std::int64_t piece) {
          (*static_cast<std::remove_reference_t<F>*>(object))(piece);
        }) {}

  void operator()(std::int64_t piece) const { call_(object_, piece); }

 private:
  void* object_;
  void (*call_)(void*, std::int64_t);
};

// Calls f(0) .. f(pieces-1), each once, concurrently and in no particular order; returns when all are
// done. The first exception is re-thrown here. May be called from several threads at once. Where the process may run on
// several NUMA nodes, each node's threads are bound to it and begin with the same stretch of the pieces in every call:
// memory whose first pages to last were first touched by pieces 0 to n - 1 is local to the threads that get to it later.
void parallel_for(std::int64_t pieces, PieceFunction f);

// Threads parallel_for may use; at least 1. Set it before the first call; 0 means one per core of
// the process's affinity mask.
void set_parallel_threads(int threads);
int parallel_threads();

// NUMA nodes that parallel_for tells apart; 1 where there is one, or where oneTBB's tbbbind is missing.
int parallel_nodes();

// Cores this process may run on, from its affinity mask.
int available_cores();

}  // namespace spillway
