"""What a step of a GPT-2-shaped model has to compute, and how much a device can.

Model flops: 6 for every parameter that is multiplied and every token (2 forward, 4 backward), and what causal attention needs:
6 * layers * time * channels for every token (scores and values, forward and twice backward, of which causality leaves half). The
position table is looked up and not multiplied; the token table is, by the loss head. Recomputation in backward is no model flop:
it is the engine's choice, so it lowers the fraction.
"""

# Dense 16-bit flops with f32 sums, without sparsity, of the vendor's data sheets.
DATA_SHEET = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "B200": 2250e12,
}


def per_token(model, params, time):
    multiplied = params - model["context"] * model["channels"]
    return 6 * multiplied + 6 * model["layers"] * time * model["channels"]


def data_sheet(device):
    """Of a device by its name, the longest name that fits; None if it is not known."""
    known = [name for name in DATA_SHEET if all(word in device.replace("-", " ").split() for word in name.split())]
    return DATA_SHEET[max(known, key=len)] if known else None


def fractions(flops_per_s, roof, device):
    """Of the measured roof and of the data sheet; None where there is none."""
    sheet = data_sheet(device)
    return {"model_flops_per_s": flops_per_s, "of_measured_roof": flops_per_s / roof if roof else None, "of_data_sheet": flops_per_s / sheet if sheet else None}
