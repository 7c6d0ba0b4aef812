// The cases of every communicator over the processes of one job: started by mpirun, by file_ranks.sh, or alone. All ranks
// run the same cases in lockstep; rank 0 reports for all.
//
// communicator_test [--message_bytes=N] [GoogleTest's own]. With --message_bytes the world is one of several processes
// even for one rank, and larger parts travel in several messages. With SPILLWAY_TEST_DEVICE=cuda each rank has a CUDA device,
// and NCCL moves its memory.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "comm/file_world.h"
#include "comm/launch.h"
#include "comm/mpi_world.h"
#include "support/communicator_cases.h"

namespace spillway::testing {
namespace {

struct Job {
  explicit Job(std::unique_ptr<World> joined) : world(std::move(joined)) {}

  World& world_of_device() { return device_world ? *device_world : *world; }

  std::unique_ptr<World> world;
  std::unique_ptr<Communicator> results = world->communicator();
  std::unique_ptr<Device> device = on_cuda() ? make_cuda_device(world->local_rank())
                                             : make_host_device({.threads = 1, .chaos_max_delay_us = 100, .chaos_seed = 1});
  std::unique_ptr<World> device_world = make_device_world(*world, *device, {});
  std::unique_ptr<Stream> stream = device->make_stream("one"), other_stream = device->make_stream("two");
  RankMemory memory{*device};

 private:
  static bool on_cuda() {
    const char* const device = std::getenv("SPILLWAY_TEST_DEVICE");
    return device != nullptr && std::string_view(device) == "cuda";
  }
};

Job* job = nullptr;

class Communicators : public ::testing::TestWithParam<CommunicatorCase> {
 protected:
  // What failed on any rank fails on rank 0.
  void TearDown() override {
    std::string mine;
    const ::testing::TestResult& result = *::testing::UnitTest::GetInstance()->current_test_info()->result();
    for (int i = 0; i < result.total_part_count(); ++i)
      if (result.GetTestPartResult(i).failed()) mine += std::string(result.GetTestPartResult(i).message()) + "\n";
    const std::vector<std::string> all = job->results->exchange(mine);
    if (job->world->rank() != 0) return;
    for (std::size_t r = 1; r < all.size(); ++r)
      if (!all[r].empty()) ADD_FAILURE() << "rank " << r << ": " << all[r];
  }
};

TEST_P(Communicators, DoAsTheReference) {
  try {
    job->memory.reset();
    GetParam().run({job->world_of_device(), job->memory, *job->stream, *job->other_stream});
  } catch (const std::exception& error) {
    // The ranks are no longer in step: end all of them.
    std::fprintf(stderr, "rank %d: %s\n", job->world->rank(), error.what());
    job->world->fail(error.what());
    std::_Exit(1);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Communicators, ::testing::ValuesIn(communicator_cases().begin(), communicator_cases().end()),
                         [](const auto& info) { return std::string(info.param.name); });

// Takes the words that are this program's out of the arguments, and GoogleTest's report where another rank writes it. Ends
// in a null pointer, as arguments do: GoogleTest moves it too.
std::vector<char*> remaining_arguments(int argc, char** argv, const World& world) {
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with("--message_bytes=") || (world.rank() != 0 && word.starts_with("--gtest_output="))) continue;
    rest.push_back(argv[i]);
  }
  rest.push_back(nullptr);
  return rest;
}

std::unique_ptr<World> join(int argc, char** argv) {
  constexpr std::string_view kMessageBytes = "--message_bytes=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with(kMessageBytes)) continue;
    const std::int64_t bytes = std::atoll(argv[i] + kMessageBytes.size());
    comm::Launch launch = comm::detect_launch([](const char* name) { return std::getenv(name); });
    const char* file = std::getenv("SPILLWAY_RENDEZVOUS");
    if (file == nullptr) return comm::make_mpi_world({}, launch, bytes);
    launch.rendezvous = file;
    return comm::make_file_world({}, launch, bytes);
  }
  return join_world({});
}

int run(int argc, char** argv) {
  Job this_job(join(argc, argv));
  job = &this_job;
  std::vector<char*> arguments = remaining_arguments(argc, argv, *this_job.world);
  int count = static_cast<int>(arguments.size()) - 1;
  ::testing::InitGoogleTest(&count, arguments.data());
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (this_job.world->rank() != 0) delete listeners.Release(listeners.default_result_printer());
  const char* expected = std::getenv("SPILLWAY_TEST_RANKS");
  if (expected != nullptr && std::atoi(expected) != this_job.world->size()) {
    std::fprintf(stderr, "this is a world of %d, and was to be one of %s\n", this_job.world->size(), expected);
    return 1;
  }
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace spillway::testing

int main(int argc, char** argv) { return spillway::testing::run(argc, argv); }
