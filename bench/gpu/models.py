"""GPT-2 shapes of the benches."""

VOCABULARY = 50257


def shape(layers, channels, heads, context=1024, vocabulary=VOCABULARY):
    return {"layers": layers, "channels": channels, "heads": heads, "vocabulary": vocabulary, "context": context}


TINY = shape(2, 64, 4, 32, 256)     # for the simulation
SMALL = shape(12, 768, 12)          # 124 M parameters
# Largest first; heads of 64 or 128 channels.
LARGE = [shape(32, 4480, 35, 2048), shape(32, 4096, 32, 2048), shape(32, 3584, 28, 2048), shape(32, 3072, 24, 2048), shape(32, 2560, 20, 2048),
         shape(48, 1600, 25, 2048), shape(24, 1024, 16, 2048)]


def parameters(model):
    channels = model["channels"]
    block = 12 * channels**2 + 13 * channels
    return model["layers"] * block + (model["vocabulary"] + model["context"]) * channels + 2 * channels


def state_bytes(model):
    """16-bit weights and gradients, fp32 master weights and two moments."""
    return 16 * parameters(model)
