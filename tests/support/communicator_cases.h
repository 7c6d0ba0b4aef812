// What every communicator has to do, as cases that all ranks run in lockstep, whatever connects them: processes,
// threads or devices. Cases only EXPECT, so that a rank that finds a mistake still takes part in what follows.
#pragma once

#include <functional>
#include <ostream>
#include <span>

#include "spillway/communicator.h"
#include "spillway/device.h"
#include "support/rank_memory.h"

namespace spillway::testing {

// One rank's side of a case. Streams and memory are of one device, as `world` can move it; streams with delays that show
// whatever rests on luck. Nothing of the memory is in use.
struct RankUnderTest {
  World& world;
  RankMemory& memory;
  Stream& stream;
  Stream& other_stream;
};

struct CommunicatorCase {
  const char* name;
  void (*run)(const RankUnderTest& rank);
};

inline std::ostream& operator<<(std::ostream& out, const CommunicatorCase& c) { return out << c.name; }

std::span<const CommunicatorCase> communicator_cases();

}  // namespace spillway::testing
