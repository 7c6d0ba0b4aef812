// NCCL as far as the project uses it: non-blocking communicators, of ranks that are threads or processes of this machine,
// and collectives that move bytes. What a call begins is done when somebody asks for it (ncclCommGetAsyncError), so
// that a program which does not ask finds its work undone.
#pragma GCC visibility push(default)
#include <nccl.h>
#pragma GCC visibility pop

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_sim/cuda_sim.h"
#include "cuda_sim/nccl_work.h"
#include "cuda_sim/raw_lock.h"
#include "cuda_sim/stream_work.h"

using namespace cuda_sim;

struct ncclComm {
  enum class State { joining, splitting, ready, finalizing, finalized, gone };

  State state = State::joining;
  std::string name;
  int device = 0;
  std::shared_ptr<NcclShared> shared;

  // What was called and is not enqueued yet.
  struct Launch {
    cudaStream_t stream;
    std::shared_ptr<NcclWork> work;
  };
  std::vector<Launch> launches;

  std::uint32_t splits = 0;
  int color = 0;
  ncclComm_t part = nullptr;  // of the split under way
  ncclComm_t* part_to_fill = nullptr;

  RawLock lock;
};

namespace {

// Never freed, so that a handle used after its end is told from others.
struct Known {
  RawLock lock;
  std::vector<std::unique_ptr<ncclComm>> communicators;
};

Known& known() {
  static Known* const all = new Known;
  return *all;
}

ncclComm_t make_communicator(const std::string& name, int device, int rank, int ranks) {
  auto comm = std::make_unique<ncclComm>();
  comm->name = name;
  comm->device = device;
  comm->shared = std::make_shared<NcclShared>(name, rank, ranks);
  const std::lock_guard guard(known().lock);
  return known().communicators.emplace_back(std::move(comm)).get();
}

void require_known(const char* call, ncclComm_t comm) {
  const std::lock_guard guard(known().lock);
  const auto& all = known().communicators;
  if (std::none_of(all.begin(), all.end(), [&](const auto& one) { return one.get() == comm; })) violation("%s of no communicator", call);
  const std::lock_guard state(comm->lock);
  if (comm->state == ncclComm::State::gone) violation("%s of a communicator that was destroyed or aborted", call);
}

void require_ready(const char* call, ncclComm_t comm) {
  require_known(call, comm);
  const std::lock_guard state(comm->lock);
  if (comm->state != ncclComm::State::ready || !comm->launches.empty())
    violation("%s while the call before it is in progress: ask for it with ncclCommGetAsyncError", call);
}

// The calls of one thread between ncclGroupStart and ncclGroupEnd.
struct Group {
  int depth = 0;
  struct Entry {
    ncclComm_t comm;
    cudaStream_t stream;
    std::shared_ptr<NcclWork> work;
  };
  std::vector<Entry> entries;
};

// Only while one is open.
constinit thread_local Group* open_group = nullptr;

// The work of this communicator and stream that the open group collects.
NcclWork& work_of(ncclComm_t comm, cudaStream_t stream) {
  for (Group::Entry& entry : open_group->entries)
    if (entry.comm == comm && entry.stream == stream) return *entry.work;
  return *open_group->entries.emplace_back(Group::Entry{comm, stream, std::make_shared<NcclWork>(comm->shared)}).work;
}

void begin_group() {
  if (open_group == nullptr) open_group = new Group;
  ++open_group->depth;
}

ncclResult_t end_group() {
  if (open_group == nullptr) violation("ncclGroupEnd without ncclGroupStart");
  if (--open_group->depth > 0) return ncclSuccess;
  const std::unique_ptr<Group> group(std::exchange(open_group, nullptr));
  for (Group::Entry& entry : group->entries) {
    const std::lock_guard guard(entry.comm->lock);
    entry.comm->launches.push_back({entry.stream, std::move(entry.work)});
  }
  return group->entries.empty() ? ncclSuccess : ncclInProgress;
}

void require_device_memory(const char* call, const void* memory, size_t bytes) {
  if (bytes > 0 && !is_device_range(memory, bytes)) violation("%s of %zu bytes at %p, which are not within device memory", call, bytes, memory);
}

// Adds a collective to the open group, or to one of its own.
template <class Add>
ncclResult_t collective(const char* call, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream, Add add) {
  if (enter_call(call) != cudaSuccess) return ncclUnhandledCudaError;
  const Unseen unseen;
  if (open_group == nullptr || open_group->entries.empty()) require_ready(call, comm);
  else require_known(call, comm);
  if (type != ncclUint8 && type != ncclInt8) violation("%s of type %d: the simulation moves bytes", call, static_cast<int>(type));
  if (device_of(stream) != comm->device) violation("%s on a stream of device %d with a communicator of device %d", call, device_of(stream), comm->device);
  begin_group();
  add(work_of(comm, stream));
  return end_group() == ncclInProgress ? ncclInProgress : ncclSuccess;
}

bool split_is_known(const ncclComm& comm) {
  const NcclSegment& segment = comm.shared->segment;
  for (int r = 0; r < segment.ranks; ++r)
    if (segment.seat(r).splits[comm.splits % 2].round.load() < comm.splits) return false;
  return true;
}

// The ranks of this one's colour, in the order of their keys.
ncclComm_t join_part(const ncclComm& comm) {
  if (comm.color == NCCL_SPLIT_NOCOLOR) return nullptr;
  const NcclSegment& segment = comm.shared->segment;
  const auto said = [&](int r) -> const NcclSegment::Seat::Split& { return segment.seat(r).splits[comm.splits % 2]; };
  int ranks = 0, rank = 0;
  for (int r = 0; r < segment.ranks; ++r) {
    if (said(r).color != comm.color) continue;
    ++ranks;
    if (std::pair(said(r).key, r) < std::pair(said(segment.rank).key, segment.rank)) ++rank;
  }
  return make_communicator(comm.name + "." + std::to_string(comm.splits) + "." + std::to_string(comm.color), comm.device, rank, ranks);
}

// With the communicator's lock.
void advance_split(ncclComm& comm) {
  if (comm.part == nullptr) {
    if (!split_is_known(comm)) return;
    comm.part = join_part(comm);
  }
  if (comm.part != nullptr && !comm.part->shared->segment.all_attached()) return;
  if (comm.part != nullptr) comm.part->state = ncclComm::State::ready;
  *comm.part_to_fill = std::exchange(comm.part, nullptr);
  comm.state = ncclComm::State::ready;
}

// Without the communicator's lock. Where each enqueue waits for its work a thread does, as NCCL has threads of its own:
// asking for an error never waits for other ranks.
void start(const std::shared_ptr<NcclShared>& shared, ncclComm::Launch launch) {
  shared->outstanding.fetch_add(1);
  const auto launch_work = [stream = launch.stream, work = std::move(launch.work)] { enqueue(stream, "NCCL", [work] { work->run(); }); };
  if (!settings().sync) return launch_work();
  shared->launching.fetch_add(1);
  std::thread([shared, launch_work] {
    launch_work();
    shared->launching.fetch_sub(1);
  }).detach();
}

std::vector<ncclComm::Launch> advance(ncclComm& comm) {
  const std::lock_guard guard(comm.lock);
  if (comm.state == ncclComm::State::joining && comm.shared->segment.all_attached()) comm.state = ncclComm::State::ready;
  if (comm.state == ncclComm::State::splitting) advance_split(comm);
  if (comm.state == ncclComm::State::finalizing && comm.shared->outstanding.load() == 0) comm.state = ncclComm::State::finalized;
  return std::exchange(comm.launches, {});
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (enter_call("ncclGetUniqueId") != cudaSuccess) return ncclUnhandledCudaError;
  static std::atomic<int> made{0};
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  std::memset(id->internal, 0, sizeof(id->internal));
  std::snprintf(id->internal, sizeof(id->internal), "/cuda-sim-nccl-%d-%d-%lld", static_cast<int>(getpid()), made++,
                static_cast<long long>(now.tv_sec) * 1'000'000'000 + now.tv_nsec);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (enter_call("ncclCommInitRankConfig") != cudaSuccess) return ncclUnhandledCudaError;
  const Unseen unseen;
  if (config == nullptr || config->blocking != 0) violation("ncclCommInitRankConfig: the simulation knows non-blocking communicators only");
  if (rank < 0 || rank >= ranks) return ncclInvalidArgument;
  *comm = make_communicator(id.internal, current_device(), rank, ranks);
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* config) {
  if (enter_call("ncclCommSplit") != cudaSuccess) return ncclUnhandledCudaError;
  const Unseen unseen;
  require_ready("ncclCommSplit", comm);
  if (config != nullptr) violation("ncclCommSplit: the simulation knows the parent's configuration only");
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) return ncclInvalidArgument;
  const std::lock_guard guard(comm->lock);
  comm->state = ncclComm::State::splitting;
  comm->color = color;
  comm->part_to_fill = part;
  *part = nullptr;
  const NcclSegment& segment = comm->shared->segment;
  NcclSegment::Seat::Split& mine = segment.seat(segment.rank).splits[++comm->splits % 2];
  mine.color = color;
  mine.key = key;
  mine.round.store(comm->splits);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const Unseen unseen;
  require_known("ncclCommGetAsyncError", comm);
  for (ncclComm::Launch& launch : advance(*comm)) start(comm->shared, std::move(launch));
  release_all();
  const std::lock_guard guard(comm->lock);
  const bool in_progress = comm->state == ncclComm::State::joining || comm->state == ncclComm::State::splitting || comm->state == ncclComm::State::finalizing ||
                           comm->shared->launching.load() > 0;
  *result = comm->shared->peer_lost.load() ? ncclRemoteError : in_progress ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Unseen unseen;
  require_ready("ncclCommFinalize", comm);
  const std::lock_guard guard(comm->lock);
  comm->state = ncclComm::State::finalizing;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Unseen unseen;
  require_known("ncclCommDestroy", comm);
  const std::lock_guard guard(comm->lock);
  if (comm->state != ncclComm::State::finalized) violation("ncclCommDestroy of a communicator that is not finalized, which may wait for ever");
  comm->state = ncclComm::State::gone;
  comm->shared.reset();
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Unseen unseen;
  require_known("ncclCommAbort", comm);
  const std::lock_guard guard(comm->lock);
  comm->shared->segment.seat(comm->shared->segment.rank).aborted.store(1);
  comm->shared->aborted.store(true);
  comm->state = ncclComm::State::gone;
  comm->launches.clear();
  comm->shared.reset();
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  const Unseen unseen;
  begin_group();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const Unseen unseen;
  return end_group();
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return collective("ncclAllGather", type, comm, stream, [&](NcclWork& work) {
    const NcclSegment& segment = comm->shared->segment;
    require_device_memory("ncclAllGather", send, count);
    require_device_memory("ncclAllGather", receive, count * static_cast<size_t>(segment.ranks));
    const auto bytes = static_cast<std::int64_t>(count);
    std::byte* const to = static_cast<std::byte*>(receive);
    work.copy(send, to + segment.rank * bytes, bytes);
    for (int r = 0; r < segment.ranks; ++r) {
      if (r == segment.rank) continue;
      work.send(r, NcclCall::all_gather, send, bytes);
      work.receive(r, NcclCall::all_gather, to + r * bytes, bytes);
    }
  });
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return collective("ncclBroadcast", type, comm, stream, [&](NcclWork& work) {
    const NcclSegment& segment = comm->shared->segment;
    const auto bytes = static_cast<std::int64_t>(count);
    require_device_memory("ncclBroadcast", receive, count);
    if (segment.rank != root) return work.receive(root, NcclCall::broadcast, receive, bytes);
    require_device_memory("ncclBroadcast", send, count);
    work.copy(send, receive, bytes);
    for (int r = 0; r < segment.ranks; ++r)
      if (r != root) work.send(r, NcclCall::broadcast, send, bytes);
  });
}

ncclResult_t ncclSend(const void* memory, size_t count, ncclDataType_t type, int to, ncclComm_t comm, cudaStream_t stream) {
  return collective("ncclSend", type, comm, stream, [&](NcclWork& work) {
    require_device_memory("ncclSend", memory, count);
    if (to == comm->shared->segment.rank) violation("ncclSend of a rank to itself: the simulation has no such thing");
    work.send(to, NcclCall::send_receive, memory, static_cast<std::int64_t>(count));
  });
}

ncclResult_t ncclRecv(void* memory, size_t count, ncclDataType_t type, int from, ncclComm_t comm, cudaStream_t stream) {
  return collective("ncclRecv", type, comm, stream, [&](NcclWork& work) {
    require_device_memory("ncclRecv", memory, count);
    if (from == comm->shared->segment.rank) violation("ncclRecv of a rank from itself: the simulation has no such thing");
    work.receive(from, NcclCall::send_receive, memory, static_cast<std::int64_t>(count));
  });
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "operation in progress";
    default: return "some error";
  }
}

const char* ncclGetLastError(ncclComm_t) { return ""; }

}  // extern "C"
