// The disk's rate as fio measures it: the roof beside which I/O-bound results are reported.
#pragma once

#include <string>

namespace spillway::bench {

// A file of fio's own in a folder, kept from round to round so that its blocks are written, and removed
// with the object.
class Fio {
 public:
  Fio(const std::string& folder, long long bytes);
  ~Fio();
  Fio(const Fio&) = delete;
  Fio& operator=(const Fio&) = delete;

  // Bytes per second, read and written together, of sequential reads and writes in equal shares with
  // O_DIRECT through io_uring, in requests of 1 MiB, 32 in flight, for `seconds`.
  // Throws IoError if fio is missing or fails.
  double mixed_rate(double seconds);

 private:
  std::string file_;
  long long bytes_;
};

}  // namespace spillway::bench
