// What each kind of task does, in terms of layers, kernels, copies and transfers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/executor.h"
#include "runtime/gate.h"
#include "runtime/plan_memory.h"
#include "spillway/device.h"
#include "spillway/model.h"
#include "spillway/ops.h"

namespace spillway {

class PlanActions final : public TaskActions {
 public:
  // Borrows everything.
  PlanActions(const Plan& plan, PlanMemory& memory, const std::vector<std::unique_ptr<Layer>>& layers, Device& device, Ops& ops,
              Gate& gate);

  void enqueue(const Task& task, Stream& stream) override;
  void execute(const Task& task) override;
  int start_transfers(const Task& task, SwapChannel& channel, std::uint64_t tag) override;

  // Before a run of the step program: the tokens of all its micro-batches that have a target. In a
  // rehearsal everything runs but nothing is updated and the gate remembers nothing.
  void begin_step(std::int64_t counted_tokens, bool rehearsal);

  // After the gate of that run.
  const GateVerdict& verdict() const { return verdict_; }
  const std::string& first_bad_tensor() const { return first_bad_tensor_; }
  std::int64_t gate_ns() const { return gate_ns_; }

 private:
  template <class T>
  T* pointer(const Task& task, Role role) const;
  std::span<std::byte> workspace(const Task& task) const;
  bool skips(const Task& task) const;

  void copy(const Task& task, Stream& stream);
  void forward(const Task& task, Stream& stream);
  void backward(const Task& task, Stream& stream);
  FinalizeGradient finalize_arguments(const Task& task) const;
  AdamTile adam_tile(const Task& task) const;
  void update_on_host(const Task& task) const;
  void decide(const Task& task);
  std::string tensor_of_bad_piece(const Task& task) const;
  std::vector<std::byte> gradient_piece(const Access& access, std::int64_t begin, std::int64_t end) const;

  const Plan& plan_;
  PlanMemory& memory_;
  const std::vector<std::unique_ptr<Layer>>& layers_;
  Device& device_;
  Ops& ops_;
  Gate& gate_;
  std::vector<double> square_sums_;  // of all layers in order
  std::int64_t counted_tokens_ = 0;
  bool rehearsal_ = false;
  float gradient_scale_ = 1.0f;      // on the gradient of one token's loss
  GateVerdict verdict_;
  std::string first_bad_tensor_;
  std::int64_t gate_ns_ = 0;
};

}  // namespace spillway
