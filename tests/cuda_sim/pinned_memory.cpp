#include "cuda_sim/pinned_memory.h"

#include <map>

#include "cuda_sim/runtime_state.h"

namespace cuda_sim {

namespace {

using Pins = std::map<const std::byte*, std::size_t>;

Pins& pins() {
  static Pins* const instance = new Pins;
  return *instance;
}

// The pinned piece with the last beginning before `end`.
Pins::const_iterator last_before(const std::byte* end) {
  const auto next = pins().lower_bound(end);
  return next == pins().begin() ? pins().end() : std::prev(next);
}

void check_unused(const Operation& operation, const std::byte* begin, std::size_t bytes, const char* call) {
  const HostRange& used = operation.pinned;
  if (used.bytes == 0 || used.begin >= begin + bytes || begin >= used.begin + used.bytes) return;
  violation("%s of host memory that work enqueued earlier (%s) has not finished with", call, operation.what);
}

}  // namespace

bool pin(const void* p, std::size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(p);
  const auto before = last_before(begin + bytes);
  if (before != pins().end() && before->first + before->second > begin) return false;
  pins().emplace(begin, bytes);
  return true;
}

std::size_t pinned_at(const void* p) {
  const auto found = pins().find(static_cast<const std::byte*>(p));
  return found == pins().end() ? 0 : found->second;
}

bool is_pinned(const void* p, std::size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(p);
  const auto before = last_before(begin + bytes);
  return before != pins().end() && before->first <= begin && begin + bytes <= before->first + before->second;
}

void unpin(const void* p, const char* call) {
  const auto* const begin = static_cast<const std::byte*>(p);
  const std::size_t bytes = pinned_at(p);
  for (const std::unique_ptr<CUstream_st>& stream : state().streams) {
    if (stream->running) check_unused(*stream->running, begin, bytes, call);
    for (const std::unique_ptr<Operation>& operation : stream->queue) check_unused(*operation, begin, bytes, call);
  }
  pins().erase(begin);
}

}  // namespace cuda_sim
