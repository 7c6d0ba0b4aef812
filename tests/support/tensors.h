// Single tensors of a tiny run, for tests that read and write them by name.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/gradient_access.h"
#include "runtime/state_sections.h"
#include "support/training.h"

namespace spillway::testing {

using Values = std::vector<float>;
using Tensors = std::map<std::string, Values>;  // "master wte.weight", "gradient wte.weight", ...

inline std::string key(StateSection section, const std::string& param) { return std::string(name_of(section)) + " " + param; }

// A layer is partly frozen; two micro-batches; tiles smaller than a layer.
RunSetup tensor_run(int stage);

// State and, at stage 3, weights on a device.
RunSetup placed(RunSetup setup, OffloadDevice device, const std::string& folder);

// One rank without a world, or so many.
void on_ranks(const RunSetup& setup, int world, const std::function<void(RunSetup&)>& act);

// tensor_run() with everything on the device, on the host, on NVMe, on the host with gradients on NVMe, and on the host with
// gradients waiting there or on NVMe in f32 where ranks can have that. `where`: for messages.
void on_every_placement(int stage, int world, const std::function<void(RunSetup&, const std::string& where)>& act);

std::vector<ParamSpec> params_of(const RunSetup& setup);
ParamSpec param_of(const RunSetup& setup, const std::string& name);

Values read(Engine& engine, const ParamSpec& param, StateSection section);
Tensors read_all(Engine& engine, const RunSetup& setup);
Tensors read_all(GradientAccess& gradients, const RunSetup& setup);

// Around `offset`, no two alike.
Values values_like(const ParamSpec& param, float offset);
Values rounded(Values values, DType dtype);

// Of bits, not of values: zeros have signs.
bool same_bits(const Values& a, const Values& b);

// The names of tensors that differ, or that only one has; empty if there are none.
std::string difference(const Tensors& found, const Tensors& expected);

StepResult step(Engine& engine, const RunSetup& setup, int number);

}  // namespace spillway::testing
