#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/commands.h"
#include "spillway/device.h"
#include "spillway/io_engine.h"
#include "spillway/optimizer.h"

namespace spillway::app {

std::string version() { return SPILLWAY_VERSION; }

std::string version_text() {
  const std::string no_cuda = why_no_cuda_device();
  const std::string_view engine = usable_io_engine();
  return fmt::format(
      "spillway {}\n"
      "devices:          host{}\n"
      "instruction set:  {} (usable here: {})\n"
      "I/O engine:       {} (built in: {})",
      SPILLWAY_VERSION, no_cuda.empty() ? ", cuda" : " (cuda: " + no_cuda + ")", active_isa(), fmt::join(available_isas(), ", "),
      engine.empty() ? "none works here" : engine, fmt::join(io_engine_names(), ", "));
}

}  // namespace spillway::app
