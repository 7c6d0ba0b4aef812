#include "isa.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "base/text.h"
#include "spillway/error.h"
#include "spillway/optimizer.h"

namespace spillway {
namespace cpu_adam {
namespace {

const Isa& choose() {
  const char* forced = std::getenv("SPILLWAY_ISA");
  if (forced != nullptr && *forced != '\0') return find_isa(forced, "the environment variable SPILLWAY_ISA");
  return find_isa(available_isas().front(), "the list of usable instruction sets");
}

}  // namespace

const Isa& find_isa(std::string_view name, std::string_view origin) {
  const std::vector<std::string_view> usable = available_isas();
  std::string allowed;
  for (const std::string_view isa : usable) allowed.append(allowed.empty() ? "" : ", ").append(isa);
  for (const Isa& isa : isas()) {
    if (isa.name != name) continue;
    if (isa.usable()) return isa;
    throw ConfigError(std::string("[cpu_adam] ").append(origin).append(" asks for the instruction set \"").append(name)
                          .append("\", which this CPU or operating system lacks; usable here: ").append(allowed));
  }
  throw ConfigError(std::string("[cpu_adam] ").append(origin).append(" names an unknown instruction set \"").append(name)
                        .append("\"").append(did_you_mean(name, usable)).append("; usable here: ").append(allowed));
}

const Isa& current_isa() {
  static const Isa& chosen = choose();
  return chosen;
}

}  // namespace cpu_adam

std::vector<std::string_view> available_isas() {
  std::vector<std::string_view> names;
  for (const cpu_adam::Isa& isa : cpu_adam::isas()) {
    if (isa.usable()) names.push_back(isa.name);
  }
  return names;
}

std::string_view active_isa() { return cpu_adam::current_isa().name; }

}  // namespace spillway
