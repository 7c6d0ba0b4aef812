// Everything that speaks MPI. No call here waits inside MPI for another rank, which nothing could end: operations are
// started and then asked for, with World::check() in between, or stand under a deadline.
#include "comm/mpi_world.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <climits>
#include <cstring>
#include <filesystem>
#include <thread>

#include "comm/backoff.h"
#include "comm/deadline.h"
#include "comm/start_markers.h"
#include "comm/watchdog.h"
#include "spillway/device.h"
#include "spillway/error.h"

namespace spillway::comm {

namespace {

constexpr int kTag = 1;

std::string mpi_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return text;
}

void check_mpi(int code, std::string_view what) {
  if (code != MPI_SUCCESS) throw CommError(fmt::format("[comm] {} failed: {}", what, mpi_text(code)));
}

// Starting operations, and waiting for them; nobody enters MPI after a verdict. What MPI refuses is as a rule the death
// of another rank, which the watchdog names a moment later.
class Waiter {
 public:
  // Before there is a watchdog: no other thread, and a deadline over it all.
  explicit Waiter(const Watchdog* watchdog) : watchdog_(watchdog) {}

  template <class Start>
  void start(std::string_view what, Start&& call) const {
    const Watchdog::Entry entry = enter();
    refuse_unless_success(call(), what);
  }

  // Until `test` says so.
  template <class Test>
  void await(std::string_view what, Test&& test) const {
    Backoff backoff;
    for (int finished = 0;;) {
      int code;
      {
        const Watchdog::Entry entry = enter();
        code = test(&finished);
      }
      refuse_unless_success(code, what);
      if (finished) return;
      backoff.pause();
    }
  }

  void await(std::string_view what, MPI_Request& request) const {
    await(what, [&](int* finished) { return MPI_Test(&request, finished, MPI_STATUS_IGNORE); });
  }

 private:
  Watchdog::Entry enter() const { return watchdog_ == nullptr ? Watchdog::Entry() : watchdog_->enter(); }

  void refuse_unless_success(int code, std::string_view what) const {
    constexpr int kWaitForVerdict = 100;
    for (int i = 0; code != MPI_SUCCESS && watchdog_ != nullptr && i < kWaitForVerdict; ++i) {
      watchdog_->check();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    check_mpi(code, what);
  }

  const Watchdog* watchdog_;
};

class MpiLink final : public BeatLink {
 public:
  explicit MpiLink(MPI_Comm parent, int size) : sends_(static_cast<std::size_t>(size)) {
    check_mpi(MPI_Comm_dup(parent, &comm_), "making the watchdog's communicator (MPI_Comm_dup)");
    expect_next();
  }

  bool send(int to, const Beat& beat) override {
    Send& slot = sends_[static_cast<std::size_t>(to)];
    int finished = 0;
    check_mpi(MPI_Test(&slot.request, &finished, MPI_STATUS_IGNORE), "sending a beat (MPI_Test)");
    if (!finished) return false;
    slot.beat = beat;
    check_mpi(MPI_Isend(&slot.beat, sizeof(Beat), MPI_BYTE, to, kTag, comm_, &slot.request), "sending a beat (MPI_Isend)");
    return true;
  }

  std::optional<int> receive(Beat& beat) override {
    int finished = 0;
    MPI_Status status;
    check_mpi(MPI_Test(&receive_, &finished, &status), "receiving a beat (MPI_Test)");
    if (!finished) return std::nullopt;
    beat = incoming_;
    expect_next();
    return status.MPI_SOURCE;
  }

  // When nobody sends any more, and everything sent has been received.
  void close() {
    check_mpi(MPI_Cancel(&receive_), "closing the watchdog's communicator (MPI_Cancel)");
    const Waiter alone(nullptr);
    alone.await("closing the watchdog's communicator (MPI_Test)", receive_);
    for (Send& slot : sends_) alone.await("closing the watchdog's communicator (MPI_Test)", slot.request);
    check_mpi(MPI_Comm_free(&comm_), "closing the watchdog's communicator (MPI_Comm_free)");
  }

