// The world of ranks of one machine that meet at a file and talk through the memory behind it. Needs no MPI.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/launch.h"
#include "spillway/communicator.h"

namespace spillway::comm {

// What a rank stages for the others at a time: small enough to stay in a core's cache, and for eight ranks with as many
// communicators to do with the 64 MiB of /dev/shm that containers are given.
inline constexpr std::int64_t kStagedBytes = std::int64_t{256} << 10;

// Parts larger than staged_bytes travel in several turns. Throws CommError.
std::unique_ptr<World> make_file_world(const WorldOptions& options, const Launch& launch, std::int64_t staged_bytes = kStagedBytes);

}  // namespace spillway::comm
