// A training step allocates nothing: counts every operator new while a channel works. All forms of it are replaced: a sanitizer
// has its own, and tells when memory of one is given back to the other.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "support/swap_harness.h"
#include "support/test_folder.h"

namespace {
std::atomic<long> allocations{0};

void* counted_or_null(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  return std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}

void* counted(std::size_t bytes, std::size_t alignment) {
  if (void* data = counted_or_null(bytes, alignment)) return data;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted_or_null(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return counted_or_null(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t a) { return counted(bytes, static_cast<std::size_t>(a)); }
void* operator new[](std::size_t bytes, std::align_val_t a) { return counted(bytes, static_cast<std::size_t>(a)); }
// Inlined into the library's code, the pair looks to GCC 12 like delete of what another function allocated.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }

namespace spillway {
namespace {

using namespace spillway::testing;

TEST(SwapStoreAllocation, MovingExtentsAllocatesNothing) {
  constexpr int kExtents = 5;
  constexpr std::int64_t kBytes = 19 * SwapStore::alignment;
  const TestFolder folder;
  for (const std::string_view engine : io_engine_names()) {
    auto options = store_options(folder.path(), std::vector<std::int64_t>(kExtents, kBytes));
    options.block_bytes = 4 * SwapStore::alignment;
    options.engine = {std::string(engine), 3};  // fewer requests than blocks: the full queue is tried too
    const auto store = make_swap_store(options);
    const auto writer = store->open_channel(IoPriority::streaming), reader = store->open_channel(IoPriority::streaming);
    std::vector<AlignedBuffer> data;
    for (int i = 0; i < kExtents; ++i) data.emplace_back(kBytes).fill(1);

    const long before = allocations;
    std::size_t finished = 0;
    for (int round = 0; round < 4; ++round) {
      for (SwapChannel* channel : {writer.get(), reader.get()}) {
        for (int i = 0; i < kExtents; ++i) {
          AlignedBuffer& buffer = data[static_cast<std::size_t>(i)];
          if (channel == writer.get()) channel->write(i, buffer.data(), 0);
          if (channel == reader.get()) channel->read(i, buffer.data(), 0);
        }
        while (channel->in_flight() > 0) finished += channel->completions(true).size();
      }
    }
    const long during = allocations - before;
    EXPECT_EQ(during, 0) << engine;
    EXPECT_EQ(finished, 4u * 2u * kExtents);
  }
  EXPECT_GT(allocations, 0) << "the counter is not in place";
}

}  // namespace
}  // namespace spillway
