#!/usr/bin/env python3
"""Runs the node tests of the installed onnx package through our import and evaluator.

usage: onnx_nodes.py [--compiled] [TEXT]

--compiled: through untuned artifacts, compiled for this machine and run
TEXT: only tests with this in their name

Prints a table of what passed, what is unsupported and what is wrong, and exits
with 1 if anything is wrong or fewer tests than before passed, with 3 if the
package is not installed.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

# Inputs that decide about shapes: a compiler of static shapes needs them as constants, while the tests feed
# them.
PARAMETERS = {
    "ConstantOfShape": [0], "CumSum": [1], "CumProd": [1], "Expand": [1], "OneHot": [1], "Pad": [1, 3], "Range": [0, 1, 2],
    "ReduceL1": [1], "ReduceL2": [1], "ReduceLogSum": [1], "ReduceLogSumExp": [1], "ReduceMax": [1], "ReduceMean": [1],
    "ReduceMin": [1], "ReduceProd": [1], "ReduceSum": [1], "ReduceSumSquare": [1], "Reshape": [1], "Resize": [1, 2, 3],
    "Upsample": [1], "Slice": [1, 2, 3, 4], "Split": [1], "Squeeze": [1], "Tile": [1], "Trilu": [1], "Unsqueeze": [1],
}


# How many tests pass, by version of the package.
PASSED = {"1.22.0": 920}


def with_constants(case, target, onnx):
    """Copies a test, with the inputs that decide about shapes turned into initialisers."""
    model = onnx.load(case / "model.onnx")
    graph = model.graph
    names = {node.input[i] for node in graph.node for i in PARAMETERS.get(node.op_type, []) if i < len(node.input)}
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
            if (case / "model.onnx").is_file():
                with_constants(case, pathlib.Path(folder) / case.name, onnx)
        command += [folder] + ["--compiled"] * options.compiled
        command += ["--only", options.text] if options.text else ["--at-least", str(PASSED.get(onnx.__version__, 1))]
        return subprocess.run(command, cwd=pathlib.Path(__file__).resolve().parent.parent).returncode


if __name__ == "__main__":
    sys.exit(main())
