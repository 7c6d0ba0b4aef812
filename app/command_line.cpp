#include "app/command_line.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/commands.h"
#include "base/text.h"
#include "spillway/error.h"
#include "spillway/io_engine.h"
#include "spillway/model.h"

namespace spillway::app {

namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  spillway plan  --config configs/demo.json --model gpt2-10m\n"
    "  spillway train --config configs/demo.json --model gpt2-10m --data book.txt --steps 200 --out run\n"
    "  spillway train --config configs/demo.json --model gpt2-10m --data book.txt --steps 400 --out run --resume auto\n"
    "  mpirun -n 4 spillway train --config configs/zero3_nvme.json --model gpt2-10m --data book.txt --steps 200 --out run\n"
    "  spillway plan  --config my.json --model gpt2-xl --ranks 64 --profile bench/profiles/a100_80gb.json\n"
    "  spillway inspect run\n"
    "  spillway export run --to weights --dtype bf16\n"
    "  spillway doctor --nvme-path /mnt/nvme\n"
    "  spillway tune --nvme-path /mnt/nvme0 /mnt/nvme1 --out aio.json --profile rates.json";

constexpr const char* kExitStatus =
    "Exit status:\n"
    "  0        done\n"
    "  1        unexpected failure; of inspect --diff: the two differ\n"
    "  2        command line, configuration or model\n"
    "  3        training data\n"
    "  4        memory budget\n"
    "  5        disk or file\n"
    "  6        device\n"
    "  7        another rank failed or does not answer, or the ranks disagree\n"
    "  128 + N  ended by signal N: after the step in progress, with all files complete (a second one ends it at once)";

CLI::Validator at_least(std::int64_t least) {
  return CLI::Validator(
      [least](std::string& text) {
        std::int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size() && value >= least) return std::string();
        return fmt::format("'{}' is not a whole number of at least {}", text, least);
      },
      "");
}

void add_run_options(CLI::App& command, RunOptions& options, bool is_training) {
  const std::string needed = is_training ? " (required)" : "";
  command.add_option("--config", options.config, "DeepSpeed JSON; comments and trailing commas allowed")->option_text("FILE (required)");
  command.add_option("--model", options.model, fmt::format("one of {}, or a JSON file with a shape of your own", fmt::join(model_preset_names(), ", ")))
      ->option_text("PRESET|FILE (required)");
  command.add_option("--data", options.data, "text, or .bin files of uint16 tokens (llm.c, nanoGPT)")->option_text("FILE..." + needed);
  command.add_option("--steps", options.steps, "optimizer steps to take")->check(at_least(1))->option_text("N" + needed);
  command.add_option("--device", options.device, "where forward and backward run; default: auto, the best there is")
      ->check(CLI::IsMember({"auto", "host", "cuda"}))
      ->option_text("auto|host|cuda");
  command.add_option("--sequence-length", options.sequence_length, "tokens a sample; default: the model's context")->check(at_least(1))->option_text("N");
}

void add_train_options(CLI::App& command, TrainOptions& options, const std::string& group) {
  const auto add = [&](const char* name, auto& value, const std::string& text, const char* description) {
    return command.add_option(name, value, description)->option_text(text)->group(group);
  };
  add("--eval-data", options.eval_data, "FILE...", "held-out text or tokens, to evaluate the loss on");
  add("--eval-every", options.eval_every, "N", "evaluate every N steps; default: once, at the end")->check(at_least(0));
  add("--eval-batches", options.eval_batches, "N", "micro-batches an evaluation takes at most; default: 16")->check(at_least(1));
  add("--seed", options.seed, "N", "of initial weights and data order; default: 1234")->check(at_least(0));
  add("--out", options.out, "DIR", "folder for checkpoints, metrics.jsonl, trace.json, summary.json and loss.svg; made if missing");
  add("--save-every", options.save_every, "N", "write a checkpoint to --out every N steps; default: at the end, and when told to by SIGTERM, SIGINT or SIGUSR1")->check(at_least(0));
  add("--keep", options.keep, "N", "newest checkpoints to keep; 0: all; default: 2")->check(at_least(0));
  add("--resume", options.resume, "auto|DIR", "go on from a checkpoint; auto: the newest complete one under --out, or a fresh start");
  add("--on-save-error", options.on_save_error, "continue|stop", "what a checkpoint that cannot be written does to the run; default: continue")
      ->check(CLI::IsMember({"continue", "stop"}));
  add("--metrics", options.metrics, "FILE.jsonl", "one JSON object per step");
  add("--trace", options.trace, "FILE.json", "timeline of the lanes, measured beside predicted, for ui.perfetto.dev");
  add("--summary", options.summary, "FILE.json", "the whole run as one JSON object");
  add("--curve", options.curve, "FILE.svg", "the loss curve as a picture");
}

