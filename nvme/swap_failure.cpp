#include "swap_failure.h"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "base/hash.h"
#include "base/text.h"
#include "errno_text.h"

namespace spillway {

namespace {

constexpr std::string_view kResume = "resume from the last checkpoint";

const char* verb(IoOp op) { return op == IoOp::read ? "read" : "write"; }

const SwapExtent& extent_of(const SwapState& state, int extent) { return state.extents[static_cast<std::size_t>(extent)]; }

// Errors that a disk or file system which is not there any more answers with. EIO may also come from one bad sector:
// then the header, which lies elsewhere, can still be read.
bool is_gone(const PathWorker& path, int error) {
  switch (error) {
    case ENODEV:
    case ENXIO:
    case ESTALE:
    case ESHUTDOWN: return true;
    case EIO: return path.look_at_header().error != 0;
    default: return false;
  }
}

std::string truncation(const PathWorker& path, const RingTransfer& transfer) {
  const std::int64_t end = transfer.offset + transfer.bytes, now = path.file().bytes_now();
  if (transfer.op != IoOp::read || now >= end) return "";
  return fmt::format("the swap file ends at byte {}, the extent at {}; something truncated it: find out what and {}", now, end, kResume);
}

// What became of a file whose bytes are wrong, if not just these.
std::string file_trouble(const PathWorker& path, const RingTransfer& transfer) {
  if (std::string text = truncation(path, transfer); !text.empty()) return text;
  const PathWorker::Found found = path.look_at_header();
  if (found.error != 0) return fmt::format("the file's header cannot be read either ({}): the disk is gone or failing; {}", errno_text(found.error), kResume);
  if (found.identity == path.identity()) return "";
  const std::string ours = text_of(path.identity());
  if (!found.identity) {
    return fmt::format("the file's header, written for {}, is overwritten too: find out what writes to this disk beside Spillway and {}", ours, kResume);
  }
  return fmt::format("the file is another run's: it was made for {}, and its header is now that of {}; let no two runs write to one "
                     "disk image or device and {}",
                     ours, text_of(*found.identity), kResume);
}

bool all_zero(const RingTransfer& transfer) {
  return std::all_of(transfer.data, transfer.data + transfer.bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

std::string failure_text(SwapState& state, int extent, IoOp op, const std::string& reason) {
  return fmt::format("[nvme] {} {} ({}): {}", verb(op), extent_of(state, extent).name, state.path_of(extent).file().folder(), reason);
}

std::string not_begun(SwapState& state, int extent, IoOp op) {
  return failure_text(state, extent, op, "not begun, since another transfer has failed: " + state.failure.text());
}

std::string transfer_failure(SwapState& state, const RingTransfer& transfer) {
  const int error = transfer.error;
  if (error == kAbandoned) return not_begun(state, transfer.extent, transfer.op);
  const PathWorker& path = state.path_of(transfer.extent);
  const auto with = [&](const std::string& reason) { return failure_text(state, transfer.extent, transfer.op, reason); };
  if (error == kEngineFailed) return with(fmt::format("the I/O engine failed: {}; {}", path.engine_failure(), kResume));
  if (const std::string text = truncation(path, transfer); !text.empty()) return with(text);
  const std::string text = errno_text(error);
  if (error == ENOSPC || error == EDQUOT) {
    return with(fmt::format("{}; needs {}, {} free; make room and {}", text, human_bytes(transfer.bytes),
                            human_bytes(path.file().free_bytes_now()), kResume));
  }
  if (is_gone(path, error)) {
    return with(fmt::format("{}: the disk is gone, detached or unmounted by force; bring it back (lsblk, dmesg) or set nvme_path to "
                            "another, and {}",
                            text, kResume));
  }
  if (error == EROFS) {
    return with(fmt::format("{}: the file system has turned read-only, as it does after errors of the disk; check it (dmesg) and {}", text, kResume));
  }
  return with(fmt::format("{}, at byte {} of the swap file; check the disk (smartctl, dmesg) and {}", text, transfer.error_offset, kResume));
}

std::string checksum_failure(SwapState& state, const RingTransfer& transfer, const ExtentRecord& record, std::uint64_t found) {
  std::string cause = file_trouble(state.path_of(transfer.extent), transfer);
  if (cause.empty() && record.rewritten && found == record.previous_checksum) {
    cause = fmt::format("these are the bytes of the version before: the disk confirmed a write that it has lost; check it (smartctl, dmesg, "
                        "its cache settings) and {}",
                        kResume);
  }
  if (cause.empty() && !record.rewritten && all_zero(transfer)) {
    cause = fmt::format("these are zeros, as before the first write: the disk confirmed a write that it has lost; check it (smartctl, "
                        "dmesg, its cache settings) and {}",
                        kResume);
  }
  if (cause.empty()) {
    cause = fmt::format("the disk, its link or memory corrupts data: check it (smartctl, dmesg) and {}", kResume);
  }
  return failure_text(state, transfer.extent, transfer.op,
                      fmt::format("checksum of what was written {}, of what was read back {}; {}", hex64(record.checksum), hex64(found), cause));
}

}  // namespace spillway
