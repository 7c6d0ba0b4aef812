// The public update: chooses the instruction set, forms the scalars, hands the tile to a kernel.
#include <cassert>
#include <cfenv>
#include <cmath>
#include <cstdlib>
#include <string>

#include "base/text.h"
#include "instruction_set.h"
#include "spillway/cpu_adam.h"
#include "spillway/error.h"

namespace spillway {
namespace {

using cpu_adam::AdamScalars;
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

AdamScalars scalars_of(const AdamParams& p) {
  const double steps = static_cast<double>(p.step);
  const double correction1 = p.bias_correction ? 1.0 - std::pow(p.beta1, steps) : 1.0;
  const double correction2 = p.bias_correction ? 1.0 - std::pow(p.beta2, steps) : 1.0;
  return AdamScalars{
      .gradient_scale = p.gradient_scale,
      // Without decay both modes are the same; the L2 text would turn -0 into +0 and an infinite master into NaN.
      .decoupled = p.decoupled_decay || p.weight_decay == 0.0,
      .decay_factor = static_cast<float>(1.0 - p.learning_rate * p.weight_decay),
      .weight_decay = static_cast<float>(p.weight_decay),
      .beta1 = static_cast<float>(p.beta1),
      .one_minus_beta1 = static_cast<float>(1.0 - p.beta1),
      .beta2 = static_cast<float>(p.beta2),
      .one_minus_beta2 = static_cast<float>(1.0 - p.beta2),
      .step_size = static_cast<float>(p.learning_rate / correction1),
      .sqrt_correction2 = static_cast<float>(std::sqrt(correction2)),
      .epsilon = static_cast<float>(p.epsilon),
  };
}

// IEEE default arithmetic for a scope. A thread that a trainer or another library put into
// flush-to-zero would otherwise compute other bits than its neighbours.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&saved_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  std::fenv_t saved_;
};

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
  const AdamScalars scalars = scalars_of(params);
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
