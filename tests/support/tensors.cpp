#include "support/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "base/values.h"

namespace spillway::testing {

RunSetup tensor_run(int stage) {
  RunSetup setup = tiny_run();
  setup.spec = {"tiny", 2, 16, 2, 48, 16};
  setup.time = 16;
  setup.config.zero_stage = stage;
  setup.config.accumulation_steps = 2;
  setup.config.train_batch_size = 4;
  setup.config.spillway.tile_size = 2048;
  setup.frozen = {"h.0.ln_1.*", "h.0.mlp.c_proj.weight"};
  return setup;
}

RunSetup placed(RunSetup setup, OffloadDevice device, const std::string& folder) {
  setup.config.offload_optimizer = {device, {folder}, true, 1.0};
  if (setup.config.zero_stage == 3) setup.config.offload_param = {device, {folder}, true, 1.0};
  return setup;
}

void on_ranks(const RunSetup& setup, int world, const std::function<void(RunSetup&)>& act) {
  RunSetup alone = setup;
  world == 1 ? act(alone) : for_each_rank(setup, world, act, 30.0);
}

namespace {

RunSetup with_gradients_on_nvme(RunSetup setup) {
  setup.config.spillway.offload_gradients = OffloadDevice::nvme;
  setup.config.spillway.nvme_paths = setup.config.offload_optimizer.nvme_paths;
  return setup;
}

// A byte less than it takes to keep them on the device.
void send_gradients_to_host(RunSetup& setup) {
  setup.config.spillway.device_memory = plan_of(setup).tiers[static_cast<std::size_t>(Tier::device)].peak - 1;
  const Plan plan = plan_of(setup);
  if (std::ranges::none_of(plan.layers, [](const LayerPlan& layer) { return layer.square_sums_on_host; })) {
    throw std::logic_error("gradients stay on the device");
  }
}

}  // namespace

void on_every_placement(int stage, int world, const std::function<void(RunSetup&, const std::string&)>& act) {
  const ScratchFolder folder;
  const auto where = [](const RunSetup& setup, const std::string& place) {
    return place + ", rank " + std::to_string(setup.world == nullptr ? 0 : setup.world->rank());
  };
  const std::array<std::pair<OffloadDevice, std::string>, 3> places = {
      {{OffloadDevice::none, "none"}, {OffloadDevice::cpu, "cpu"}, {OffloadDevice::nvme, "nvme"}}};
  for (const auto& [device, name] : places) {
    on_ranks(placed(tensor_run(stage), device, folder.path()), world, [&](RunSetup& mine) { act(mine, where(mine, name)); });
  }
  const RunSetup on_cpu = placed(tensor_run(stage), OffloadDevice::cpu, folder.path());
  on_ranks(with_gradients_on_nvme(on_cpu), world, [&](RunSetup& mine) { act(mine, where(mine, "cpu, gradients on nvme")); });
  if (world > 1 && stage < 2) return;
  for (const auto& [setup, name] : {std::pair{on_cpu, "cpu, gradients on the host"}, {with_gradients_on_nvme(on_cpu), "cpu, gradients summed up on nvme"}}) {
    on_ranks(setup, world, [&](RunSetup& mine) {
      send_gradients_to_host(mine);
      act(mine, where(mine, name));
    });
  }
}

std::vector<ParamSpec> params_of(const RunSetup& setup) {
  std::vector<ParamSpec> params;
  for (const auto& layer : make_layers(setup.spec, setup.frozen)) params.insert(params.end(), layer->params().begin(), layer->params().end());
  return params;
}

ParamSpec param_of(const RunSetup& setup, const std::string& name) {
  const std::vector<ParamSpec> params = params_of(setup);
  return *std::ranges::find(params, name, &ParamSpec::name);
}

Values read(Engine& engine, const ParamSpec& param, StateSection section) {
  Values values(static_cast<std::size_t>(param.num_elements), -77.0f);
  engine.read_tensor(param.name, section, values);
  return values;
}

Tensors read_all(Engine& engine, const RunSetup& setup) {
  Tensors tensors;
  for (const ParamSpec& param : params_of(setup)) {
    tensors[key(StateSection::weight, param.name)] = read(engine, param, StateSection::weight);
    if (!param.trainable) continue;
    for (const StateSection section : sections_of(engine.plan().request.state.kind, false)) tensors[key(section, param.name)] = read(engine, param, section);
  }
  return tensors;
}

Tensors read_all(GradientAccess& gradients, const RunSetup& setup) {
  Tensors tensors;
  for (const ParamSpec& param : params_of(setup)) {
    if (!param.trainable) continue;
    Values& values = tensors["gradient " + param.name];
    values.assign(static_cast<std::size_t>(param.num_elements), -77.0f);
    gradients.read(param.name, values);
  }
  return tensors;
}

Values values_like(const ParamSpec& param, float offset) {
  Values values(static_cast<std::size_t>(param.num_elements));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = offset + 0.01f * std::sin(static_cast<float>(i) + offset);
  return values;
}

Values rounded(Values values, DType dtype) {
  round_values(dtype, values);
  return values;
}

bool same_bits(const Values& a, const Values& b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0; }

std::string difference(const Tensors& found, const Tensors& expected) {
  std::string names;
  for (const auto& [name, values] : expected) {
    const auto it = found.find(name);
    if (it == found.end() || !same_bits(it->second, values)) names += name + "; ";
  }
  for (const auto& [name, values] : found) {
    if (!expected.contains(name)) names += name + "; ";
  }
  return names;
}

StepResult step(Engine& engine, const RunSetup& setup, int number) {
  fill_batch(engine, setup, number);
  return engine.step();
}

}  // namespace spillway::testing
