"""The training run of the stored losses: the same for the script that stores them and the step that compares."""

from workload import config

MODEL = "gpt2-tiny"
DTYPES = ("fp32", "bf16", "fp16")
STEPS = 50
SEQUENCE_LENGTH, MICRO_BATCH = 32, 2
TEXT_BYTES = 20_000


# Fixed: a dynamic one skips a step or not by a hair's breadth.
LOSS_SCALE = 128


def train(spillway, dtype, text, steps):
    run_config = config("none", MICRO_BATCH, 1, dtype)
    if dtype == "fp16":
        run_config["fp16"]["loss_scale"] = LOSS_SCALE
    return spillway.train(run_config, MODEL, text, SEQUENCE_LENGTH, steps)