 private:
  struct Send {
    Beat beat;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void expect_next() {
    check_mpi(MPI_Irecv(&incoming_, sizeof(Beat), MPI_BYTE, MPI_ANY_SOURCE, kTag, comm_, &receive_), "receiving beats (MPI_Irecv)");
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<Send> sends_;
  Beat incoming_;
  MPI_Request receive_ = MPI_REQUEST_NULL;
};

struct Limits {
  double timeout_s;
  std::int64_t message_bytes;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, const Watchdog& watchdog, const Limits& limits) : comm_(comm), watchdog_(watchdog), waiter_(&watchdog), limits_(limits) {
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    requests_.reserve(2 * static_cast<std::size_t>(size_));
  }

  // After a failure operations are still under way, and their communicator stays.
  ~MpiCommunicator() override {
    if (comm_ == MPI_COMM_WORLD) return;
    try {
      waiter_.start("leaving a communicator (MPI_Comm_free)", [this] { return MPI_Comm_free(&comm_); });
    } catch (const CommError&) {
      // Whoever works on is told by what comes next.
    }
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  std::string_view name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Communicator> split(int color) override {
    // MPI_Comm_split waits inside MPI: not before everybody has come, and not for ever.
    barrier();
    const Deadline deadline(limits_.timeout_s, [this, color] {
      return fmt::format("[comm] rank {} of {} waited {:g} s for the others of colour {} to split (MPI_Comm_split)", rank_, size_,
                         limits_.timeout_s, color);
    });
    MPI_Comm group = MPI_COMM_NULL;
    // Colours of MPI are not negative.
    const int mpi_color = static_cast<int>(static_cast<unsigned>(color) & INT_MAX);
    waiter_.start("splitting (MPI_Comm_split)", [&] { return MPI_Comm_split(comm_, mpi_color, rank_, &group); });
    return std::make_unique<MpiCommunicator>(group, watchdog_, limits_);
  }

  void all_gather(Stream& stream, std::byte* buffer, std::span<const Part> parts) override {
    assert(parts.size() == static_cast<std::size_t>(size_));
    stream.call([this, buffer, parts] { gather(buffer, parts); });
  }

  void all_to_all(Stream& stream, const std::byte* send, std::span<const Part> send_parts, std::byte* receive,
                  std::span<const Part> receive_parts) override {
    assert(send_parts.size() == static_cast<std::size_t>(size_) && receive_parts.size() == send_parts.size());
    stream.call([this, send, send_parts, receive, receive_parts] {
      const Part &from = send_parts[index(rank_)], &to = receive_parts[index(rank_)];
      assert(from.bytes == to.bytes);
      if (from.bytes > 0) std::memcpy(receive + to.offset, send + from.offset, static_cast<std::size_t>(from.bytes));
      transfer(
          "all_to_all", send, [&](int r) { return send_parts[index(r)]; }, receive, [&](int r) { return receive_parts[index(r)]; });
      std::int64_t sent = -from.bytes;
      for (const Part& part : send_parts) sent += part.bytes;
      sent_bytes_.fetch_add(sent, std::memory_order_relaxed);
    });
  }

  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override {
    assert(all.size() == mine.size() * index(size_));
    if (all.size() > INT_MAX)
      throw CommError(fmt::format("[comm] exchanging {} bytes of each of {} ranks: this is for small memory, at most 2 GiB together; "
                                  "use all_gather",
                                  mine.size(), size_));
    MPI_Request request = MPI_REQUEST_NULL;
    const int bytes = static_cast<int>(mine.size());
    waiter_.start("exchange (MPI_Iallgather)",
                  [&] { return MPI_Iallgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, comm_, &request); });
    waiter_.await("exchange (MPI_Test)", request);
  }

