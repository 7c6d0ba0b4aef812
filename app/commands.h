// The commands of the program. Each prints to standard output, throws spillway::Error, and returns the
// process's exit status.
#pragma once

#include <string>

#include "app/options.h"

namespace spillway::app {

int train(const TrainOptions& options);
int plan(const PlanOptions& options);

int inspect(const InspectOptions& options);
int export_weights(const ExportOptions& options);
int doctor(const DoctorOptions& options);
int tune(const TuneOptions& options);

// "0.1.0"
std::string version();

// "spillway 0.1.0", the features built in, the instruction set and the I/O engine in use.
std::string version_text();

}  // namespace spillway::app
