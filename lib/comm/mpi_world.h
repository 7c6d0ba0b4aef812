// The world of ranks that MPI connects. Implemented by mpi_world.cpp, or by no_mpi.cpp in a build without.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/launch.h"
#include "spillway/communicator.h"

namespace spillway::comm {

// MPI counts in int.
inline constexpr std::int64_t kMaxMessageBytes = std::int64_t{1} << 30;

// Parts larger than message_bytes travel in several messages. Throws CommError.
std::unique_ptr<World> make_mpi_world(const WorldOptions& options, const Launch& launch, std::int64_t message_bytes = kMaxMessageBytes);

bool has_mpi();

}  // namespace spillway::comm