void add_checkpoint(CLI::App& command, std::string& checkpoint) {
  command.add_option("CHECKPOINT", checkpoint, "a step-NNNNNNNN folder, or a run's --out: then the newest in it")->option_text("(required)");
}

void add_inspect_options(CLI::App& command, InspectOptions& options) {
  add_checkpoint(command, options.checkpoint);
  command.add_option("--diff", options.diff, "compare with this one: in which settings and which tensors they differ, and by how much")->option_text("CHECKPOINT");
  command.add_flag("--quick", options.quick, "do not read the data: what the manifest says, and that all files are there");
}

void add_export_options(CLI::App& command, ExportOptions& options) {
  add_checkpoint(command, options.checkpoint);
  command.add_option("--to", options.to, "folder for the safetensors files; must not exist, or be empty")->option_text("DIR (required)");
  command.add_option("--dtype", options.dtype, "of the values, rounded from the fp32 master weights; default: the model's")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}))
      ->option_text("bf16|fp16|fp32");
  command.add_option("--max-file-size", options.max_file_size, "start another file beyond this; default: one file")->option_text("SIZE");
  command.add_flag("--allow-non-finite", options.allow_non_finite, "export infinities and NaN as they are");
}

void add_doctor_options(CLI::App& command, DoctorOptions& options) {
  command.add_option("--nvme-path", options.nvme_paths, "folders to measure as the NVMe tier")->option_text("DIR...");
  command.add_option("--config", options.config, "measure the folders of this one's nvme_path")->option_text("FILE");
  command.add_flag("--json", options.json, "everything as one JSON object");
}

void add_tune_options(CLI::App& command, TuneOptions& options) {
  command.add_option("--nvme-path", options.nvme_paths, "folders to tune for, on different disks")->option_text("DIR... (required)");
  command.add_option("--out", options.out, "configuration with the best aio section, for DeepSpeed and Spillway")->option_text("FILE.json");
  command.add_option("--profile", options.profile, "rates of this machine with that setting, for spillway.profile")->option_text("FILE.json");
  const auto names = io_engine_names();
  command.add_option("--engines", options.engines, "I/O engines to try; default: all that work here")
      ->check(CLI::IsMember(std::vector<std::string>(names.begin(), names.end())))
      ->option_text("NAME...");
  command.add_flag("--quick", options.quick, "a few settings, each measured once: seconds instead of minutes");
}

void add_plan_options(CLI::App& command, PlanOptions& options) {
  command.add_flag("--json", options.json, "the complete plan as one JSON object");
  command.add_option("--ranks", options.world.ranks, "plan for so many ranks without starting them; memory is limited by the configuration alone")
      ->check(at_least(1))
      ->option_text("N");
  command.add_option("--rank", options.world.rank, "with --ranks: the one to show; default: 0, which has the largest shards")->check(at_least(0))->option_text("R");
  command.add_option("--profile", options.world.profile, "rates of another machine, instead of this one's or spillway.profile")->option_text("FILE.json");
}

// What only makes sense together.
void check_world(const CLI::App& command, const PaperWorld& world) {
  constexpr std::int64_t kMostRanks = 1 << 16;
  for (const char* name : {"--rank", "--profile"}) {
    if (command.count(name) > 0 && command.count("--ranks") == 0) {
      throw ConfigError(fmt::format("{} needs --ranks, the number of ranks to plan for (1 is allowed); {}", name, "see spillway plan --help"));
    }
  }
  if (world.ranks > kMostRanks) throw ConfigError(fmt::format("--ranks {} is too many to plan for; allowed: 1 to {}", world.ranks, kMostRanks));
  if (world.ranks > 0 && world.rank >= world.ranks) {
    throw ConfigError(fmt::format("--rank {} is not a rank of a world of {}; allowed: 0 to {}", world.rank, world.ranks, world.ranks - 1));
  }
}

std::string help_of(const std::string& command) { return command.empty() ? "see spillway --help" : fmt::format("see spillway {} --help", command); }

