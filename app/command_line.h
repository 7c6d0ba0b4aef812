// The command line, read.
#pragma once

#include <cstdint>
#include <string>

#include "app/options.h"

namespace spillway::app {

enum class Command : std::uint8_t { train, plan, inspect, export_weights, doctor, tune, show };

struct CommandLine {
  Command command = Command::show;
  std::string text;  // of show: what --help or --version prints
  TrainOptions train;
  PlanOptions plan;
  InspectOptions inspect;
  ExportOptions export_weights;
  DoctorOptions doctor;
  TuneOptions tune;
};

// Throws ConfigError that says what was not understood, what may have been meant, and where help is.
CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace spillway::app
