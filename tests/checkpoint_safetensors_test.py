"""Checkpoints and exports as a program sees them that shares no code with ours: valid safetensors, pieces that make up
the tensors, and exported values that are the rounded master weights.

usage: checkpoint_safetensors_test.py CHECKPOINT_SAMPLE
"""

import fractions
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, __file__.rpartition("/")[0])
from support import tap

try:
    import torch
except ImportError:
    torch = None

PROGRAM = sys.argv[1]
SIZES = {"F32": 4, "BF16": 2, "F16": 2}


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} and the metadata, after checking all that the format demands."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert data[8:9] == b"{", "the header does not begin with a brace"
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    assert all(isinstance(value, str) for value in metadata.values()), metadata
    body, at, tensors = data[8 + length:], 0, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        elements = 1
        for extent in entry["shape"]:
            elements *= extent
        assert begin == at and end - begin == elements * SIZES[entry["dtype"]], (name, entry)
        assert begin % SIZES[entry["dtype"]] == 0 and length % 8 == 0, (name, entry)
        tensors[name], at = (entry["dtype"], entry["shape"], body[begin:end]), end
    assert at == len(body), (at, len(body))
    return tensors, metadata


def floats(dtype, data):
    if dtype == "BF16":
        return list(struct.unpack(f"<{len(data) // 2}f", b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))))
    return list(struct.unpack(f"<{len(data) // SIZES[dtype]}{'f' if dtype == 'F32' else 'e'}", data))


def nearest_bf16(value):
    """By exact arithmetic: the closer of the two neighbours, of two equally close ones that with an even last bit."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    low = bits >> 16
    as_float = lambda half: struct.unpack("<f", struct.pack("<I", half << 16))[0]
    below, above = (fractions.Fraction(as_float(half)) for half in (low, low + 1))
    exact = fractions.Fraction(value)
    return as_float(min((abs(exact - below), low & 1, low), (abs(exact - above), low + 1 & 1, low + 1))[2])


def rounded(values, dtype):
    if dtype == "F32":
        return values
    if dtype == "F16":
        return floats("F16", struct.pack(f"<{len(values)}e", *values))
    return [nearest_bf16(value) for value in values]


class Safetensors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory(dir=".")
        cls.folder = pathlib.Path(cls.holder.name)
        subprocess.run([PROGRAM, cls.holder.name], check=True)
        cls.checkpoint = cls.folder / "step-00000007"
        cls.manifest = json.loads((cls.checkpoint / "manifest.json").read_text())
        cls.pieces = {}
        for entry in cls.manifest["files"]:
            assert (cls.checkpoint / entry["name"]).stat().st_size == entry["bytes"]
            cls.pieces.update(read_safetensors(cls.checkpoint / entry["name"])[0])

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def values(self, tensor):
        """Of the master, or of the weight of a frozen tensor, from its pieces."""
        section, elements = "weight" if tensor["frozen"] else "master", 1
        for extent in tensor["shape"]:
            elements *= extent
        values = []
        while len(values) < elements:
            (key,) = (key for key in self.pieces if key.startswith(f"{tensor['name']}|{section}|{len(values)}|"))
            dtype, shape, data = self.pieces[key]
            self.assertEqual(shape, [int(key.split("|")[3]) - len(values)])
            values += floats(dtype, data)
        self.assertEqual(len(values), elements)
        return values

    def test_the_manifest_names_every_piece_of_every_file(self):
        named = {f"{p['tensor']}|{p['section']}|{p['begin']}|{p['end']}" for p in self.manifest["pieces"]}
        self.assertEqual(named, set(self.pieces))
        self.assertEqual(len(named), len(self.manifest["pieces"]))
        self.assertEqual(len(self.manifest["files"]), 3)

    def test_exports_are_the_masters_rounded_to_nearest_even(self):
        for name, dtype in (("fp32", "F32"), ("bf16", "BF16"), ("fp16", "F16")):
            index = json.loads((self.folder / name / "model.safetensors.index.json").read_text())
            files = {file: read_safetensors(self.folder / name / file) for file in set(index["weight_map"].values())}
            self.assertGreater(len(files), 1)
            self.assertEqual(sum(len(tensors) for tensors, _ in files.values()), len(self.manifest["tensors"]))
            for tensor in self.manifest["tensors"]:
                with self.subTest(f"{name} {tensor['name']}"):
                    tensors, metadata = files[index["weight_map"][tensor["name"]]]
                    self.assertEqual(metadata, {"format": "pt"})
                    found_dtype, shape, data = tensors[tensor["name"]]
                    self.assertEqual((found_dtype, shape), (dtype, tensor["shape"]))
                    masters = self.values(tensor)
                    self.assertEqual(floats(dtype, data), rounded(masters, dtype))
                    if torch is not None:
                        kind = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}[dtype]
                        self.assertEqual(floats(dtype, data), torch.tensor(masters).to(kind).float().tolist())


tap.main()
