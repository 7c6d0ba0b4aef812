// What is measured over ranks is a rate, and the same one for all of them.
#include <cmath>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/measure_comm.h"
#include "support/thread_world.h"

namespace spillway {
namespace {

std::vector<CommRates> measured(int world) {
  std::vector<std::unique_ptr<World>> worlds = testing::make_thread_worlds(world);
  std::vector<CommRates> rates(worlds.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < worlds.size(); ++r) {
    threads.emplace_back([&, r] {
      HostDeviceOptions options;
      options.threads = 1;
      const std::unique_ptr<Device> device = make_host_device(options);
      const std::unique_ptr<Communicator> ranks = worlds[r]->communicator();
      rates[r] = measure_comm_rates(*ranks, *device);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return rates;
}

TEST(MeasureComm, GivesAllRanksTheSameFiniteRates) {
  for (const int world : {2, 3, 4}) {
    const std::vector<CommRates> rates = measured(world);
    for (const CommRates& of : rates) {
      EXPECT_TRUE(std::isfinite(of.bytes_per_s) && of.bytes_per_s > 0.0) << of.bytes_per_s;
      EXPECT_TRUE(std::isfinite(of.latency_s) && of.latency_s > 0.0) << of.latency_s;
      EXPECT_EQ(of.bytes_per_s, rates[0].bytes_per_s);
      EXPECT_EQ(of.latency_s, rates[0].latency_s);
    }
  }
}

TEST(MeasureComm, HasNothingToMeasureAlone) {
  const CommRates rates = measured(1)[0];
  EXPECT_EQ(rates.bytes_per_s, 0.0);
  EXPECT_EQ(rates.latency_s, 0.0);
}

}  // namespace
}  // namespace spillway
