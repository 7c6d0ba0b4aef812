// What the command line says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway::app {

// What both `train` and `plan` need to know.
struct RunOptions {
  std::string config;
  std::string model;                 // preset or JSON file
  std::vector<std::string> data;
  std::string device = "auto";       // auto, host, cuda
  std::int64_t steps = 0;
  std::int64_t sequence_length = 0;  // 0: the model's context
};

struct TrainOptions {
  RunOptions run;
  std::vector<std::string> eval_data;
  std::int64_t eval_every = 0;       // steps; 0: once, at the end
  std::int64_t eval_batches = 16;    // most micro-batches per evaluation
  std::string out;                   // folder of everything not named one by one
  std::uint64_t seed = 1234;
  std::string metrics, trace, summary, curve;
  std::int64_t save_every = 0;       // steps; 0: at the end and on signals only
  int keep = 2;                      // checkpoints; 0: all
  std::string resume;                // "auto", a checkpoint, or a folder of checkpoints; empty: a fresh start
  std::string on_save_error = "continue";  // or "stop"
};

// A world to plan for that is not started, of machines that need not be like this one.
struct PaperWorld {
  std::int64_t ranks = 0;  // 0: the world is the one that was started
  std::int64_t rank = 0;   // the one whose plan is shown
  std::string profile;     // rates; empty: the configuration's
};

struct PlanOptions {
  RunOptions run;
  PaperWorld world;
  bool json = false;
};

struct InspectOptions {
  std::string checkpoint;            // a checkpoint, or a folder of checkpoints: then the newest
  std::string diff;                  // another one, to compare with
  bool quick = false;                // no data is read
};

struct ExportOptions {
  std::string checkpoint;
  std::string to;                    // folder
  std::string dtype;                 // bf16, fp16, fp32; empty: the model's
  std::string max_file_size;         // "5GB"; empty: one file
  bool allow_non_finite = false;
};

struct DoctorOptions {
  std::string config;                      // whose NVMe folder and engine are looked at; may be empty
  std::vector<std::string> nvme_paths;     // further folders
  bool json = false;
};

struct TuneOptions {
  std::vector<std::string> nvme_paths;
  std::string out;                         // file for the aio section; empty: none
  std::string profile;                     // file for the rates; empty: none
  std::vector<std::string> engines;        // empty: all that work here
  bool quick = false;
};

}  // namespace spillway::app
