#!/usr/bin/env python3
"""Compiles networks with Tilescribe, runs them, and compares the outputs with ONNX Runtime.

usage: networks.py [--make] [--trials-per-task N] [--method M] [--keep DIR] FOLDER [NAME ...]

Every FOLDER/NAME.onnx (no name: all; `light` as FOLDER: the nine light networks that the onnx package brings
along; `random`: those of random_networks.py) is compiled by `target/release/tilescribe compile`, run on random
inputs, and has to give what ONNX Runtime gives, within 1e-3 of each output's largest magnitude. An output of a
softmax is compared before it: the weights of the light networks are all alike, and so are their 1000 logits, up
to their rounding at 1e10, of which a softmax makes any choice. Integer inputs are ids in range(1000). With
--make, two small networks of PyTorch modules are exported into FOLDER first (needs torch). Needs numpy, onnx and
onnxruntime.

Exit code: 0 if all agree, 1 if one does not.
"""
import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime

import random_networks

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = ROOT / "target" / "release" / "tilescribe"
TOLERANCE = 1e-3
INTEGER_IDS = 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", help="networks in the folder; none: all of them")
    parser.add_argument("--make", action="store_true", help="export the small networks into the folder first")
    parser.add_argument("--trials-per-task", type=int, default=2)
    parser.add_argument("--method", default="lm", help="who writes the schedules: lm, random, evolution")
    parser.add_argument("--keep", type=pathlib.Path, help="keep the compiled networks in this folder")
    options = parser.parse_args()
    if options.folder == pathlib.Path("light"):
        options.folder = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    if options.folder == pathlib.Path("random"):
        made = tempfile.TemporaryDirectory()
        options.folder = pathlib.Path(made.name)
        random_networks.make(options.folder)
    if options.make:
        make(options.folder)
    paths = [options.folder / f"{name}.onnx" for name in options.names] or sorted(options.folder.glob("*.onnx"))
    if not paths:
        parser.error(f"no .onnx files in {options.folder}")
    print(f"{'network':<24} {'tasks':>5} {'difference':>10} {'seconds':>8} {'peak MB':>8}")
    failed = False
    for path in paths:
        with tempfile.TemporaryDirectory() as scratch:
            work = options.keep / path.stem if options.keep else pathlib.Path(scratch)
            work.mkdir(parents=True, exist_ok=True)
            start = time.monotonic()
            try:
                tasks, difference = check(path, work, options)
            except (subprocess.CalledProcessError, ValueError) as error:
                detail = getattr(error, "stderr", None) or str(error)
                print(f"{path.stem:<24} FAILED: {detail.strip().splitlines()[-1]}")
                failed = True
                continue
            agrees = difference <= TOLERANCE
            failed |= not agrees
            # The high-water mark of all children so far: of this network where it is the largest yet.
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            seconds = time.monotonic() - start
            print(f"{path.stem:<24} {tasks:>5} {difference:>10.2e} {seconds:>8.1f} {peak:>8.0f}{'' if agrees else '  MISMATCH'}")
    sys.exit(1 if failed else 0)


def check(path, work, options):
    """Returns the number of tasks and the largest relative difference of any output."""
    path = before_softmax(path, work)
    compiled = work / "compiled"
    run([BINARY, "compile", path, "-o", compiled, "--trials-per-task", str(options.trials_per_task), "--method", options.method])
    listing = run([BINARY, "tasks", path, "--json"])
    inputs = random_inputs(path)
    arguments = []
    for number, (name, array) in enumerate(inputs.items()):
        file = work / f"input{number}.npy"
        np.save(file, array)
        arguments += ["--input", f"{name}={file}"]
    outputs = work / "outputs"
    run([BINARY, "run", compiled, *arguments, "--output-dir", outputs])
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    worst = 0.0
    files = json.loads((compiled / "manifest.json").read_text())["output_files"]
    for name, expected in zip(names, session.run(names, inputs)):
        actual = np.load(outputs / files[name])
        if actual.shape != expected.shape:
            raise ValueError(f"output {name} has the shape {actual.shape}, not {expected.shape}")
        worst = max(worst, relative_difference(actual, expected))
    return task_count(listing), worst


def before_softmax(path, work):
    """The network; where an output of it is a softmax, a copy in `work` that has the logits in its place."""
    model = onnx.load(path)
    read = {name for node in model.graph.node for name in node.input}
    last = [node for node in model.graph.node if node.output and node.output[0] not in read]
    softmax = {node.output[0]: node for node in last if node.op_type == "Softmax"}
    replaced = [output for output in model.graph.output if output.name in softmax]
    if not replaced:
        return path
    for output in replaced:
        node = softmax[output.name]
        model.graph.node.remove(node)
        output.name = node.input[0]
    copy = work / path.name
    onnx.save(model, copy)
    return copy


def relative_difference(actual, expected):
    if not np.isfinite(actual).all():
        return float("inf")
    largest = max(float(np.abs(expected).max()), 1e-30)
    return float(np.abs(actual.astype(np.float64) - expected).max()) / largest


def task_count(listing):
    parsed = [json.loads(line) for line in listing.strip().splitlines() if line.startswith(("{", "["))]
    tasks = parsed[0].get("tasks", parsed) if len(parsed) == 1 and isinstance(parsed[0], dict) else parsed
    return len(tasks[0]) if len(tasks) == 1 and isinstance(tasks[0], list) else len(tasks)


def random_inputs(path):
    model = onnx.load(path, load_external_data=False)
    constants = {tensor.name for tensor in model.graph.initializer}
    random = np.random.default_rng(0)
    inputs = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        shape = [dim.dim_value or 1 for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if np.issubdtype(dtype, np.integer):
            inputs[value.name] = random.integers(0, INTEGER_IDS, shape).astype(dtype)
        else:
            inputs[value.name] = random.standard_normal(shape).astype(dtype)
    return inputs



def run(command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    return result.stdout


def make(folder):
    """A small convolutional and a small attention network, with everything that fusion has rules for."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
            self.left = nn.Conv2d(16, 16, 3, 1, 1)
            self.right = nn.Conv2d(16, 16, 1)
            self.depthwise = nn.Conv2d(32, 32, 3, 1, 1, groups=32)
            self.head = nn.Linear(32, 10)

        def forward(self, image):
            x = self.stem(image)
            x = torch.cat([torch.relu(self.left(x)) + x, self.right(x)], 1)
            x = nn.functional.silu(self.depthwise(x))
            return torch.softmax(self.head(x.mean((2, 3))), -1)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(INTEGER_IDS, 32)
            self.norm, self.last = nn.LayerNorm(32), nn.LayerNorm(32)
            self.query, self.key, self.value, self.output = (nn.Linear(32, 32) for _ in range(4))
            self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(64, 32)

        def forward(self, ids):
            def heads(x):
                return x.reshape(1, 17, 4, 8).transpose(1, 2)

            x = self.norm(self.embedding(ids))
            q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
            weights = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1)
            x = x + self.output((weights @ v).transpose(1, 2).reshape(1, 17, 32))
            return self.last(x + self.narrow(nn.functional.gelu(self.wide(x))))

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    for name, model, example, inputs in [
        ("small_residual", Residual(), torch.randn(1, 3, 29, 29), ["image"]),
        ("small_attention", Attention(), torch.randint(0, INTEGER_IDS, (1, 17)), ["ids"]),
    ]:
        target = folder / f"{name}.onnx"
        torch.onnx.export(model.eval(), (example,), str(target), input_names=inputs, opset_version=17, dynamo=False)


if __name__ == "__main__":
    main()