  std::vector<std::string> exchange(const std::string& mine) override {
    const std::int64_t length = static_cast<std::int64_t>(mine.size());
    std::vector<std::int64_t> lengths(index(size_));
    exchange(std::as_bytes(std::span(&length, 1)), std::as_writable_bytes(std::span(lengths)));
    std::vector<Part> parts;
    std::int64_t total = 0;
    for (const std::int64_t bytes : lengths) {
      parts.push_back({total, bytes});
      total += bytes;
    }
    std::string texts(static_cast<std::size_t>(total), '\0');
    mine.copy(texts.data() + parts[index(rank_)].offset, mine.size());
    std::byte* memory = reinterpret_cast<std::byte*>(texts.data());
    transfer(
        "exchange", memory, [&](int) { return parts[index(rank_)]; }, memory, [&](int r) { return parts[index(r)]; });
    std::vector<std::string> result;
    for (const Part& part : parts) result.push_back(texts.substr(static_cast<std::size_t>(part.offset), static_cast<std::size_t>(part.bytes)));
    return result;
  }

  void barrier() override {
    MPI_Request request = MPI_REQUEST_NULL;
    waiter_.start("barrier (MPI_Ibarrier)", [&] { return MPI_Ibarrier(comm_, &request); });
    waiter_.await("barrier (MPI_Test)", request);
  }

  std::int64_t sent_bytes() const override { return sent_bytes_.load(std::memory_order_relaxed); }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  void gather(std::byte* buffer, std::span<const Part> parts) {
    const Part mine = parts[index(rank_)];
    transfer(
        "all_gather", buffer, [&](int) { return mine; }, buffer, [&](int r) { return parts[index(r)]; });
    sent_bytes_.fetch_add(mine.bytes * (size_ - 1), std::memory_order_relaxed);
  }

  // Sends send_part(r) to, and receives receive_part(r) from, every other rank. Not MPI_Iallgatherv or
  // MPI_Ialltoallv: these count and place in int, and whether that is enough each rank would have to decide for all
  // by what it knows of its own buffers. Here the two ranks of a pair need to agree, on one size, which both know.
  template <class SendPart, class ReceivePart>
  void transfer(const char* what, const std::byte* send, SendPart&& send_part, std::byte* receive, ReceivePart&& receive_part) {
    const auto piece = [&](const Part& part, std::int64_t done) { return static_cast<int>(std::min(part.bytes - done, limits_.message_bytes)); };
    for (std::int64_t done = 0;; done += limits_.message_bytes) {
      requests_.clear();
      // Each rank begins with another one, so that not all send to the same.
      for (int distance = 1; distance < size_; ++distance) {
        const int from = (rank_ - distance + size_) % size_;
        const Part part = receive_part(from);
        if (part.bytes <= done) continue;
        waiter_.start(what, [&] {
          return MPI_Irecv(receive + part.offset + done, piece(part, done), MPI_BYTE, from, kTag, comm_, &requests_.emplace_back());
        });
      }
      for (int distance = 1; distance < size_; ++distance) {
        const int to = (rank_ + distance) % size_;
        const Part part = send_part(to);
        if (part.bytes <= done) continue;
        waiter_.start(what, [&] {
          return MPI_Isend(send + part.offset + done, piece(part, done), MPI_BYTE, to, kTag, comm_, &requests_.emplace_back());
        });
      }
      if (requests_.empty()) return;
      waiter_.await(what, [&](int* finished) {
        return MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), finished, MPI_STATUSES_IGNORE);
      });
    }
  }

  MPI_Comm comm_;
  const Watchdog& watchdog_;
  const Waiter waiter_;
  const Limits limits_;
  int rank_ = 0, size_ = 1;
  std::vector<MPI_Request> requests_;
  std::atomic<std::int64_t> sent_bytes_{0};
};

// MPI between its start and its end.
class Session {
 public:
  explicit Session(const Launch& launch) {
    int running = 0;
    MPI_Initialized(&running);
    if (running) throw CommError("[comm] joining the other ranks: this process has joined before; a process joins once");
    int provided = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "starting MPI (MPI_Init_thread)");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (provided == MPI_THREAD_MULTIPLE && (launch.size == 0 || launch.size == size)) return;
    MPI_Finalize();
    if (provided != MPI_THREAD_MULTIPLE)
      throw CommError("[comm] starting MPI: this MPI library has no MPI_THREAD_MULTIPLE, which streams and the watch over ranks need; "
                      "use one that has (Open MPI of Debian does)");
    throw CommError(fmt::format("[comm] joining as rank {} of {}: MPI knows {} rank{} only, so these were started by the mpirun of another "
                                "MPI library; use the one this program was built with",
                                launch.rank, launch.size, size, size == 1 ? "" : "s"));
  }

