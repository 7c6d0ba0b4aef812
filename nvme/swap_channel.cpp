#include "swap_channel.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "base/text.h"
#include "errno_text.h"
#include "spillway/error.h"

namespace spillway {

namespace {

// How often one block may be tried without moving (EAGAIN, EINTR, nothing transferred) before it fails.
constexpr int kMaxStalls = 64;
// Places for transfers made at once, so that later none has to be.
constexpr std::size_t kTransfers = 256;

const char* verb(IoOp op) { return op == IoOp::read ? "read" : "write"; }

std::span<const std::byte> bytes_of(const SwapExtent& extent, const std::byte* data) {
  return {data, static_cast<std::size_t>(extent.bytes)};
}

}  // namespace

EngineSwapChannel::EngineSwapChannel(SwapState& state, std::unique_ptr<IoEngine> engine)
    : state_(state),
      transfers_(kTransfers),
      blocks_(static_cast<std::size_t>(engine->depth())),
      results_(blocks_.size()),
      engine_(std::move(engine)) {
  for (int i = engine_->depth() - 1; i >= 0; --i) free_blocks_.push_back(i);
  free_transfers_.reserve(kTransfers);
  for (int i = static_cast<int>(kTransfers) - 1; i >= 0; --i) free_transfers_.push_back(i);
  finished_.reserve(transfers_.size());
  returned_.reserve(transfers_.size());
}

void EngineSwapChannel::read(int extent, std::byte* data, std::uint64_t tag) {
  const ExtentRecord& record = state_.records.at(static_cast<std::size_t>(extent));
  if (record.content != ExtentRecord::Content::whole) {
    const bool torn = record.content == ExtentRecord::Content::torn;
    throw IoError(fmt::format("[nvme] read {} ({}): {}; write it first",
                              state_.extents[static_cast<std::size_t>(extent)].name, state_.file.folder(),
                              torn ? "its last write did not finish" : "it was never written"));
  }
  Transfer transfer;
  transfer.extent = extent;
  transfer.op = IoOp::read;
  transfer.data = data;
  transfer.tag = tag;
  transfer.checksum = record.checksum;
  start(transfer);
}

void EngineSwapChannel::write(int extent, const std::byte* data, std::uint64_t tag) {
  ExtentRecord& record = state_.records.at(static_cast<std::size_t>(extent));
  Transfer transfer;
  transfer.extent = extent;
  transfer.op = IoOp::write;
  transfer.data = const_cast<std::byte*>(data);  // an IoRequest has one pointer; a write only reads it
  transfer.tag = tag;
  if (state_.verify) transfer.checksum = hash_bytes(bytes_of(state_.extents[static_cast<std::size_t>(extent)], data));
  record.content = ExtentRecord::Content::torn;  // until the last block is on disk
  start(transfer);
}

int EngineSwapChannel::in_flight() const {
  return moving_ + static_cast<int>(finished_.size()) + static_cast<int>(failures_.size());
}

std::span<const SwapCompletion> EngineSwapChannel::completions(bool wait) {
  returned_.clear();
  reap(0);
  while (wait && finished_.empty() && failures_.empty() && moving_ > 0) reap(1);
  if (!failures_.empty()) {
    const IoError error(failures_.front());
    failures_.erase(failures_.begin());
    throw error;
  }
  std::swap(finished_, returned_);
  return returned_;
}

int EngineSwapChannel::free_transfer() {
  if (free_transfers_.empty()) {
    transfers_.emplace_back();
    return static_cast<int>(transfers_.size()) - 1;
  }
  const int slot = free_transfers_.back();
  free_transfers_.pop_back();
  return slot;
}

const SwapExtent& EngineSwapChannel::extent_of(const Transfer& transfer) const {
  return state_.extents[static_cast<std::size_t>(transfer.extent)];
}

// Queues the extent's blocks. While the engine is full, results are handled here and kept for completions().
void EngineSwapChannel::start(const Transfer& transfer) {
  assert(reinterpret_cast<std::uintptr_t>(transfer.data) % SwapStore::alignment == 0);
  const std::int64_t total = extent_of(transfer).bytes;
  const int slot = free_transfer();
  transfers_[static_cast<std::size_t>(slot)] = transfer;
  transfers_[static_cast<std::size_t>(slot)].blocks_left = (total + state_.block_bytes - 1) / state_.block_bytes;
  ++moving_;
  for (std::int64_t offset = 0; offset < total; offset += state_.block_bytes) {
    while (free_blocks_.empty()) {
      engine_->submit();
      reap(1);
    }
    const int block = free_blocks_.back();
    free_blocks_.pop_back();
    blocks_[static_cast<std::size_t>(block)] = {slot, offset, std::min(state_.block_bytes, total - offset), 0};
    if (!queue(block)) end_block(block, EAGAIN);
  }
  engine_->submit();
}

// False only if the engine breaks its word: there are as many blocks as requests it takes.
bool EngineSwapChannel::queue(int block) {
  const Block& part = blocks_[static_cast<std::size_t>(block)];
  const Transfer& transfer = transfers_[static_cast<std::size_t>(part.transfer)];
  return engine_->queue({transfer.op, state_.file.fd(), extent_of(transfer).offset + part.offset, transfer.data + part.offset,
                         part.bytes, static_cast<std::uint64_t>(block)});
}

void EngineSwapChannel::reap(int min_results) {
  const int count = engine_->reap(results_, min_results);
  for (const IoResult& result : std::span(results_).first(static_cast<std::size_t>(count))) handle(result);
  if (count > 0) engine_->submit();  // what short transfers have queued again
}

void EngineSwapChannel::handle(const IoResult& result) {
  const int block = static_cast<int>(result.tag);
  Block& part = blocks_[static_cast<std::size_t>(block)];
  const Transfer& transfer = transfers_[static_cast<std::size_t>(part.transfer)];
  const bool interrupted = result.error == EINTR || result.error == EAGAIN;
  if (result.error != 0 && !interrupted) return end_block(block, result.error);
  if (!interrupted && result.bytes == part.bytes) return end_block(block, 0);
  const bool end_of_file = result.bytes == 0 && transfer.op == IoOp::read;
  if (!interrupted && end_of_file) return end_block(block, ENODATA);

  // O_DIRECT wants to go on at an aligned place, so an odd tail is moved again.
  const std::int64_t moved = interrupted ? 0 : result.bytes / SwapStore::alignment * SwapStore::alignment;
  part.offset += moved;
  part.bytes -= moved;
  part.stalls = moved > 0 ? 0 : part.stalls + 1;
  if (part.stalls > kMaxStalls) return end_block(block, interrupted ? result.error : EIO);
  if (!queue(block)) end_block(block, EAGAIN);
}

void EngineSwapChannel::end_block(int block, int error) {
  const Block part = blocks_[static_cast<std::size_t>(block)];
  free_blocks_.push_back(block);
  Transfer& transfer = transfers_[static_cast<std::size_t>(part.transfer)];
  if (error != 0 && transfer.error == 0) {
    transfer.error = error;
    transfer.error_offset = part.offset;
  }
  if (--transfer.blocks_left == 0) finish(part.transfer);
}

void EngineSwapChannel::finish(int slot) {
  const Transfer transfer = transfers_[static_cast<std::size_t>(slot)];
  free_transfers_.push_back(slot);
  --moving_;
  if (transfer.error != 0) return fail(transfer, failure_reason(transfer));
  if (transfer.op == IoOp::read) return finish_read(transfer);
  state_.records[static_cast<std::size_t>(transfer.extent)] = {ExtentRecord::Content::whole, transfer.checksum};
  state_.write_bytes.fetch_add(extent_of(transfer).bytes, std::memory_order_relaxed);
  finished_.push_back({transfer.tag});
}

void EngineSwapChannel::finish_read(const Transfer& transfer) {
  state_.read_bytes.fetch_add(extent_of(transfer).bytes, std::memory_order_relaxed);
  if (state_.verify) {
    const std::uint64_t found = hash_bytes(bytes_of(extent_of(transfer), transfer.data));
    if (found != transfer.checksum) {
      state_.checksum_failures.fetch_add(1, std::memory_order_relaxed);
      return fail(transfer, fmt::format("checksum of what was written {}, of what was read back {}; the disk, its "
                                        "link or memory corrupts data: check it (smartctl, dmesg) and resume from "
                                        "the last checkpoint",
                                        hex64(transfer.checksum), hex64(found)));
    }
  }
  finished_.push_back({transfer.tag});
}

void EngineSwapChannel::fail(const Transfer& transfer, const std::string& reason) {
  failures_.push_back(fmt::format("[nvme] {} {} ({}): {}", verb(transfer.op), extent_of(transfer).name,
                                  state_.file.folder(), reason));
}

std::string EngineSwapChannel::failure_reason(const Transfer& transfer) const {
  const SwapExtent& range = extent_of(transfer);
  const std::int64_t file_bytes = state_.file.bytes_now();
  if (transfer.op == IoOp::read && file_bytes < range.offset + range.bytes) {
    return fmt::format("the swap file ends at byte {}, the extent at {}; something truncated it: find out what and "
                       "resume from the last checkpoint",
                       file_bytes, range.offset + range.bytes);
  }
  const std::string text = errno_text(transfer.error);
  if (transfer.error == ENOSPC || transfer.error == EDQUOT) {
    return fmt::format("{}; needs {}, {} free; make room and resume from the last checkpoint", text,
                       human_bytes(range.bytes), human_bytes(state_.file.free_bytes_now()));
  }
  return fmt::format("{}, at byte {} of the swap file; check the disk (smartctl, dmesg) and resume from the last "
                     "checkpoint",
                     text, range.offset + transfer.error_offset);
}

}  // namespace spillway
