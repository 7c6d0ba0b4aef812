// Trains three steps from a plan that lost a dependency: gathers no longer wait for the weights of the step
// before. Built with ThreadSanitizer only, which has to call that a data race: nothing in the executor, the
// streams or the counters between them may order tasks that the plan does not. With the argument "sound"
// the plan is left as it is, and there must be no report.
#include <cstring>

#include "support/training.h"

int main(int argc, char** argv) {
  using namespace spillway;
  const bool sound = argc > 1 && std::strcmp(argv[1], "sound") == 0;
  testing::RunSetup setup = testing::tiny_run();
  setup.steps = 3;
  setup.config.offload_param.device = setup.config.offload_optimizer.device = OffloadDevice::cpu;
  setup.edit_plan = [sound](Plan& plan) {
    for (Task& task : plan.step.tasks) {
      if (sound || task.kind != TaskKind::gather) continue;
      std::erase_if(task.dependencies, [](const Dependency& d) { return d.previous_run; });
    }
  };
  testing::train(setup);
  return 0;
}