// What the parser could not place.
void refuse_rest(const CLI::App& app, const std::string& command) {
  const std::vector<std::string> rest = app.remaining();
  if (rest.empty()) return;
  const std::string_view word = std::string_view(rest.front()).substr(0, rest.front().find('='));
  std::vector<std::string> names;
  if (word.starts_with("-")) {
    for (const CLI::Option* option : app.get_options()) names.push_back(option->get_name());
  } else if (command.empty()) {
    for (const CLI::App* sub : app.get_subcommands({})) names.push_back(sub->get_name());
  }
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  const char* what = word.starts_with("-") ? "option" : command.empty() ? "command" : "argument";
  throw ConfigError(fmt::format("unknown {} '{}'{}; {}", what, word, did_you_mean(word, candidates), help_of(command)));
}

void require(const CLI::App& command, std::initializer_list<const char*> names) {
  std::vector<std::string> missing;
  for (const char* name : names) {
    if (command.count(name) == 0) missing.emplace_back(name);
  }
  if (missing.empty()) return;
  throw ConfigError(fmt::format("{} needs {}; {}", command.get_name(), fmt::join(missing, " and "), help_of(command.get_name())));
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine line;
  TrainOptions unused;
  CLI::App app("Trains models larger than device memory: state spills to host memory and NVMe, and is pumped back just in time.", "spillway");
  app.set_version_flag("--version", [] { return version_text(); }, "Print the version and the features built in, and exit");
  app.require_subcommand(0, 1)->allow_extras();
  app.get_formatter()->column_width(38);
  app.footer(fmt::format("{}\n\n{}", kExamples, kExitStatus));
  CLI::App* train = app.add_subcommand("train", "Train a model.")->allow_extras();
  add_run_options(*train, line.train.run, true);
  add_train_options(*train, line.train, "Options");
  CLI::App* plan = app.add_subcommand("plan", "Show what a run would need, where everything would live, and what would bound its step.")->allow_extras();
  add_run_options(*plan, line.plan.run, false);
  add_plan_options(*plan, line.plan);
  add_train_options(*plan, unused, "Taken, so that the arguments of train serve as they are, and not used");
  CLI::App* inspect = app.add_subcommand("inspect", "Show what is inside a checkpoint and verify it, or compare two.")->allow_extras();
  add_inspect_options(*inspect, line.inspect);
  CLI::App* export_weights = app.add_subcommand("export", "Write a checkpoint's weights as safetensors that other programs read.")->allow_extras();
  add_export_options(*export_weights, line.export_weights);
  CLI::App* doctor = app.add_subcommand("doctor", "Show what this machine has for training, measured, and what to change about it.")->allow_extras();
  add_doctor_options(*doctor, line.doctor);
  CLI::App* tune = app.add_subcommand("tune", "Find the I/O engine, block size and depth that move the most on the disks of the NVMe tier.")->allow_extras();
  add_tune_options(*tune, line.tune);
  const std::pair<CLI::App*, Command> commands[] = {{train, Command::train},
                                                    {plan, Command::plan},
                                                    {inspect, Command::inspect},
                                                    {export_weights, Command::export_weights},
                                                    {doctor, Command::doctor},
                                                    {tune, Command::tune}};
  const auto chosen = [&] { return std::find_if(std::begin(commands), std::end(commands), [](const auto& entry) { return entry.first->parsed(); }); };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {
    std::ostringstream text;
    app.exit(wanted, text, text);
    line.text = text.str();
    return line;
  } catch (const CLI::ParseError& error) {
    throw ConfigError(fmt::format("{}; {}", error.what(), help_of(chosen() == std::end(commands) ? "" : chosen()->first->get_name())));
  }
  refuse_rest(app, "");
  if (chosen() == std::end(commands)) throw ConfigError("no command given: train, plan, inspect, export, doctor or tune; " + help_of(""));
  const auto& [command, which] = *chosen();
  refuse_rest(*command, command->get_name());
  if (which == Command::train) require(*command, {"--config", "--model", "--data", "--steps"});
  if (which == Command::plan) {
    require(*command, {"--config", "--model"});
    check_world(*command, line.plan.world);
  }
  if (which == Command::inspect) require(*command, {"CHECKPOINT"});
  if (which == Command::export_weights) require(*command, {"CHECKPOINT", "--to"});
  if (which == Command::tune) require(*command, {"--nvme-path"});
  line.command = which;
  return line;
}

}  // namespace spillway::app
