// A rank of a job in which something goes wrong on purpose: comm_fault TIMEOUT_S WHAT VICTIM. Driven by
// comm_fault_test.py. Steps of all-gathers, between CUDA devices if SPILLWAY_TEST_DEVICE=cuda; in step 17 the victim does WHAT. Ends as the program does: what it was told
// on standard error and status 7 for a CommError, 1 for an error of its own.
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "spillway/communicator.h"
#include "spillway/device.h"
#include "spillway/error.h"

namespace spillway::testing {
namespace {

constexpr int kSteps = 30, kFaultStep = 17;

void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

bool on_cuda() {
  const char* const device = std::getenv("SPILLWAY_TEST_DEVICE");
  return device != nullptr && std::string_view(device) == "cuda";
}

void do_fault(std::string_view what, double timeout_s) {
  sleep_s(0.3);  // the others hear where it is
  if (what == "stop") raise(SIGSTOP);
  if (what == "kill") raise(SIGKILL);
  if (what == "throw") throw DataError("token file lost");
  if (what == "exit") std::_Exit(3);
  if (what == "slow") sleep_s(1.5 * timeout_s);
}

class Trainer {
 public:
  Trainer(World& world, std::string_view what, bool victim, double timeout_s) : world_(world), what_(what), victim_(victim), timeout_s_(timeout_s) {
    for (int r = 0; r < world.size(); ++r) parts_.push_back({r * kPartBytes, kPartBytes});
  }

  void train() {
    for (int step = 1; step <= kSteps; ++step) {
      world_.note_step(step);
      world_.note_operation("backward", "block 3");
      if (victim_ && step == kFaultStep) do_fault(what_, timeout_s_);
      world_.note_operation("reduce", "block 3");
      comm_->all_gather(*stream_, buffer_, parts_);
      stream_->synchronize();
    }
    // Those who are done wait for one who is not, for longer than the timeout.
    if (victim_ && what_ == "late") sleep_s(1.5 * timeout_s_);
  }

 private:
  // Larger than what MPI sends without the receiver's help.
  static constexpr std::int64_t kPartBytes = 300'000;

  World& world_;
  const std::string_view what_;
  const bool victim_;
  const double timeout_s_;
  std::vector<Part> parts_;
  std::unique_ptr<Device> device_ = on_cuda() ? make_cuda_device(world_.local_rank()) : make_host_device({.threads = 1});
  std::byte* const buffer_ = device_->allocate_arena(world_.size() * kPartBytes);
  std::unique_ptr<World> device_world_ = make_device_world(world_, *device_, {.timeout_s = timeout_s_});
  std::unique_ptr<Communicator> comm_ = (device_world_ ? *device_world_ : world_).communicator();
  std::unique_ptr<Stream> stream_ = device_->make_stream("reduce");
};

// As the program's own, which ends it after its step. mpirun sends it to all when one has died.
void ignore_sigterm() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
}

int run(double timeout_s, std::string_view what, int victim) {
  const std::unique_ptr<World> world = join_world({.timeout_s = timeout_s});
  try {
    Trainer(*world, what, world->rank() == victim, timeout_s).train();
  } catch (const Error& error) {
    std::fprintf(stderr, "comm_fault: %s\n", error.what());
    world->fail(error.what());
    return dynamic_cast<const CommError*>(&error) != nullptr ? 7 : 1;
  }
  return 0;
}

}  // namespace
}  // namespace spillway::testing

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  spillway::testing::ignore_sigterm();
  try {
    return spillway::testing::run(std::atof(argv[1]), argv[2], std::atoi(argv[3]));
  } catch (const spillway::CommError& error) {
    std::fprintf(stderr, "comm_fault: %s\n", error.what());
    return 7;
  }
}
