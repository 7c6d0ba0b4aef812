#include "path_worker.h"

#include <algorithm>
#include <utility>

#include "page_memory.h"

namespace spillway {

PathWorker::PathWorker(SwapFile file, SwapIdentity identity, std::span<const PlacedExtent> table, std::int64_t bytes)
    : file_(std::move(file)), identity_(std::move(identity)) {
  file_.allocate(bytes);
  const std::vector<std::byte> header = encode_swap_header(identity_, table);
  const PageMemory pages(static_cast<std::int64_t>(header.size()));
  std::ranges::copy(header, pages.span().begin());
  file_.write(pages.span(), 0);
}

void PathWorker::start(PathRingOptions options, int rings, FirstFailure& failure) {
  block_bytes_ = options.block_bytes;
  options.fd = file_.fd();
  options.engine.files = {file_.fd()};
  options.engine.one_thread = true;
  for (int r = 0; r < rings; ++r) rings_.push_back(std::make_unique<PathRing>(options, activity_, failure));
}

void PathWorker::push(RingTransfer& transfer) {
  const auto ring = std::ranges::min_element(rings_, {}, [](const auto& candidate) { return candidate->pending_bytes(); });
  (*ring)->push(transfer);
}

void PathWorker::drop_closed() {
  for (const auto& ring : rings_) ring->drop_closed();
}

PathWorker::Found PathWorker::look_at_header() const {
  const PageMemory page(SwapStore::alignment);
  Found found;
  found.error = file_.read(page.span(), 0);
  if (found.error == 0) found.identity = decode_swap_identity(page.span());
  return found;
}

std::string PathWorker::engine_failure() const {
  for (const auto& ring : rings_) {
    if (std::string text = ring->engine_failure(); !text.empty()) return text;
  }
  return "";
}

SwapPathHealth PathWorker::health() const {
  SwapPathHealth health;
  health.folder = file_.folder();
  health.file_system = file_.file_system();
  health.engine = engine_name();
  health.buffered = file_.buffered();
  for (const auto& ring : rings_) health.depth += ring->depth();
  health.block_bytes = block_bytes_;
  health.file_bytes = file_.bytes();
  health.read_bytes = activity_.read_bytes.load(std::memory_order_relaxed);
  health.write_bytes = activity_.write_bytes.load(std::memory_order_relaxed);
  health.busy_s = static_cast<double>(activity_.busy.busy_ns(monotonic_ns())) * 1e-9;
  health.read_latency = activity_.read_latency.summary();
  health.write_latency = activity_.write_latency.summary();
  health.retries = activity_.retries.load(std::memory_order_relaxed);
  health.checksum_failures = activity_.checksum_failures.load(std::memory_order_relaxed);
  return health;
}

}  // namespace spillway
