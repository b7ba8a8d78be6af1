#!/usr/bin/env python3
"""What short numbers cost in accuracy: networks in bf16 and in 8 bits, by Tilescribe and by others, against ONNX Runtime in f32.

usage: accuracy.py [--quantised FOLDER] [--seeds N] [--dim NAME=N] [--store FILE] [--json OUT] NET.onnx ...

Each network is compiled by `target/release/tilescribe compile --trials-per-task 0` in f32 and in bf16, and so is every file of FOLDER
that is called NET.KIND.onnx (as ONNX Runtime's quantisation writes it), as it is. OpenVINO runs the network in bf16, where it is
installed, and ONNX Runtime the quantised ones. Inputs are random: images normal, whole numbers below 1000, masks 1.

Prints a table: by network and contestant the error, that is the L2 norm of what all outputs differ by from those of ONNX Runtime in
f32, divided by the norm of these; the mean and the worst over the seeds. Of classifiers (one output of a row of at least 100 numbers)
also the share of seeds with the same greatest class; and, so that this can be judged, how far that class is ahead of the next, as a
multiple of the error of an element: where it is not ahead, as in networks with random weights, classes change by chance. A line of
JSON for each goes to OUT. Needs numpy, onnx and onnxruntime.
"""
import argparse
import importlib.util
import json
import pathlib
import re
import subprocess
import tempfile

import numpy as np
import onnx
import onnxruntime

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = ROOT / "target" / "release" / "tilescribe"
# Whole numbers of inputs are below this: words of any vocabulary.
WORDS = 1000
# A row of so many numbers ranks classes.
CLASSES = 100


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", type=pathlib.Path, metavar="NET.onnx")
    parser.add_argument("--quantised", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--store", metavar="FILE")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT")
    options = parser.parse_args()
    dims = {name: int(extent) for name, _, extent in (given.rpartition("=") for given in options.dim)}
    rows = []
    print(f"{'network':<24} {'contestant':<24} {'error':>9} {'worst':>9} {'top-1':>6} {'ahead':>6}")
    for network in options.networks:
        for row in measured(network, quantised(network, options.quantised), dims, options):
            rows.append(row)
            print(text(row), flush=True)
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


def quantised(network, folder):
    """By kind, what was made of a network."""
    files = sorted(folder.glob(f"{network.stem}.*.onnx")) if folder else []
    return {file.stem.removeprefix(f"{network.stem}."): file for file in files}


def measured(network, short, dims, options):
    feeds = [inputs(network, dims, seed) for seed in range(options.seeds)]
    expected = by_onnxruntime(network, feeds)
    contestants = [
        ("Tilescribe, f32", lambda: by_tilescribe(network, feeds, "f32", options)),
        ("Tilescribe, bf16", lambda: by_tilescribe(network, feeds, "bf16", options)),
    ]
    if importlib.util.find_spec("openvino"):
        contestants.append(("OpenVINO, bf16", lambda: by_openvino(network, feeds)))
    for kind, file in short.items():
        contestants.append((f"Tilescribe, {kind}", lambda file=file: by_tilescribe(file, feeds, "f32", options)))
        contestants.append((f"ONNX Runtime, {kind}", lambda file=file: by_onnxruntime(file, feeds)))
    for name, run in contestants:
        row = {"network": network.stem, "contestant": name, "seeds": options.seeds}
        try:
            yield row | compared(expected, run())
        except Exception as error:  # one that fails says so, and the others are measured
            yield row | {"failed": " ".join(str(error).split())}


