// The public update: chooses the instruction set and hands the tile to a kernel.
#include <cassert>
#include <cstdlib>
#include <string>

#include "base/adam_scalars.h"
#include "base/default_arithmetic.h"
#include "base/text.h"
#include "instruction_set.h"
#include "spillway/cpu_adam.h"
#include "spillway/error.h"

namespace spillway {
namespace {

using cpu_adam::InstructionSet;
using cpu_adam::instruction_sets;

// The usable entry called `name`; `origin` says in the error where the name came from.
const InstructionSet& find_isa(std::string_view name, std::string_view origin) {
  const std::vector<std::string_view> usable = available_isas();
  std::string allowed;
  for (const std::string_view isa : usable) allowed.append(allowed.empty() ? "" : ", ").append(isa);
  for (const InstructionSet& isa : instruction_sets()) {
    if (isa.name != name) continue;
    if (isa.usable()) return isa;
    throw ConfigError(std::string("[cpu_adam] ").append(origin).append(" asks for the instruction set \"").append(name)
                          .append("\", which this CPU or operating system lacks; usable here: ").append(allowed));
  }
  throw ConfigError(std::string("[cpu_adam] ").append(origin).append(" names an unknown instruction set \"").append(name)
                        .append("\"").append(did_you_mean(name, usable)).append("; usable here: ").append(allowed));
}

const InstructionSet& choose() {
  const char* forced = std::getenv("SPILLWAY_ISA");
  if (forced != nullptr && *forced != '\0') return find_isa(forced, "the environment variable SPILLWAY_ISA");
  return find_isa(available_isas().front(), "the list of usable instruction sets");
}

const InstructionSet& active() {
  static const InstructionSet& chosen = choose();
  return chosen;
}

AdamTile from(const AdamTile& tile, std::int64_t first) {
  AdamTile rest = tile;
  rest.master += first;
  rest.exp_avg += first;
  rest.exp_avg_sq += first;
  rest.gradient = static_cast<const char*>(tile.gradient) + first * size_of(tile.gradient_dtype);
  if (tile.weight != nullptr) rest.weight = static_cast<char*>(tile.weight) + first * size_of(tile.weight_dtype);
  rest.n -= first;
  return rest;
}

void update_by(const InstructionSet& isa, const AdamTile& tile, const AdamParams& params) {
  assert(tile.n >= 0 && params.step >= 1);
  if (tile.n == 0) return;
  const DefaultArithmetic scope;
  const AdamScalars scalars = adam_scalars(params);
  const std::int64_t done = isa.update(tile, scalars);
  if (done < tile.n) cpu_adam::update_scalar(from(tile, done), scalars);
}

}  // namespace

void adam_update(const AdamTile& tile, const AdamParams& params) { update_by(active(), tile, params); }

std::vector<std::string_view> available_isas() {
  std::vector<std::string_view> names;
  for (const InstructionSet& isa : instruction_sets()) {
    if (isa.usable()) names.push_back(isa.name);
  }
  return names;
}

std::string_view active_isa() { return active().name; }

void adam_update_with(std::string_view isa, const AdamTile& tile, const AdamParams& params) {
  update_by(find_isa(isa, "the caller of adam_update_with()"), tile, params);
}

}  // namespace spillway
