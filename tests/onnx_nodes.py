#!/usr/bin/env python3
"""Runs the node tests of the installed onnx package through our import and evaluator.

usage: onnx_nodes.py [--compiled] [--update] [TEXT]

--compiled: through untuned artifacts, compiled for this machine and run
--update: writes tests/files/onnx/reasons.txt anew
TEXT: only tests with this in their name

Prints what passed, what is unsupported and what is wrong. reasons.txt holds the
reason for every test that does not pass, for the version of the package in its
first line. Exits with 1 if anything is wrong, if a test does not pass without a
reason, or if one with a reason passes; with 3 if the package is not installed.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# Inputs that decide about shapes, or about which axis is meant: a compiler of static shapes needs them as
# constants, while the tests feed them.
PARAMETERS = {
    "AffineGrid": [1], "BlackmanWindow": [0], "CenterCropPad": [1], "Col2Im": [1, 2], "ConstantOfShape": [0],
    "CumProd": [1], "CumSum": [1], "DFT": [1, 2], "Dropout": [1, 2], "Expand": [1], "HammingWindow": [0], "HannWindow": [0],
    "MelWeightMatrix": [0, 1, 2, 3, 4], "OneHot": [1], "Pad": [1, 3], "Range": [0, 1, 2],
    "ReduceL1": [1], "ReduceL2": [1], "ReduceLogSum": [1], "ReduceLogSumExp": [1], "ReduceMax": [1], "ReduceMean": [1],
    "ReduceMin": [1], "ReduceProd": [1], "ReduceSum": [1], "ReduceSumSquare": [1], "Reshape": [1], "Resize": [1, 2, 3],
    # the number of iterations, and the condition that may end them at once, are the extent of what a loop collects
    "Loop": [0, 1], "MaxUnpool": [2], "TopK": [1],
    "Upsample": [1], "STFT": [1, 3], "Slice": [1, 2, 3, 4], "Split": [1], "Squeeze": [1], "Tile": [1], "Trilu": [1], "Unsqueeze": [1],
}

ROOT = pathlib.Path(__file__).resolve().parent.parent
REASONS = ROOT / "tests/files/onnx/reasons.txt"
# Expect what NumPy's generator draws; the standard leaves it open, and ours draws other numbers. (The package's
# own test runner leaves them out, too.)
DRAWN = re.compile(r"test_bernoulli|test_training_dropout(_default)?(_mask)?$")


def parameters(graph):
    """Values that decide about shapes, and the integers among the inputs that those are computed from."""
    direct = {node.input[i] for node in graph.node for i in PARAMETERS.get(node.op_type, []) if i < len(node.input)}
    needed = set(direct)
    for node in reversed(graph.node):
        # a shape does not depend on the value whose shape it is
        if node.op_type not in ("Shape", "Size") and needed.intersection(node.output):
            needed.update(node.input)
    integers = {value.name for value in graph.input if value.type.tensor_type.elem_type in (6, 7)}
    return direct | (needed & integers)


def with_constants(case, target, onnx):
    """Copies a test, with the inputs that decide about shapes turned into initialisers."""
    model = onnx.load(case / "model.onnx")
    graph = model.graph
    names = parameters(graph)
    data = case / "test_data_set_0"
    kept = []
    (target / "test_data_set_0").mkdir(parents=True)
    for position, value in enumerate(graph.input):
        file = data / f"input_{position}.pb"
        if value.name in names and value.name:
            tensor = onnx.TensorProto.FromString(file.read_bytes())
            tensor.name = value.name
            graph.initializer.append(tensor)
        else:
            if file.exists():
                shutil.copy(file, target / f"test_data_set_0/input_{len(kept)}.pb")
            kept.append(value)
    del graph.input[:]
    graph.input.extend(kept)
    for file in data.glob("output_*.pb"):
        shutil.copy(file, target / "test_data_set_0")
    onnx.save(model, target / "model.onnx")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", nargs="?", default="")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    try:
        import onnx
    except ImportError:
        print("the Python package onnx is not installed: no node test was run (pip install onnx)", file=sys.stderr)
        return 3
    source = pathlib.Path(onnx.__file__).parent / "backend/test/data/node"
    command = ["cargo", "run", "--release", "--quiet", "--example", "onnx_backend_tests", "--"]
    print(f"onnx {onnx.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for case in sorted(source.iterdir()):
            if DRAWN.match(case.name):
                print(f"not run {case.name}: it compares random numbers")
            elif (case / "model.onnx").is_file():
                with_constants(case, pathlib.Path(folder) / case.name, onnx)
        command += [folder] + ["--compiled"] * options.compiled + ["--only", options.text] * bool(options.text)
        version = f"# onnx {onnx.__version__}"
        if options.update or REASONS.read_text().startswith(version + "\n"):
            command += ["--reasons", str(REASONS)] + ["--update", version] * options.update
        else:
            print(f"{REASONS.name} is of another version: no reasons are compared")
        return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