def compared(expected, found):
    """Errors over the seeds; each side is a list of outputs for each seed."""
    flat = lambda outputs: np.concatenate([np.asarray(output, np.float64).ravel() for output in outputs])
    wanted, got = np.array([flat(it) for it in expected]), np.array([flat(it) for it in found])
    lengths = np.linalg.norm(wanted, axis=1)
    if not lengths.all():
        raise ValueError("all outputs are 0: there is nothing to be relative to")
    errors = np.linalg.norm(got - wanted, axis=1) / lengths
    row = {"error": errors.mean(), "worst": errors.max()}
    if len(expected[0]) == 1 and expected[0][0].ndim == 2 and expected[0][0].shape[1] >= CLASSES:
        classes = expected[0][0].shape[1]
        wanted, got = wanted.reshape(-1, classes), got.reshape(-1, classes)
        greatest = np.sort(wanted, axis=1)
        ahead, noise = greatest[:, -1] - greatest[:, -2], np.sqrt(np.mean((got - wanted) ** 2, axis=1))
        row["top1"] = np.mean(wanted.argmax(axis=1) == got.argmax(axis=1))
        row["ahead"] = np.median(ahead / np.maximum(noise, 1e-300))
    return {name: float(value) for name, value in row.items()}


def text(row):
    start = f"{row['network']:<24} {row['contestant']:<24}"
    if "failed" in row:
        return f"{start} failed: {row['failed'][-200:]}"
    classes = f" {row['top1']:>6.0%} {min(row['ahead'], 9999):>6.1f}" if "top1" in row else ""
    return f"{start} {row['error']:>9.1e} {row['worst']:>9.1e}{classes}"


def inputs(network, dims, seed):
    random = np.random.default_rng(seed)
    session = onnx.load(network, load_external_data=False).graph
    constants = {tensor.name for tensor in session.initializer}
    arrays = {}
    for value in session.input:
        if value.name not in constants:
            about = value.type.tensor_type
            shape = [extent(dim, dims) for dim in about.shape.dim]
            arrays[value.name] = array(random, value.name, shape, onnx.helper.tensor_dtype_to_np_dtype(about.elem_type))
    return arrays


def extent(dim, dims):
    if dim.dim_param and dim.dim_param not in dims:
        raise SystemExit(f"give an extent: --dim {dim.dim_param}=N")
    return dims[dim.dim_param] if dim.dim_param else dim.dim_value


def array(random, name, shape, dtype):
    if np.issubdtype(dtype, np.floating):
        return random.standard_normal(shape).astype(dtype)
    if "mask" in name:
        return np.ones(shape, dtype)
    return (random.integers(0, WORDS, shape) if "type" not in name else np.zeros(shape)).astype(dtype)


def by_onnxruntime(network, feeds):
    session = onnxruntime.InferenceSession(network, providers=["CPUExecutionProvider"])
    return [session.run(None, feed) for feed in feeds]


def by_openvino(network, feeds):
    import openvino

    properties = {"INFERENCE_PRECISION_HINT": "bf16", "EXECUTION_MODE_HINT": "PERFORMANCE"}
    model = openvino.Core().compile_model(network, "CPU", properties)
    # results belong to the model and change with its next run
    return [[np.array(output) for output in model(feed).values()] for feed in feeds]


def by_tilescribe(network, feeds, precision, options):
    with tempfile.TemporaryDirectory(prefix="accuracy-") as folder:
        folder = pathlib.Path(folder)
        arguments = [f"--dim={given}" for given in options.dim] + ([f"--store={options.store}"] if options.store else [])
        artifact = folder / "net"
        command(["compile", network, "-o", artifact, "--trials-per-task", "0", "--precision", precision, *arguments])
        outputs = json.loads((artifact / "manifest.json").read_text())["outputs"]
        return [run(artifact, feed, [port["name"] for port in outputs], folder) for feed in feeds]


def run(artifact, feed, outputs, folder):
    for number, value in enumerate(feed.values()):
        np.save(folder / f"{number}.npy", value)
    given = [f"--input={name}={folder / f'{number}.npy'}" for number, name in enumerate(feed)]
    command(["run", artifact, *given, "--output-dir", folder])
    files = json.loads((artifact / "manifest.json").read_text())["output_files"]
    return [np.load(folder / files[name]) for name in outputs]


def command(arguments):
    found = subprocess.run([BINARY, *arguments], capture_output=True, text=True)
    if found.returncode != 0:
        raise RuntimeError(re.sub(r"^error: ", "", found.stderr.strip()))


if __name__ == "__main__":
    main()
