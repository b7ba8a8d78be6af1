"""Compiles networks whose extents are known only at run time, and compares them with ONNX Runtime at several points.

    python tests/extents.py [--tilescribe PATH] [--dim NAME=LOW..HIGH]... MODEL.onnx POINT...

A point is NAME=N,NAME=N. One artifact, and one process for each point, runs all of them. Inputs are random: floats between -1 and 1,
integers 0 or 1. Needs numpy and onnxruntime.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime as ort

TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_,
         "tensor(double)": np.float64, "tensor(float16)": np.float16}
# of the largest magnitude of an output
TOLERANCE = 1e-4


def random(random_numbers, dtype, shape):
    values = random_numbers.uniform(-1, 1, shape)
    return values.astype(dtype) if np.issubdtype(dtype, np.floating) else (values > 0).astype(dtype)


def shape_of(argument, point):
    extent = lambda axis, of: of if isinstance(of, int) else point[of or f"{argument.name}[{axis}]"]
    return [extent(axis, of) for axis, of in enumerate(argument.shape)]


def check(options, session, artifact, text, scratch):
    """The largest difference, as a part of the tolerance; an error as text."""
    point = {name: int(value) for name, value in (part.rsplit("=", 1) for part in text.split(","))}
    numbers = np.random.default_rng(len(text))
    inputs = {a.name: random(numbers, TYPES[a.type], shape_of(a, point)) for a in session.get_inputs()}
    command = [options.tilescribe, "run", artifact, "--threads", "2", "--output-dir", scratch / "out"]
    for number, (name, value) in enumerate(inputs.items()):
        np.save(scratch / f"{number}.npy", value)
        command += ["--input", f"{name}={scratch / f'{number}.npy'}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return f"exit code {done.returncode}: {done.stderr.strip()}"
    worst = 0.0
    for argument, expected in zip(session.get_outputs(), session.run(None, inputs)):
        found = np.load(scratch / "out" / f"{argument.name}.npy")
        if found.shape != expected.shape or found.dtype != expected.dtype:
            return f"{argument.name} is {found.dtype}{found.shape}, not {expected.dtype}{expected.shape}"
        if expected.size > 0:
            largest = np.abs(expected.astype(np.float64)).max()
            difference = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max()
            worst = max(worst, difference / (largest * TOLERANCE + 1e-30))
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tilescribe", default="target/release/tilescribe")
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("model")
    parser.add_argument("points", nargs="+")
    options = parser.parse_args()
    session = ort.InferenceSession(options.model, providers=["CPUExecutionProvider"])
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        artifact = scratch / "net"
        dims = [part for dim in options.dim for part in ("--dim", dim)]
        subprocess.run([options.tilescribe, "compile", options.model, "-o", artifact, "--trials-per-task", "0", *dims], check=True)
        failed = 0
        for point in options.points:
            worst = check(options, session, artifact, point, scratch)
            is_good = not isinstance(worst, str) and worst <= 1
            failed += not is_good
            print(f"{'ok' if is_good else 'FAILED':6} {point}: {worst}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
