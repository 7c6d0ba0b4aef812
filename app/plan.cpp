// spillway plan
#include <cstdio>

#include <fmt/format.h>

#include "app/commands.h"
#include "app/setup.h"
#include "base/hash.h"
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

}  // namespace

int plan(const PlanOptions& options) {
  Job job({});
  Setup setup = prepare(options.run, job, false);
  if (!options.run.data.empty()) {  // the same refusals as train's
    const TokenData data(options.run.data, setup.spec.vocabulary);
    Sampler(data, {setup.request.shape.time, setup.config.train_batch_size, 0, 0, 1});
  }
  const Plan plan = plan_for_machine(setup.request, job.local_size());
  const Simulation simulation = simulate(plan.step, task_seconds(plan.step, setup.rates), setup.rates);
  std::string text;
  if (options.json) {
    text = plan_json(plan, simulation, setup.rates) + "\n";
  } else {
    text = fmt::format("model {}: {} parameters in {} layers; training state {}\n{}\n{}\n", setup.spec.name, human_count(plan.num_parameters()),
                       plan.layers.size(), human_bytes(plan.state_bytes()), ledger_text(plan), lanes_text(simulation));
    text += fmt::format("predicted step {:.0f} ms ({:.0f} tokens/s), bound by {}\n{}", simulation.step_s * 1e3,
                        static_cast<double>(setup.config.train_batch_size * plan.request.shape.time) / simulation.step_s,
                        name_of(simulation.binding), rates_text(setup.rates));
    text += fmt::format("plan {} of {} tasks\n", hex64(plan.hash), plan.step.tasks.size());
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace spillway::app
