#include "support/op_device.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string_view>

#include <gtest/gtest.h>

namespace spillway::test {

namespace {

constexpr std::int64_t kArenaBytes = std::int64_t{256} << 20, kStagingBytes = std::int64_t{16} << 20;
constexpr std::int64_t kAlignment = 256;  // of arrays in an arena

struct DeviceUnderTest {
  std::unique_ptr<Device> device = on_cuda() ? make_cuda_device(0) : make_host_device({});
  std::unique_ptr<Stream> stream = device->make_stream("test");
  std::array<std::unique_ptr<Ops>, 3> ops{device->make_ops(DType::f32), device->make_ops(DType::bf16), device->make_ops(DType::f16)};
  std::byte* arena = on_cuda() ? device->allocate_arena(kArenaBytes) : nullptr;
  std::byte* staging = on_cuda() ? device->allocate_pinned(kStagingBytes) : nullptr;
};

DeviceUnderTest& under_test() {
  static DeviceUnderTest opened;
  return opened;
}

enum class Direction { up, down };

// Between `host` and `device`, by way of the pinned memory.
void transfer(Stream& stream, std::span<std::byte> host, std::byte* device, Direction direction) {
  std::byte* const staging = under_test().staging;
  while (!host.empty()) {
    const std::span<std::byte> part = host.first(std::min(host.size(), static_cast<std::size_t>(kStagingBytes)));
    const auto bytes = static_cast<std::int64_t>(part.size());
    if (direction == Direction::up) std::memcpy(staging, part.data(), part.size());
    stream.copy(direction == Direction::up ? device : staging, direction == Direction::up ? staging : device, bytes);
    stream.synchronize();
    if (direction == Direction::down) std::memcpy(part.data(), staging, part.size());
    host = host.subspan(part.size());
    device += bytes;
  }
}

}  // namespace

bool on_cuda() {
  const char* const asked = std::getenv("SPILLWAY_TEST_DEVICE");
  return asked != nullptr && std::string_view(asked) == "cuda";
}

Device& device_under_test() { return *under_test().device; }

std::byte* OpMemory::place(GuardedBytes& array) {
  for (const Placed& known : placed_)
    if (known.array == &array) return known.at;
  std::byte* at = array.data();
  if (on_cuda()) {
    const std::int64_t begin = used_ + kAlignment;
    used_ = (begin + static_cast<std::int64_t>(array.span().size() + GuardedBytes::kGuard) + kAlignment - 1) / kAlignment * kAlignment;
    if (used_ > kArenaBytes) throw std::length_error("a test of a kernel uses more than the arena that op_device.cpp gives it");
    at = under_test().arena + begin;
    transfer(*under_test().stream, array.guarded(), at - GuardedBytes::kGuard, Direction::up);
  }
  placed_.push_back({&array, at});
  return at;
}

std::span<std::byte> OpMemory::scratch(std::int64_t bytes) {
  GuardedBytes& memory = scratch_.emplace_back(static_cast<std::size_t>(bytes));
  return {place(memory), memory.span().size()};
}

void OpMemory::finish(Stream& stream) {
  const auto is_scratch = [this](const GuardedBytes& array) {
    return std::ranges::any_of(scratch_, [&](const GuardedBytes& memory) { return &memory == &array; });
  };
  for (std::size_t i = 0; i < placed_.size(); ++i) {
    GuardedBytes& array = *placed_[i].array;
    if (on_cuda()) {
      const std::span<std::byte> all = array.guarded();
      std::byte* const at = placed_[i].at - GuardedBytes::kGuard;
      if (is_scratch(array)) {  // large, and nobody looks at what is left in it
        transfer(stream, all.first(GuardedBytes::kGuard), at, Direction::down);
        transfer(stream, all.last(GuardedBytes::kGuard), at + all.size() - GuardedBytes::kGuard, Direction::down);
      } else {
        transfer(stream, all, at, Direction::down);
      }
    }
    EXPECT_TRUE(array.guards_intact()) << "something was written beside array " << i << " of the run (" << array.span().size() << " bytes)";
  }
}

void run_ops(DType dtype, const std::function<void(Ops&, Stream&, OpMemory&)>& work) {
  DeviceUnderTest& device = under_test();
  OpMemory on;
  work(*device.ops[static_cast<std::size_t>(dtype)], *device.stream, on);
  device.stream->synchronize();
  on.finish(*device.stream);
}

}  // namespace spillway::test
