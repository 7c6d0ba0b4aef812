// The processes that train together, one per device, and what they say to each other. Implemented by lib/comm
// (self: one process; MPI and the ranks of one machine that meet at a file: host buffers) and by gpu/ (NCCL: device buffers).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

class Device;
class Stream;

// One rank's part of a buffer, in bytes. May be empty.
struct Part {
  std::int64_t offset;
  std::int64_t bytes;

  bool operator==(const Part&) const = default;
};

// A group of ranks. Collectives: every rank of the group calls the same ones in the same order, with parts that
// agree. Every wait is bounded: when another rank has failed, died or does not answer, waiting ends with the
// CommError of World::check(). One thread at a time may use a communicator; different communicators, also of the
// same ranks, may be used by different threads.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual std::string_view name() const = 0;  // "self", "mpi", "file", "nccl"
  virtual int rank() const = 0;               // within this group
  virtual int size() const = 0;

  // The ranks of this group that give the same colour, in the order of their rank here. Collective.
  virtual std::unique_ptr<Communicator> split(int color) = 0;

  // Collectives of buffers, in stream order: they return at once, and work of the stream that follows finds them
  // done. `buffer`, `send` and `receive` are device or pinned host memory that nobody touches meanwhile; the spans
  // of parts stay valid until then. Parts have one entry per rank of the group and do not overlap.

  // In place: this rank holds parts[rank()] of the buffer; afterwards it holds all parts.
  virtual void all_gather(Stream& stream, std::byte* buffer, std::span<const Part> parts) = 0;

  // Sends send_parts[r] to rank r; what rank r sends here lands at receive_parts[r], whose size it has. A
  // reduce-scatter is this followed by a sum in rank order, which is how its result never depends on timing.
  virtual void all_to_all(Stream& stream, const std::byte* send, std::span<const Part> send_parts, std::byte* receive,
                          std::span<const Part> receive_parts) = 0;

  // Small blocking exchanges of host memory, for control.

  // `all` is size() times mine.size() bytes, by rank.
  virtual void exchange(std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  // Texts of any length, by rank.
  virtual std::vector<std::string> exchange(const std::string& mine) = 0;

  virtual void barrier() = 0;

  // Payload this rank has sent to others with the collectives of buffers since it was made.
  virtual std::int64_t sent_bytes() const = 0;
};

struct WorldOptions {
  double timeout_s = 60.0;  // a rank that has not been heard for this long is given up
};

// All processes of the job. Joined once per process, before threads are started. Outlives its communicators.
class World {
 public:
  // Leaves. If this rank has failed (see fail()) it leaves without waiting for anyone.
  virtual ~World() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  // among the ranks on this machine
  virtual int local_size() const = 0;
  virtual const std::string& host() const = 0;

  // All ranks. Every call gives an independent communicator. Collective: all ranks make theirs in the same order.
  virtual std::unique_ptr<Communicator> communicator() = 0;

  // What this rank is doing, for the text the others print should it not come back. `operation` and `object` stay
  // valid for ever (literals, names of the plan). Thread-safe, cheap.
  virtual void note_step(std::int64_t step) = 0;
  virtual void note_operation(std::string_view operation, std::string_view object) = 0;

  // Throws CommError when another rank has failed, died, or been silent for timeout_s: which one, on which host, at
  // which step and operation it was last heard, and what it said. Thread-safe.
  virtual void check() = 0;

  // Tells the others that this rank ends because of `error`, and returns when they have heard or after a few seconds.
  virtual void fail(const std::string& error) = 0;
};

// How this process was started, from the environment: by mpirun or srun (joins through MPI), as one of several on this
// machine that torchrun started or that were given a file to meet at (SPILLWAY_RENDEZVOUS, RANK, WORLD_SIZE), or on
// its own (a world of one that needs nothing). Throws CommError when ranks were started that this build cannot join
// (by torchrun on several machines, or no MPI built in), with the command to use instead, and when others do not start
// within the timeout.
std::unique_ptr<World> join_world(const WorldOptions& options);

// The same ranks as `control`, with communicators whose collectives of buffers move memory of `device`, in stream order:
// NCCL for a CUDA device. Control exchanges, liveness and failures are those of `control`. For a device whose memory
// `control` can move itself (the host device), nullptr. Borrows `control`; the device may go before the world does.
// Collective. Throws CommError or DeviceError.
std::unique_ptr<World> make_device_world(World& control, Device& device, const WorldOptions& options);

// How many ranks the launcher says it has started; 1 without a launcher.
int launched_ranks();

// A world of one.
std::unique_ptr<World> make_self_world();

}  // namespace spillway