  // Ends the process if the others do not come to it.
  void finalize(double timeout_s) {
    const Deadline deadline(timeout_s, [this, timeout_s] {
      return fmt::format("[comm] rank {} of {} has done its work and waited {:g} s for the others to leave (MPI_Finalize)", rank, size,
                         timeout_s);
    });
    MPI_Finalize();
  }

  int rank = 0, size = 1;
};

std::vector<ProcessIdentity> exchange_identities(const ProcessIdentity& mine, int size) {
  std::vector<ProcessIdentity> all(static_cast<std::size_t>(size));
  MPI_Request request;
  constexpr int kBytes = sizeof(ProcessIdentity);
  check_mpi(MPI_Iallgather(&mine, kBytes, MPI_BYTE, all.data(), kBytes, MPI_BYTE, MPI_COMM_WORLD, &request),
            "exchanging identities (MPI_Iallgather)");
  Waiter(nullptr).await("exchanging identities (MPI_Test)", request);
  return all;
}

class MpiWorld final : public World {
 public:
  MpiWorld(Session session, std::vector<ProcessIdentity> members, const Limits& limits)
      : session_(session),
        limits_(limits),
        host_(members[static_cast<std::size_t>(session.rank)].host),
        link_(std::make_unique<MpiLink>(MPI_COMM_WORLD, session.size)) {
    for (int r = 0; r < session.size; ++r) {
      if (!members[static_cast<std::size_t>(r)].same_machine(members[static_cast<std::size_t>(session.rank)])) continue;
      ++local_size_;
      if (r < session.rank) ++local_rank_;
    }
    watchdog_ = std::make_unique<Watchdog>(std::move(members), session.rank, limits.timeout_s, *link_);
    everyone_ = std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, *watchdog_, limits_);
  }

  ~MpiWorld() override {
    const bool all_done = watchdog_->leave();
    everyone_.reset();
    watchdog_.reset();
    if (!all_done) {
      // MPI_Finalize would wait for a rank that does not come. The link's own operations may not be ended either.
      [[maybe_unused]] static BeatLink* const kept = link_.release();
      return;
    }
    try {
      link_->close();
      session_.finalize(limits_.timeout_s);
    } catch (const CommError&) {
      // All are done and have said so; how MPI ends changes no result.
    }
  }
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const override { return session_.rank; }
  int size() const override { return session_.size; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  const std::string& host() const override { return host_; }
  std::unique_ptr<Communicator> communicator() override { return everyone_->split(0); }
  void note_step(std::int64_t step) override { watchdog_->note_step(step); }
  void note_operation(std::string_view operation, std::string_view object) override { watchdog_->note_operation(operation, object); }
  void check() override { watchdog_->check(); }
  void fail(const std::string& error) override { watchdog_->fail(error); }

 private:
  Session session_;
  const Limits limits_;
  const std::string host_;
  int local_rank_ = 0, local_size_ = 0;
  std::unique_ptr<MpiLink> link_;
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<MpiCommunicator> everyone_;
};

}  // namespace

bool has_mpi() { return true; }

std::unique_ptr<World> make_mpi_world(const WorldOptions& options, const Launch& launch, std::int64_t message_bytes) {
  const ProcessIdentity mine = this_process();
  StartMarkers markers(launch, std::filesystem::temp_directory_path());
  const Deadline deadline(
      options.timeout_s, [&] { return markers.explain(options.timeout_s, mine.host); }, [&] { markers.remove(); });
  const Session session(launch);
  return std::make_unique<MpiWorld>(session, exchange_identities(mine, session.size), Limits{options.timeout_s, message_bytes});
}

}  // namespace spillway::comm
