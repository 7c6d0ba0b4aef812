#include "gpu/nccl_world.h"

#include <cstring>
#include <string>
#include <vector>

#include "gpu/check.h"
#include "gpu/device.h"
#include "gpu/nccl_communicator.h"
#include "gpu/nccl_library.h"
#include "gpu/nccl_link.h"
#include "gpu/nccl_watch.h"
#include "spillway/error.h"

namespace spillway::cuda {

namespace {

// What a rank brings to the others: its device, and rank 0 the id by which they meet. Or what is wrong.
struct Introduction {
  std::string error, device, id;

  std::string text() const { return error + '\n' + device + '\n' + id; }
  static Introduction of(const std::string& text) {
    const std::size_t first = text.find('\n'), second = text.find('\n', first + 1);
    return {text.substr(0, first), text.substr(first + 1, second - first - 1), text.substr(second + 1)};
  }
};

std::string place_of(const World& world, int device) {
  char address[32] = {};
  check(cudaDeviceGetPCIBusId(address, sizeof(address), device), "ask for the device's PCI address");
  return "the device at " + std::string(address) + " of " + world.host();
}

Introduction introduce(const World& world, int device) {
  Introduction mine;
  try {
    mine.device = place_of(world, device);
    const NcclLibrary& library = nccl();
    if (world.rank() != 0) return mine;
    ncclUniqueId id;
    if (const ncclResult_t result = library.get_unique_id(&id); result != ncclSuccess)
      throw CommError(std::string("[nccl] make an id for the ranks: ") + library.error_string(result));
    mine.id.assign(id.internal, sizeof(id.internal));
  } catch (const Error& error) {
    mine.error = error.what();
  }
  return mine;
}

// Every rank hears of what is wrong with any of them: none waits for one that does not come.
ncclUniqueId agree(Communicator& control, const Introduction& mine) {
  std::vector<Introduction> all;
  for (const std::string& text : control.exchange(mine.text())) all.push_back(Introduction::of(text));
  for (std::size_t r = 0; r < all.size(); ++r)
    if (!all[r].error.empty()) throw CommError(static_cast<int>(r) == control.rank() ? all[r].error : "rank " + std::to_string(r) + ": " + all[r].error);
  for (std::size_t r = 0; r < all.size(); ++r)
    for (std::size_t s = 0; s < r; ++s)
      if (all[r].device == all[s].device)
        throw CommError("[nccl] join the ranks: ranks " + std::to_string(s) + " and " + std::to_string(r) + " both use " + all[r].device +
                        ", and NCCL needs one of its own for each; start as many ranks as there are devices");
  ncclUniqueId id;
  std::memcpy(id.internal, all[0].id.data(), sizeof(id.internal));
  return id;
}

class NcclWorld final : public World {
 public:
  NcclWorld(World& world, Device& device, double timeout_s)
      : world_(world), index_(context_of(device).index), control_(world.communicator()), watch_(world, timeout_s) {
    context_of(device).enter();
    if (world.size() == 1) return;
    const ncclUniqueId id = agree(*control_, introduce(world, index_));
    everyone_ = std::make_unique<NcclLink>(watch_, id, world.rank(), world.size());
  }

  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  int local_rank() const override { return world_.local_rank(); }
  int local_size() const override { return world_.local_size(); }
  const std::string& host() const override { return world_.host(); }

  std::unique_ptr<Communicator> communicator() override {
    std::unique_ptr<Communicator> control = world_.communicator();
    return std::make_unique<NcclCommunicator>(std::move(control), everyone_ ? everyone_->split(0, rank()) : nullptr, watch_, index_);
  }

  void note_step(std::int64_t step) override { world_.note_step(step); }
  void note_operation(std::string_view operation, std::string_view object) override { world_.note_operation(operation, object); }
  void check() override { watch_.check(); }
  void fail(const std::string& error) override { world_.fail(error); }

 private:
  World& world_;
  const int index_;
  const std::unique_ptr<Communicator> control_;
  NcclWatch watch_;
  std::unique_ptr<NcclLink> everyone_;  // from which groups are split, nothing else uses it; nullptr: one rank, which needs no NCCL
};

}  // namespace

std::unique_ptr<World> make_nccl_world(World& control, Device& device, const WorldOptions& options) {
  return std::make_unique<NcclWorld>(control, device, options.timeout_s);
}

}  // namespace spillway::cuda
