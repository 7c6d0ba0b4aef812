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

std::byte* OpMemory::reserve(std::int64_t bytes) {
  const std::int64_t begin = used_ + kAlignment;
  used_ = (begin + bytes + static_cast<std::int64_t>(GuardedBytes::kGuard) + kAlignment - 1) / kAlignment * kAlignment;
  if (used_ > kArenaBytes) throw std::length_error("a test of a kernel uses more than the arena that op_device.cpp gives it");
  return under_test().arena + begin;
}

void OpMemory::upload(GuardedBytes& array, std::byte* at) {
  transfer(*under_test().stream, array.guarded(), at - GuardedBytes::kGuard, Direction::up);
  placed_.push_back({&array, at});
}

std::byte* OpMemory::place(GuardedBytes& array) {
  for (const Placed& known : placed_)
    if (known.array == &array) return known.at;
  if (on_cuda()) {
    upload(array, reserve(static_cast<std::int64_t>(array.span().size())));
  } else {
    placed_.push_back({&array, array.data()});
  }
  return placed_.back().at;
}

// On a CUDA device too large to be carried there and back: only its guards are.
std::span<std::byte> OpMemory::scratch_in_arena(std::int64_t bytes) {
  constexpr auto kGuard = static_cast<std::int64_t>(GuardedBytes::kGuard);
  std::byte *const first = reserve(kAlignment + bytes + kGuard), *const at = first + kAlignment;
  Stream& stream = *under_test().stream;
  std::memset(under_test().staging, 0xff, static_cast<std::size_t>(std::min(bytes, kStagingBytes)));  // NaN
  for (std::int64_t done = 0; done < bytes; done += kStagingBytes)
    stream.copy(at + done, under_test().staging, std::min(bytes - done, kStagingBytes));
  stream.synchronize();
  upload(scratch_.emplace_back(0), at - kGuard);
  upload(scratch_.emplace_back(0), at + bytes + kGuard);
  return {at, static_cast<std::size_t>(bytes)};
}

std::span<std::byte> OpMemory::scratch(std::int64_t bytes) {
  if (on_cuda()) return scratch_in_arena(bytes);
  GuardedBytes& memory = scratch_.emplace_back(static_cast<std::size_t>(bytes));
  return {place(memory), static_cast<std::size_t>(bytes)};
}

void OpMemory::finish(Stream& stream) {
  for (std::size_t i = 0; i < placed_.size(); ++i) {
    GuardedBytes& array = *placed_[i].array;
    if (on_cuda()) transfer(stream, array.guarded(), placed_[i].at - GuardedBytes::kGuard, Direction::down);
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
