#include "comm/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <new>
#include <optional>
#include <thread>

#include "base/log.h"
#include "comm/shared_futex.h"
#include "spillway/error.h"

namespace spillway::comm {

namespace {

namespace fs = std::filesystem;

constexpr char kMagic[16] = "spillway-ranks1";
constexpr int kLookMs = 10;

struct Seat {
  std::atomic<std::uint32_t> taken;
  std::atomic<std::uint32_t> filled;
  ProcessIdentity identity;
};

// Begins the file; the seats follow.
struct Header {
  char magic[sizeof(kMagic)];
  std::int32_t ranks;
  std::atomic<std::uint32_t> seated;
  std::atomic<std::uint32_t> given_up;  // somebody's time was over
  std::atomic<std::int64_t> end;

  Seat& seat(int rank) { return reinterpret_cast<Seat*>(this + 1)[rank]; }
};

std::int64_t header_bytes(int ranks) {
  return whole_pages(static_cast<std::int64_t>(sizeof(Header) + sizeof(Seat) * static_cast<std::size_t>(ranks)));
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw CommError(fmt::format("[comm] meet the other ranks at {}: {}", path, why));
}

std::string errno_text() { return std::strerror(errno); }

// Rank 0 holds a lock on the file, which the kernel drops when it ends in whatever way.
bool maker_lives(int descriptor) {
  if (flock(descriptor, LOCK_SH | LOCK_NB) != 0) return true;
  flock(descriptor, LOCK_UN);
  return false;
}

// A file of ours, whose maker may live or not; nothing if there is none.
std::optional<SharedFile> open_existing(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (descriptor < 0 && errno == ENOENT) return std::nullopt;
  if (descriptor < 0) refuse(path, errno_text() + "; name a file that this user may write");
  SharedFile file(descriptor, path);
  char magic[sizeof(kMagic)] = {};
  if (pread(descriptor, magic, sizeof(magic), 0) != sizeof(magic) || std::memcmp(magic, kMagic, sizeof(magic)) != 0)
    refuse(path, "there is a file already, and none that ranks meet at; name one that does not exist");
  return file;
}

class Waiting {
 public:
  Waiting(const Launch& launch, const std::string& path, double timeout_s)
      : launch_(launch), path_(path), timeout_s_(timeout_s), end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s))) {}

  // Throws when the time is over, here or for another rank, which ends then; `header` is null while there is no file.
  void check(Header* header) const {
    const bool given_up = header != nullptr && header->given_up.load(std::memory_order_acquire) != 0;
    if (header != nullptr && !given_up) check_alive(*header);
    if (Clock::now() < end_ && !given_up) return;
    if (header != nullptr) header->given_up.store(1, std::memory_order_release);
    std::vector<int> missing;
    for (int r = 0; r < launch_.size; ++r) {
      const bool there = r == launch_.rank || (header != nullptr && header->seat(r).filled.load(std::memory_order_acquire) != 0);
      // Without a file nothing is known of anybody but its maker.
      if (!there && (header != nullptr || r == 0)) missing.push_back(r);
    }
    throw CommError(fmt::format("[comm] rank {} of {} (host {}, pid {}) waited {:g} s for the other ranks to start: rank{} {} of this machine {} not "
                                "started; see what its launcher says, whether it meets at {} too, or give it longer with the communication timeout",
                                launch_.rank, launch_.size, mine_.host, mine_.pid, timeout_s_, missing.size() == 1 ? "" : "s",
                                fmt::join(missing, ", "), missing.size() == 1 ? "has" : "have", path_));
  }

 private:
  using Clock = std::chrono::steady_clock;

  void check_alive(Header& header) const {
    for (int r = 0; r < launch_.size; ++r) {
      const Seat& seat = header.seat(r);
      if (seat.filled.load(std::memory_order_acquire) == 0 || !seat.identity.shares_pids(mine_)) continue;
      if (kill(seat.identity.pid, 0) != 0 && errno == ESRCH)
        throw CommError(fmt::format("[comm] rank {} (host {}, pid {}) died before all ranks had started", r, seat.identity.host, seat.identity.pid));
    }
  }

  const Launch& launch_;
  const std::string& path_;
  const double timeout_s_;
  const Clock::time_point end_;
  const ProcessIdentity mine_ = this_process();
};

// Rank 0's file, under its name and no longer than that is needed.
class MadeFile {
 public:
  MadeFile(const std::string& path, const Launch& launch, std::int64_t bytes) : file_(make(path, launch, bytes)) {}
  ~MadeFile() {
    if (in_place()) unlink(file_.path().c_str());
  }
  MadeFile(const MadeFile&) = delete;
  MadeFile& operator=(const MadeFile&) = delete;

  const SharedFile& file() const { return file_; }

  void check_in_place() const {
    if (!in_place()) refuse(file_.path(), "the file was removed, or replaced by another run that meets there; give each run a file of its own");
  }

  SharedFile take() {
    check_in_place();
    unlink(file_.path().c_str());
    return std::move(file_);
  }

