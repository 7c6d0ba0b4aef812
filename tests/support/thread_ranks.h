// Runs a function as every rank of a world at once, each with a communicator of its own.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "spillway/communicator.h"
#include "support/thread_world.h"

namespace spillway::testing {

// A rank that throws has failed to the others; the first exception is re-thrown.
inline void run_ranks(int size, const std::function<void(std::unique_ptr<Communicator>)>& rank_main) {
  const auto worlds = make_thread_worlds(size);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (const std::unique_ptr<World>& world : worlds) {
    threads.emplace_back([&] {
      try {
        rank_main(world->communicator());
      } catch (const std::exception& error) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        world->fail(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace spillway::testing
