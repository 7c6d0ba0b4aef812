// Makes a swap store: checks the extents, owns the file, opens channels.
#include "spillway/swap_store.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "errno_text.h"
#include "spillway/error.h"
#include "swap_channel.h"
#include "swap_state.h"

namespace spillway {

namespace {

// A wrong table would overwrite one extent with another without a word, so it is checked in every build.
void check(const SwapStoreOptions& options) {
  const auto refuse = [&](const std::string& why) {
    throw IoError(fmt::format("[nvme] make swap store ({}): {}", options.folder, why));
  };
  const auto aligned = [](std::int64_t value) { return value >= 0 && value % SwapStore::alignment == 0; };
  if (options.bytes < 0) refuse(fmt::format("size {} is negative", options.bytes));
  if (options.block_bytes == 0 || !aligned(options.block_bytes) || options.block_bytes > IoEngine::max_transfer_bytes) {
    refuse(fmt::format("block size {} is not a multiple of {} up to {}", options.block_bytes, SwapStore::alignment,
                       IoEngine::max_transfer_bytes));
  }
  std::vector<const SwapExtent*> by_offset;
  for (const SwapExtent& extent : options.extents) {
    if (!aligned(extent.offset) || !aligned(extent.bytes) || extent.bytes == 0) {
      refuse(fmt::format("{} at {} of {} bytes is empty or not a multiple of {}", extent.name, extent.offset,
                         extent.bytes, SwapStore::alignment));
    }
    if (extent.bytes > options.bytes || extent.offset > options.bytes - extent.bytes) {
      refuse(fmt::format("{} at {} of {} bytes ends past the file's {} bytes", extent.name, extent.offset, extent.bytes,
                         options.bytes));
    }
    by_offset.push_back(&extent);
  }
  std::ranges::sort(by_offset, {}, &SwapExtent::offset);
  for (std::size_t i = 1; i < by_offset.size(); ++i) {
    const SwapExtent &a = *by_offset[i - 1], &b = *by_offset[i];
    if (a.offset + a.bytes > b.offset) refuse(fmt::format("{} and {} overlap at byte {}", a.name, b.name, b.offset));
  }
}

class FileSwapStore final : public SwapStore {
 public:
  explicit FileSwapStore(SwapStoreOptions options)
      : state_(options), engine_options_(options.engine), make_engine_(std::move(options.make_engine)) {
    if (!make_engine_) make_engine_ = make_io_engine;
    memory_ = std::exchange(engine_options_.memory, {});
    // Made and dropped: whatever forbids it is told at start. The name is settled here, so that every
    // channel uses the same engine.
    engine_name_ = make_engine_(engine_options_)->name();
    if (engine_options_.name == "auto") engine_options_.name = engine_name_;
  }

  using SwapStore::open_channel;
  std::unique_ptr<SwapChannel> open_channel(ChannelUse use) override {
    IoEngineOptions options = engine_options_;
    if (use == ChannelUse::every_step) options.memory = memory_;
    return std::make_unique<EngineSwapChannel>(state_, make_engine_(options));
  }

  SwapCounters counters() const override {
    return {state_.read_bytes.load(std::memory_order_relaxed), state_.write_bytes.load(std::memory_order_relaxed),
            state_.checksum_failures.load(std::memory_order_relaxed)};
  }

  std::string_view engine_name() const override { return engine_name_; }
  bool buffered() const override { return state_.file.buffered(); }

  void corrupt_for_test(int extent, std::int64_t byte, int bit) override {
    const SwapExtent& range = state_.extents.at(static_cast<std::size_t>(extent));
    if (byte < 0 || byte >= range.bytes) {
      throw IoError(fmt::format("[nvme] corrupt {}: it has no byte {}", range.name, byte));
    }
    struct Page {
      alignas(alignment) std::byte bytes[alignment];
    };
    const auto page = std::make_unique<Page>();
    const std::int64_t offset = range.offset + byte / alignment * alignment;
    const auto require = [&](ssize_t moved, const char* verb) {
      if (moved == alignment) return;
      throw IoError(fmt::format("[nvme] {} a page of {} to corrupt it ({}): {}", verb, range.name,
                                state_.file.folder(), moved < 0 ? errno_text(errno) : "short transfer"));
    };
    require(pread(state_.file.fd(), page->bytes, alignment, offset), "read");
    page->bytes[byte % alignment] ^= std::byte{1} << bit;
    require(pwrite(state_.file.fd(), page->bytes, alignment, offset), "write");
  }

 private:
  SwapState state_;
  IoEngineOptions engine_options_;
  std::span<std::byte> memory_;  // for channels that are worth it
  std::function<std::unique_ptr<IoEngine>(const IoEngineOptions&)> make_engine_;
  std::string engine_name_;
};

}  // namespace

std::unique_ptr<SwapStore> make_swap_store(SwapStoreOptions options) {
  check(options);
  return std::make_unique<FileSwapStore>(std::move(options));
}

}  // namespace spillway
