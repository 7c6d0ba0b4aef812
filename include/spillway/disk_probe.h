// How fast the disk under a folder is, measured through an IoEngine on a scratch file that has no name, past the page
// cache where the file system allows that.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "spillway/io_engine.h"

namespace spillway {

struct DiskRates {
  double read_bytes = 0.0;       // per second, with as many blocks in flight as the engine is deep
  double write_bytes = 0.0;
  double mixed_bytes = 0.0;      // every other block read and written, the two summed
  double latency_s = 0.0;        // of reading one page of 4096 bytes, nothing else in flight; the median
  double block_latency_s = 0.0;  // of reading or writing one block, whichever takes longer, nothing else in flight; the median
  std::int64_t block_bytes = 0;  // of the requests that were timed
  bool buffered = false;         // the file system refused O_DIRECT: these are rates of the page cache
};

struct DiskProbeOptions {
  IoEngineOptions engine;                 // name, depth and the two kinds of polling; the probe fills in the rest
  std::int64_t block_bytes = 1 << 20;     // a multiple of 4096
  std::int64_t file_bytes = 64 << 20;     // of the scratch file: at least two blocks, else at most a quarter of what is free
  double seconds_per_rate = 0.1;          // each of the three rates is measured for so long; the two latencies take less
};

// Blocks while it measures: about 3.5 times seconds_per_rate, and what it takes to write the file once (no more than four
// times seconds_per_rate: on a slow disk less of the file is used). Throws IoError: no folder, not writable, no space, the
// engine does not work, the disk fails; MemoryError: no room for as many blocks as are in flight.
DiskRates probe_disk(const std::string& folder, const DiskProbeOptions& options);

// Several folders at the same time, a thread each, so that what they share (a disk, a bus, a controller) shows in their
// rates: all read together, then all write, then all do both. Results in the order of `folders`. Throws the IoError of the
// first folder that has one.
std::vector<DiskRates> probe_disks(std::span<const std::string> folders, const DiskProbeOptions& options);

// The same, but disks that this process has measured together before, with the same engine, depth and block, are not measured
// again.
std::vector<DiskRates> disk_rates(std::span<const std::string> folders, const DiskProbeOptions& options);

// Requests of `block_bytes` to keep in flight: (2 x latency + 20 ms) x bandwidth of them in bytes, 4 to 128.
//
// By Little's law a disk is busy with latency x bandwidth bytes in flight. The latency that counts is that of a whole
// block when it is alone: a page's leaves out the time the block itself takes on the way, and that measured under load
// counts the waiting in a queue that is already too long. Twice that, for while results are reaped and new requests made the
// disk must find others waiting; and what it moves in 20 ms, for which the thread that does so may have to wait for a core. A
// block of another size than was measured takes as long as a straight line between the page and the measured block says.
int depth_for(const DiskRates& rates, std::int64_t block_bytes);

}  // namespace spillway
