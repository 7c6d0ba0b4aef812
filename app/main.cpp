// spillway: the program. An error is one text on standard error, its last, and an exit status by its kind.
#include <cstdio>
#include <exception>

#include "app/command_line.h"
#include "app/commands.h"
#include "app/job.h"

namespace spillway::app {
namespace {

int run(int argc, char** argv) {
  const CommandLine line = parse_command_line(argc, argv);
  switch (line.command) {
    case Command::train: return train(line.train);
    case Command::plan: return plan(line.plan);
    case Command::inspect: return inspect(line.inspect);
    case Command::export_weights: return export_weights(line.export_weights);
    case Command::doctor: return doctor(line.doctor);
    case Command::tune: return tune(line.tune);
    case Command::show: std::fputs(line.text.c_str(), stdout); return 0;
  }
  return 1;
}

int report(const std::exception& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "spillway: %s\n", error.what());
  return exit_status(error);
}

}  // namespace
}  // namespace spillway::app

int main(int argc, char** argv) {
  using namespace spillway;
  try {
    return app::run(argc, argv);
  } catch (const app::Silent& silent) {
    return silent.status;
  } catch (const std::exception& error) {
    return app::report(error);
  }
}
