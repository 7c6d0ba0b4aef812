// spillway plan
#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "app/commands.h"
#include "app/setup.h"
#include "base/hash.h"
#include "base/state_format.h"
#include "base/text.h"
#include "data/sampler.h"
#include "data/token_data.h"
#include "report/plan_json.h"
#include "spillway/cost.h"
#include "spillway/plan.h"

namespace spillway::app {

namespace {

std::string lanes_text(const Simulation& simulation) {
  std::string text = "lane          busy ms   share of the critical path\n";
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto l = static_cast<std::size_t>(lane);
    if (simulation.busy_s[l] == 0.0) continue;
    text += fmt::format("{:<12}{:>9.1f}   {:>5.1f}%\n", name_of(static_cast<Lane>(lane)), simulation.busy_s[l] * 1e3,
                        100.0 * simulation.critical_s[l] / simulation.step_s);
  }
  return text;
}

std::string rates_text(const MachineRates& rates) {
  return fmt::format("rates: {:.0f} GFLOP/s, host copies {:.1f} GB/s, optimizer {:.1f} GB/s, NVMe {:.2f} GB/s read and {:.2f} GB/s write\n",
                     rates.matmul_flops * 1e-9, rates.h2d_bytes * 1e-9, rates.cpu_adam_bytes * 1e-9, rates.nvme_read_bytes * 1e-9,
                     rates.nvme_write_bytes * 1e-9);
}

// Of a world of several ranks.
std::string ranks_text(const Plan& plan, const Simulation& simulation, const MachineRates& rates) {
  const StepTraffic traffic = step_traffic(plan, rates.ranks_per_node);
  const auto ranks = static_cast<double>(plan.request.world_size);
  std::string text = fmt::format("each of {} ranks: {:.0f} tokens/s; a step gathers {} and sends {} of gradients",
                                 plan.request.world_size, static_cast<double>(plan.tokens_per_step()) / simulation.step_s / ranks,
                                 human_bytes(traffic.gathered), human_bytes(traffic.reduced));
  text += fmt::format("\ncollectives at {:.1f} GB/s a rank", rates.comm_bytes * 1e-9);
  if (rates.ranks_per_node > 0) {
    text += fmt::format("; {} ranks a node, whose network carries {} a step each way", rates.ranks_per_node, human_bytes(traffic.node));
    if (rates.network_bytes > 0.0) text += fmt::format(" at {:.1f} GB/s", rates.network_bytes * 1e-9);
  }
  return text + "\n";
}

std::string plan_text(const Setup& setup, const Plan& plan, const Simulation& simulation) {
  const PlanRequest& request = plan.request;
  std::string text = fmt::format("model {}: {} parameters in {} layers; training state {}\noptimizer {}, {:.4g} bytes of state a parameter\n", setup.spec.name,
                                 human_count(plan.num_parameters()), plan.layers.size(), human_bytes(plan.state_bytes()), text_of(request.state),
                                 state_bytes_per_parameter(request.state));
  if (request.world_size > 1) text += fmt::format("rank {} of {}:\n", request.rank, request.world_size);
  text += fmt::format("{}\n{}\n", ledger_text(plan), lanes_text(simulation));
  text += fmt::format("predicted step {:.0f} ms ({:.0f} tokens/s), bound by {}\n{}", simulation.step_s * 1e3,
                      static_cast<double>(plan.tokens_per_step()) / simulation.step_s, name_of(simulation.binding), rates_text(setup.rates));
  if (request.world_size > 1) text += ranks_text(plan, simulation, setup.rates);
  return text + fmt::format("plan {} of {} tasks\n", hex64(plan.hash), plan.step.tasks.size());
}

}  // namespace

int plan(const PlanOptions& options) {
  // A world on paper is this process's own: whoever else was started plans it too.
  const bool on_paper = options.world.ranks > 0;
  std::optional<Job> job;
  if (!on_paper) job.emplace(WorldOptions{});
  Setup setup = on_paper ? prepare_on_paper(options.run, options.world) : prepare(options.run, *job, false);
  if (!on_paper) {
    link_devices(*job, setup);
    agree_on_budgets(*job, setup);
    measure_rates(*job, setup);
  }
  if (!options.run.data.empty()) {  // the same refusals as train's
    const TokenData data(options.run.data, setup.spec.vocabulary);
    Sampler(data, {setup.request.shape.time, setup.config.train_batch_size, 0, 0, 1});
  }
  const Plan plan = on_paper ? make_plan(setup.request) : plan_for_machine(setup, job->local_size());
  const Simulation simulation = simulate(plan.step, task_seconds(plan, plan.step, setup.rates), setup.rates);
  const std::string text = options.json ? plan_json(plan, simulation, setup.rates) + "\n" : plan_text(setup, plan, simulation);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace spillway::app