 private:
  static SharedFile make(const std::string& path, const Launch& launch, std::int64_t bytes) {
    if (const std::optional<SharedFile> existing = open_existing(path)) {
      if (maker_lives(existing->descriptor())) refuse(path, "another run is meeting there; give each run a file of its own");
      log_info(fmt::format("[comm] {} was left by a run that is no more, and is replaced", path));
    }
    // Its name appears when it is complete.
    const std::string unfinished = fmt::format("{}.{}", path, getpid());
    const int descriptor = open(unfinished.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (descriptor < 0) refuse(path, errno_text() + "; name a file in a folder that this user may write");
    SharedFile file(descriptor, path);
    const std::int64_t all = header_bytes(launch.size) + bytes;
    int error = file.reserve(0, all);
    if (error == 0) {
      const Mapping mapping = file.map(0, header_bytes(launch.size));
      auto* const header = new (mapping.data()) Header{};
      std::memcpy(header->magic, kMagic, sizeof(kMagic));
      header->ranks = launch.size;
      header->end.store(all, std::memory_order_relaxed);
      if (flock(descriptor, LOCK_EX | LOCK_NB) != 0 || rename(unfinished.c_str(), path.c_str()) != 0) error = errno;
    }
    if (error != 0) {
      unlink(unfinished.c_str());
      file.refuse(all, error);
    }
    return file;
  }

  bool in_place() const {
    struct stat mine{}, named{};
    return file_.descriptor() >= 0 && fstat(file_.descriptor(), &mine) == 0 && lstat(file_.path().c_str(), &named) == 0 &&
           mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
  }

  SharedFile file_;
};

SharedFile await_file(const std::string& path, const Waiting& waiting) {
  for (;;) {
    std::optional<SharedFile> file = open_existing(path);
    if (file && maker_lives(file->descriptor())) return std::move(*file);
    waiting.check(nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
  }
}

void take_seat(Header& header, const Launch& launch, const std::string& path) {
  if (header.ranks != launch.size)
    refuse(path, fmt::format("{} ranks meet there, and this is rank {} of {}; give each run a file of its own", header.ranks, launch.rank, launch.size));
  Seat& seat = header.seat(launch.rank);
  if (seat.taken.exchange(1) != 0)
    refuse(path, fmt::format("rank {} of {} is there already; give each run a file of its own and each process a RANK of its own", launch.rank, launch.size));
  seat.identity = this_process();
  const ProcessIdentity& maker = header.seat(0).identity;
  if (launch.rank != 0 && header.seat(0).filled.load(std::memory_order_acquire) != 0 && !maker.same_machine(seat.identity))
    refuse(path, fmt::format("rank 0 is on another machine (host {}), where memory cannot be shared; start ranks of several machines with: "
                             "mpirun -n {} spillway train ...",
                             maker.host, launch.size));
  seat.filled.store(1, std::memory_order_release);
  header.seated.fetch_add(1, std::memory_order_acq_rel);
  wake_all(header.seated);
}

template <class Check>
void await_all(Header& header, Check&& check) {
  for (std::uint32_t seated; (seated = header.seated.load(std::memory_order_acquire)) != static_cast<std::uint32_t>(header.ranks);) {
    check();
    sleep_on(header.seated, seated, kLookMs);
  }
}

Meeting meeting_of(SharedFile file, Mapping mapping) {
  auto* const header = reinterpret_cast<Header*>(mapping.data());
  std::vector<ProcessIdentity> members;
  for (int r = 0; r < header->ranks; ++r) members.push_back(header->seat(r).identity);
  return {std::move(file), std::move(members), header_bytes(header->ranks), std::move(mapping), &header->end};
}

}  // namespace

std::string rendezvous_path(const Launch& launch) {
  if (!launch.rendezvous.empty()) return launch.rendezvous;
  std::string job = launch.job;
  for (char& c : job)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
  const char* const memory = "/dev/shm";
  const fs::path folder = access(memory, W_OK | X_OK) == 0 ? fs::path(memory) : fs::temp_directory_path();
  return folder / fmt::format("spillway-ranks-{}-{}", getuid(), job);
}

Meeting meet(const Launch& launch, const std::string& path, std::int64_t bytes, double timeout_s) {
  const Waiting waiting(launch, path, timeout_s);
  if (launch.rank == 0) {
    MadeFile made(path, launch, bytes);
    Mapping mapping = made.file().map(0, header_bytes(launch.size));
    Header& header = *reinterpret_cast<Header*>(mapping.data());
    take_seat(header, launch, path);
    await_all(header, [&] {
      waiting.check(&header);
      made.check_in_place();
    });
    return meeting_of(made.take(), std::move(mapping));
  }
  SharedFile file = await_file(path, waiting);
  Mapping mapping = file.map(0, header_bytes(launch.size));
  Header& header = *reinterpret_cast<Header*>(mapping.data());
  take_seat(header, launch, path);
  await_all(header, [&] { waiting.check(&header); });
  return meeting_of(std::move(file), std::move(mapping));
}

}  // namespace spillway::comm
