#!/usr/bin/env python3
"""Holds a compiled network to ONNX Runtime: runs both on the same random inputs, and prints how far apart the
outputs are at most, relative to the largest of ONNX Runtime's.

    python3 check_network.py TILESCRIBE NETWORK.onnx COMPILED

Ends with 1 where that is above 0.01: GPUs round products to TF32.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime

ALLOWED = 0.01


def random_input(value, generator):
    shape = [extent if isinstance(extent, int) else 1 for extent in value.shape]
    if value.type == "tensor(int64)":
        return generator.integers(0, 100, shape)
    return generator.standard_normal(shape).astype(np.float32)


def main():
    program, network, compiled = sys.argv[1:]
    session = onnxruntime.InferenceSession(network, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    inputs = {value.name: random_input(value, generator) for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    expected = dict(zip(names, session.run(names, inputs)))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        words = [program, "run", compiled, "--output-dir", str(folder / "outputs")]
        for number, (name, array) in enumerate(inputs.items()):
            np.save(folder / f"{number}.npy", array)
            words += ["--input", f"{name}={folder / f'{number}.npy'}"]
        ran = subprocess.run(words, capture_output=True, text=True)
        if ran.returncode != 0:
            sys.exit(f"{network}: {(ran.stderr.strip().splitlines() or ['nothing said'])[-1]}")
        worst = 0.0
        for name, wanted in expected.items():
            found = np.load(folder / "outputs" / f"{name}.npy")
            if found.shape != wanted.shape or not np.isfinite(found).all():
                sys.exit(f"{network}: {name} is of shape {found.shape} instead of {wanted.shape}, or not finite")
            worst = max(worst, float(np.abs(found - wanted).max() / np.abs(wanted).max()))
    print(f"at most {worst:.2e} from ONNX Runtime")
    sys.exit(worst > ALLOWED)


if __name__ == "__main__":
    main()
