#!/usr/bin/env python3
"""Times the square product from 64 to 4096 on Tilescribe and its peers, and draws GFLOP/s against size, with
the machine's measured peak.

usage: scaling.py [--trials 64] [--threads 2] [--rounds 3] [--seconds 0.3] [--binary target/release/tilescribe] [--sizes N ...] OUT.svg

Each size is tuned with a store of its own first. The contestants take turns; what counts is the fastest run
of each. The peak is what `tilescribe doctor` has measured; it is measured first, if it was not yet. Prints
the table that the picture shows, and writes it beside the picture as OUT.json. Needs numpy and onnx; ONNX
Runtime and OpenVINO are timed where they are installed.
"""
import argparse
import importlib.util
import json
import math
import pathlib
import subprocess
import tempfile
import time

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

SIZES = [64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096]
COLOURS = {"Tilescribe": "#c0392b", "ONNX Runtime": "#2471a3", "OpenVINO": "#7d3c98"}


def write_product(size, path):
    """y = x w, with w constant, as in a dense layer."""
    weights = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, size])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", [value("x")], [value("y")], [numpy_helper.from_array(weights, "w")])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def onnx_runtime(path, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    size = session.get_inputs()[0].shape[0]
    binding = session.io_binding()
    x = np.random.default_rng(1).standard_normal((size, size)).astype(np.float32)
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x))
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_shape_and_type([size, size], np.float32))
    return lambda: session.run_with_iobinding(binding)


def openvino(path, threads):
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    model = openvino.Core().compile_model(str(path), "CPU", settings)
    request = model.create_infer_request()
    shape = list(model.inputs[0].shape)
    request.set_input_tensor(openvino.Tensor(np.random.default_rng(1).standard_normal(shape).astype(np.float32)))
    return request.infer


PEERS = {"ONNX Runtime": ("onnxruntime", onnx_runtime), "OpenVINO": ("openvino", openvino)}


def fastest_ms(run, seconds):
    run()
    best, end = math.inf, time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, 1e3 * (now - start))
        if now >= end:
            return best


def command(args, *words):
    """The last line of what a command prints, as JSON."""
    done = subprocess.run([args.binary, *map(str, words)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(size, args, folder):
    """GFLOP/s by contestant."""
    path, store = folder / f"product_{size}.onnx", folder / f"{size}.db"
    write_product(size, path)
    tuning = ["--threads", args.threads, "--trials-per-task", args.trials, "--store", store]
    subprocess.run([args.binary, "tune", path, *map(str, tuning)], check=True, capture_output=True)
    peers = {name: make(path, args.threads) for name, (module, make) in PEERS.items() if importlib.util.find_spec(module)}
    times = dict.fromkeys(["Tilescribe", *peers], math.inf)
    for _ in range(args.rounds):
        for name, run in peers.items():
            times[name] = min(times[name], fastest_ms(run, args.seconds))
        ours = command(args, "bench", path, "--threads", args.threads, "--seconds", args.seconds, "--store", store)
        times["Tilescribe"] = min(times["Tilescribe"], ours["min_ms"])
    return {name: 2e-6 * size**3 / ms for name, ms in times.items()}


def picture(rows, peak):
    """An SVG: sizes along x, each as far from the next as its logarithm says; GFLOP/s along y."""
    width, height, left, right, top, bottom = 720, 400, 60, 20, 30, 50
    highest = 1.05 * max([peak or 0] + [speed for _, speeds in rows for speed in speeds.values()])
    logs = [math.log2(size) for size, _ in rows]
    span = max(logs[-1] - logs[0], 1e-9)
    x = lambda size: left + (math.log2(size) - logs[0]) / span * (width - left - right)
    y = lambda speed: height - bottom - speed / highest * (height - top - bottom)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11" viewBox="0 0 {width} {height}" '
             f'width="{width}" height="{height}" role="img">', f'<rect width="{width}" height="{height}" fill="white"/>']
    step = 10 ** math.floor(math.log10(highest)) / 2
    for line in range(int(highest / step) + 1):
        at = y(line * step)
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e5e5e5"/>'
                     f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{line * step:g}</text>')
    for size, _ in rows:
        parts.append(f'<text x="{x(size):.1f}" y="{height - bottom + 16}" text-anchor="middle">{size}</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 12}" text-anchor="middle">n, of the product of two n × n matrices</text>'
                 f'<text x="{left}" y="{top - 12}">GFLOP/s, f32</text>')
    if peak:
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(peak):.1f}" y2="{y(peak):.1f}" stroke="#555" '
                     f'stroke-dasharray="5 4"/><text x="{left + 6}" y="{y(peak) - 5:.1f}" fill="#555">measured peak</text>')
    for number, name in enumerate(name for name in COLOURS if name in rows[0][1]):
        points = " ".join(f"{x(size):.1f},{y(speeds[name]):.1f}" for size, speeds in rows)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>'
                     f'<text x="{width - right - 330 + 115 * number}" y="{top - 12}" fill="{COLOURS[name]}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--binary", default="target/release/tilescribe")
    args = parser.parse_args()

    rates = command(args, "doctor", "--json")["roofline"].get("peak_gflops")  # none where it could not be measured
    peak = rates and rates["all_cores" if args.threads > 1 else "one_core"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sorted(args.sizes):
            speeds = measure(size, args, pathlib.Path(folder))
            rows.append((size, speeds))
            print(f"{size:5}", *(f"{name} {speed:7.1f}" for name, speed in speeds.items()), flush=True)
    args.out.write_text(picture(rows, peak))
    figures = {"peak_gflops": peak, "gflops": {size: speeds for size, speeds in rows}}
    args.out.with_suffix(".json").write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
