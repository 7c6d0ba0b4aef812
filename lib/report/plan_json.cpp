#include "report/plan_json.h"

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/state_format.h"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

Json tiers_json(const Plan& plan) {
  Json tiers = Json::object();
  for (int t = 0; t < kTiers; ++t) {
    const TierUse& use = plan.tiers[static_cast<std::size_t>(t)];
    Json owners = Json::object();
    for (int o = 0; o < kOwners; ++o) owners[std::string(name_of(static_cast<Owner>(o)))] = use.by_owner[static_cast<std::size_t>(o)];
    tiers[std::string(name_of(static_cast<Tier>(t)))] = {
        {"peak", use.peak}, {"budget", use.budget ? Json(*use.budget) : Json()}, {"fits", use.fits()}, {"at_the_peak", owners}};
  }
  return tiers;
}

Json layers_json(const Plan& plan) {
  Json layers = Json::array();
  for (const LayerPlan& layer : plan.layers) {
    layers.push_back({{"name", layer.name},
                      {"elements", layer.num_elements},
                      {"weights", name_of(layer.weights_tier)},
                      {"update_on", layer.update_on_device ? "device" : "host"},
                      {"gradient", name_of(layer.gradient_tier)},
                      {"gradient_dtype", name_of(layer.gradient_dtype)},
                      {"activation", name_of(layer.activation_tier)}});
  }
  return layers;
}

Json tiles_json(const Plan& plan) {
  Json tiles = Json::array();
  for (const TilePlan& tile : plan.tiles) {
    tiles.push_back({{"layer", tile.layer}, {"begin", tile.begin}, {"end", tile.end}, {"state", name_of(tile.tier)}});
  }
  return tiles;
}

Json buffers_json(const Plan& plan) {
  Json buffers = Json::array();
  for (const Buffer& buffer : plan.buffers) {
    buffers.push_back({{"name", buffer.name},
                       {"tier", name_of(buffer.tier)},
                       {"owner", name_of(buffer.owner)},
                       {"persistent", buffer.persistent},
                       {"offset", buffer.offset},
                       {"bytes", buffer.bytes}});
  }
  return buffers;
}

Json task_json(const Task& task) {
  Json accesses = Json::array(), dependencies = Json::array();
  for (const Access& a : task.accesses) {
    accesses.push_back({{"buffer", a.buffer}, {"begin", a.begin}, {"end", a.end}, {"reads", a.reads}, {"writes", a.writes}});
  }
  for (const Dependency& d : task.dependencies) dependencies.push_back({{"task", d.task}, {"previous_step", d.previous_run}});
  return {{"kind", name_of(task.kind)}, {"lane", name_of(task.lane)}, {"layer", task.layer},   {"micro_batch", task.micro_batch},
          {"tile", task.tile},          {"bytes", task.bytes},        {"flops", task.flops}, {"accesses", accesses},
          {"dependencies", dependencies}};
}

Json step_json(const Plan& plan, const Simulation& simulation) {
  Json tasks = Json::array();
  for (const Task& task : plan.step.tasks) tasks.push_back(task_json(task));
  for (const SimulatedTask& simulated : simulation.timeline) {
    Json& task = tasks[static_cast<std::size_t>(simulated.task)];
    task["start_ms"] = simulated.start_s * 1e3;
    task["end_ms"] = simulated.end_s * 1e3;
  }
  return tasks;
}

Json lanes_json(const Simulation& simulation) {
  Json lanes = Json::object();
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto l = static_cast<std::size_t>(lane);
    lanes[std::string(name_of(static_cast<Lane>(lane)))] = {{"busy_ms", simulation.busy_s[l] * 1e3}, {"critical_ms", simulation.critical_s[l] * 1e3}};
  }
  return lanes;
}

Json world_json(const Plan& plan, const Simulation& simulation, const MachineRates& rates) {
  const StepTraffic traffic = step_traffic(plan, rates.ranks_per_node);
  const auto tokens = static_cast<double>(plan.tokens_per_step());
  double flops = 0.0;
  for (const Task& task : plan.step.tasks) flops += task.flops;
  return {{"ranks", plan.request.world_size},
          {"rank", plan.request.rank},
          {"tokens_per_step", plan.tokens_per_step()},
          {"tokens_per_s", tokens / simulation.step_s},
          {"tokens_per_s_per_rank", tokens / simulation.step_s / plan.request.world_size},
          {"flops_per_rank_per_step", flops},
          {"gathered_bytes_per_step", traffic.gathered},
          {"reduced_bytes_per_step", traffic.reduced},
          {"sent_bytes_per_step", traffic.sent},
          {"node_network_bytes_per_step", traffic.node}};
}

}  // namespace

std::string plan_json(const Plan& plan, const Simulation& simulation, const MachineRates& rates) {
  Json json;
  json["hash"] = hex64(plan.hash);
  json["params"] = plan.num_parameters();
  json["state_bytes"] = plan.state_bytes();
  const StateFormat& state = plan.request.state;
  json["optimizer"] = {{"kind", traits_of(state.kind).name}, {"moments", name_of(state.moments)}, {"state_bytes_per_parameter", state_bytes_per_parameter(state)}};
  json["predicted_step_ms"] = simulation.step_s * 1e3;
  json["binding_lane"] = name_of(simulation.binding);
  json["world"] = world_json(plan, simulation, rates);
  json["tiers"] = tiers_json(plan);
  json["lanes"] = lanes_json(simulation);
  json["rates"] = Json::parse(rates_json(rates));
  json["layers"] = layers_json(plan);
  json["tiles"] = tiles_json(plan);
  json["buffers"] = buffers_json(plan);
  json["step"] = step_json(plan, simulation);
  return json.dump(1);
}

}  // namespace spillway
