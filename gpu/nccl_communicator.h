// A communicator whose collectives of buffers NCCL makes, in the order of CUDA streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/nccl_link.h"
#include "gpu/stream.h"
#include "spillway/communicator.h"

namespace spillway::cuda {

class NcclCommunicator final : public Communicator {
 public:
  // The same ranks; `link` is nullptr for one rank alone. Connects them: what NCCL takes of the device's memory it takes
  // here and not in a step. Collective.
  NcclCommunicator(std::unique_ptr<Communicator> control, std::unique_ptr<NcclLink> link, NcclWatch& watch, int device);

  std::string_view name() const override { return "nccl"; }
  int rank() const override { return control_->rank(); }
  int size() const override { return control_->size(); }
  std::unique_ptr<Communicator> split(int color) override;
  // Buffers are in the device's memory; streams are its streams, or those of another Device for the same one.
  void all_gather(Stream& stream, std::byte* buffer, std::span<const Part> parts) override;
  void all_to_all(Stream& stream, const std::byte* send, std::span<const Part> send_parts, std::byte* receive,
                  std::span<const Part> receive_parts) override;
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override { control_->exchange(mine, all); }
  std::vector<std::string> exchange(const std::string& mine) override { return control_->exchange(mine); }
  void barrier() override { control_->barrier(); }
  std::int64_t sent_bytes() const override { return sent_bytes_.load(std::memory_order_relaxed); }

 private:
  void connect();
  ncclResult_t gather(ncclComm_t comm, cudaStream_t stream, std::byte* buffer, std::span<const Part> parts) const;
  ncclResult_t send_and_receive(ncclComm_t comm, cudaStream_t stream, const std::byte* send, std::span<const Part> send_parts,
                                std::byte* receive, std::span<const Part> receive_parts) const;

  const std::unique_ptr<Communicator> control_;
  const std::unique_ptr<NcclLink> link_;
  NcclWatch& watch_;
  const int device_;
  std::atomic<std::int64_t> sent_bytes_{0};
};

}  // namespace spillway::cuda
