#include "swap_channel.h"

#include <cassert>
#include <utility>

#include "base/hash.h"
#include "spillway/error.h"
#include "swap_failure.h"

namespace spillway {

namespace {

// Places for transfers made at once, so that later none has to be.
constexpr std::size_t kTransfers = 256;

std::uint64_t checksum_of(const RingTransfer& transfer) { return hash_bytes({transfer.data, static_cast<std::size_t>(transfer.bytes)}); }

}  // namespace

StoreChannel::StoreChannel(SwapState& state, IoPriority priority) : state_(state), priority_(priority), transfers_(kTransfers) {
  for (Transfer& transfer : transfers_) free_.push(transfer);
  finished_.reserve(kTransfers);
  returned_.reserve(kTransfers);
}

StoreChannel::~StoreChannel() {
  mailbox_.close();
  for (const auto& path : state_.paths) path->drop_closed();
  while (started_ > 0) collect(true);
}

StoreChannel::Transfer& StoreChannel::free_transfer() {
  if (free_.empty()) return transfers_.emplace_back();
  return static_cast<Transfer&>(free_.pop());
}

void StoreChannel::read(int extent, std::byte* data, std::uint64_t tag) {
  const ExtentRecord& record = state_.records.at(static_cast<std::size_t>(extent));
  if (record.content != ExtentRecord::Content::whole) {
    const bool torn = record.content == ExtentRecord::Content::torn;
    throw IoError(failure_text(state_, extent, IoOp::read,
                               std::string(torn ? "its last write did not finish" : "it was never written") + "; write it first"));
  }
  Transfer& transfer = free_transfer();
  transfer.record = record;
  start(transfer, extent, IoOp::read, data, tag);
}

void StoreChannel::write(int extent, const std::byte* data, std::uint64_t tag) {
  ExtentRecord& record = state_.records.at(static_cast<std::size_t>(extent));
  if (state_.failure.happened()) throw IoError(not_begun(state_, extent, IoOp::write));
  Transfer& transfer = free_transfer();
  const bool whole = record.content == ExtentRecord::Content::whole;
  transfer.record = {ExtentRecord::Content::whole, whole, 0, record.checksum};
  record.content = ExtentRecord::Content::torn;  // until the last block is on disk
  start(transfer, extent, IoOp::write, const_cast<std::byte*>(data), tag);  // a transfer has one pointer; a write only reads it
}

void StoreChannel::start(Transfer& transfer, int extent, IoOp op, std::byte* data, std::uint64_t tag) {
  assert(reinterpret_cast<std::uintptr_t>(data) % SwapStore::alignment == 0);
  const auto e = static_cast<std::size_t>(extent);
  static_cast<RingTransfer&>(transfer) = {.op = op,
                                          .priority = priority_,
                                          .extent = extent,
                                          .offset = state_.places[e].offset,
                                          .bytes = state_.extents[e].bytes,
                                          .data = data,
                                          .mailbox = &mailbox_};
  transfer.tag = tag;
  if (op == IoOp::write && state_.verify) transfer.record.checksum = checksum_of(transfer);
  ++started_;
  state_.path_of(extent).push(transfer);
}

int StoreChannel::in_flight() const { return started_ + waiting_ + static_cast<int>(finished_.size() + failures_.size()); }

void StoreChannel::collect(bool wait) {
  for (TransferList delivered = mailbox_.take(wait); !delivered.empty(); --started_, ++waiting_) arrived_.push(delivered.pop());
}

// At most one extent is checked per call: what is finished should not wait for the checksums of others.
std::span<const SwapCompletion> StoreChannel::completions(bool wait) {
  returned_.clear();
  if (started_ > 0) collect(false);
  while (arrived_.empty() && wait && finished_.empty() && failures_.empty() && started_ > 0) collect(true);
  for (bool checked = false; !arrived_.empty() && !checked; --waiting_) {
    Transfer& transfer = static_cast<Transfer&>(arrived_.pop());
    checked = finish(transfer);
    free_.push(transfer);
  }
  if (!failures_.empty()) {
    const IoError error(failures_.front());
    failures_.erase(failures_.begin());
    throw error;
  }
  std::swap(finished_, returned_);
  return returned_;
}

// True if it took a checksum.
bool StoreChannel::finish(Transfer& transfer) {
  if (transfer.error != 0) {
    failures_.push_back(transfer_failure(state_, transfer));
    return false;
  }
  if (transfer.op == IoOp::read) return finish_read(transfer);
  finish_write(transfer);
  return false;
}

void StoreChannel::finish_write(const Transfer& transfer) {
  state_.records[static_cast<std::size_t>(transfer.extent)] = transfer.record;
  state_.write_bytes.fetch_add(transfer.bytes, std::memory_order_relaxed);
  finished_.push_back({transfer.tag});
}

bool StoreChannel::finish_read(const Transfer& transfer) {
  state_.read_bytes.fetch_add(transfer.bytes, std::memory_order_relaxed);
  const std::uint64_t found = state_.verify ? checksum_of(transfer) : 0;
  if (!state_.verify || found == transfer.record.checksum) {
    finished_.push_back({transfer.tag});
    return state_.verify;
  }
  state_.checksum_failures.fetch_add(1, std::memory_order_relaxed);
  state_.path_of(transfer.extent).activity().checksum_failures.fetch_add(1, std::memory_order_relaxed);
  std::string text;
  const auto describe = [&] { return text = checksum_failure(state_, transfer, transfer.record, found); };
  state_.failure.note(describe);
  failures_.push_back(text.empty() ? describe() : std::move(text));
  return true;
}

}  // namespace spillway
