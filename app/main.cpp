// spillway: the command line.
#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>

#include "app/commands.h"
#include "spillway/error.h"

namespace spillway::app {
namespace {

constexpr const char* kExitStatus =
    "Exit status: 0 done; 1 unexpected failure; 2 command line, configuration or model; 3 data; 4 memory budget;\n"
    "5 disk or file; 6 device; 128 + N ended by signal N after finishing its step.";

void add_run_options(CLI::App& command, RunOptions& options, bool is_training) {
  command.add_option("--config", options.config, "DeepSpeed JSON file (comments and trailing commas allowed)")->required()->type_name("FILE");
  command.add_option("--model", options.model, "preset (gpt2-tiny, gpt2-10m, gpt2, gpt2-medium, gpt2-large, gpt2-xl) or JSON file")
      ->required()
      ->type_name("PRESET|FILE");
  CLI::Option* data = command.add_option("--data", options.data, "training text, or .bin files of uint16 tokens (llm.c, nanoGPT)")->type_name("FILE...");
  CLI::Option* steps = command.add_option("--steps", options.steps, "optimizer steps to take")->check(CLI::PositiveNumber)->type_name("N");
  if (is_training) {
    data->required();
    steps->required();
  }
  command.add_option("--device", options.device, "where forward and backward run")
      ->check(CLI::IsMember({"auto", "host", "cuda"}))
      ->capture_default_str()
      ->type_name("auto|host|cuda");
  command.add_option("--sequence-length", options.sequence_length, "tokens per sample; default: the model's context")
      ->check(CLI::PositiveNumber)
      ->type_name("T");
}

void add_train_options(CLI::App& command, TrainOptions& options) {
  add_run_options(command, options.run, true);
  command.add_option("--eval-data", options.eval_data, "held-out text or tokens")->type_name("FILE...");
  command.add_option("--eval-every", options.eval_every, "evaluate every N steps; default: once, at the end")->check(CLI::NonNegativeNumber)->type_name("N");
  command.add_option("--eval-batches", options.eval_batches, "most micro-batches per evaluation")->check(CLI::PositiveNumber)->capture_default_str()->type_name("N");
  command.add_option("--out", options.out, "folder for metrics.jsonl, trace.json, summary.json and loss.svg; made if missing")->type_name("DIR");
  command.add_option("--seed", options.seed, "of initial weights and data order")->capture_default_str()->type_name("N");
  command.add_option("--metrics", options.metrics, "one JSON object per step")->type_name("FILE.jsonl");
  command.add_option("--trace", options.trace, "timeline of the lanes, measured beside predicted, for ui.perfetto.dev")->type_name("FILE.json");
  command.add_option("--summary", options.summary, "the whole run as one JSON object")->type_name("FILE.json");
  command.add_option("--curve", options.curve, "the loss curve as a picture")->type_name("FILE.svg");
}

int run(int argc, char** argv) {
  CLI::App app("Trains models larger than device memory: state spills to host memory and NVMe, and is pumped back just in time.", "spillway");
  app.set_version_flag("--version", [] { return version_text(); });
  app.require_subcommand(1);
  app.footer(kExitStatus);
  TrainOptions train_options;
  PlanOptions plan_options;
  CLI::App* train_command = app.add_subcommand("train", "train a model");
  add_train_options(*train_command, train_options);
  CLI::App* plan_command = app.add_subcommand("plan", "show what a run would need, where everything would live, and what would bound its step");
  add_run_options(*plan_command, plan_options.run, false);
  plan_command->add_flag("--json", plan_options.json, "the complete plan as one JSON object");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return *train_command ? train(train_options) : plan(plan_options);
}

int report(const std::exception& error, int status) {
  std::fflush(stdout);
  std::fprintf(stderr, "spillway: %s\n", error.what());
  return status;
}

}  // namespace
}  // namespace spillway::app

int main(int argc, char** argv) {
  using namespace spillway;
  try {
    return app::run(argc, argv);
  } catch (const ConfigError& error) {
    return app::report(error, 2);
  } catch (const DataError& error) {
    return app::report(error, 3);
  } catch (const MemoryError& error) {
    return app::report(error, 4);
  } catch (const IoError& error) {
    return app::report(error, 5);
  } catch (const DeviceError& error) {
    return app::report(error, 6);
  } catch (const std::exception& error) {
    return app::report(error, 1);
  }
}
