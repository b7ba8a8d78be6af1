"""Times one artifact at several extents beside ONNX Runtime and OpenVINO in f32, which are given the same network once, too.

    python tools/run_time_extents.py [--tilescribe PATH] [--threads 2] [--rounds 5] [--seconds 0.3] MODEL.onnx ARTIFACT POINT...

A point is NAME=N,NAME=N. Systems take turns; each gets the median of its rounds' least times. Milliseconds, and the faster peer's
time divided by ours; the last line is the geometric mean. Needs numpy, onnxruntime and openvino. Inputs: floats between -1 and 1,
integers 0 or 1. Outputs of all are compared first.
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnxruntime as ort
import openvino as ov

sys.path.append(str(pathlib.Path(__file__).parent.parent / "tests"))
from extents import TYPES, random, shape_of  # noqa: E402

# of the largest magnitude of an output
TOLERANCE = 1e-3


def least_ms(run, seconds):
    run()
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def check(options, inputs, outputs, expected, scratch):
    command = [options.tilescribe, "run", options.artifact, "--threads", str(options.threads), "--output-dir", scratch / "out"]
    for number, (name, value) in enumerate(inputs.items()):
        np.save(scratch / f"{number}.npy", value)
        command += ["--input", f"{name}={scratch / f'{number}.npy'}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for name, wanted in zip(outputs, expected):
        found = np.load(scratch / "out" / f"{name}.npy")
        if np.abs(found - wanted).max(initial=0) > TOLERANCE * np.abs(wanted).max(initial=1e-30):
            sys.exit(f"{name} differs from ONNX Runtime's")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tilescribe", default="target/release/tilescribe")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("model")
    parser.add_argument("artifact")
    parser.add_argument("points", nargs="+")
    options = parser.parse_args()
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = options.threads
    session = ort.InferenceSession(options.model, settings, providers=["CPUExecutionProvider"])
    compiled = ov.Core().compile_model(options.model, "CPU", {
        "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": options.threads, "PERFORMANCE_HINT": "LATENCY"})
    request = compiled.create_infer_request()
    ratios = []
    for text in options.points:
        point = {name: int(value) for name, value in (part.rsplit("=", 1) for part in text.split(","))}
        numbers = np.random.default_rng(1)
        inputs = {a.name: random(numbers, TYPES[a.type], shape_of(a, point)) for a in session.get_inputs()}
        names = [argument.name for argument in session.get_outputs()]
        with tempfile.TemporaryDirectory() as scratch:
            check(options, inputs, names, session.run(None, inputs), pathlib.Path(scratch))
        for port in compiled.inputs:
            request.set_tensor(port, ov.Tensor(inputs[next(iter(port.get_names() & inputs.keys()))]))
        bench = [options.tilescribe, "bench", options.artifact, "--at", text, "--threads", str(options.threads), "--seconds",
                 str(options.seconds)]
        systems = {
            "onnxruntime": lambda: least_ms(lambda: session.run(None, inputs), options.seconds),
            "openvino": lambda: least_ms(request.infer, options.seconds),
            "tilescribe": lambda: json.loads(subprocess.run(bench, capture_output=True, check=True).stdout.splitlines()[-1])["min_ms"],
        }
        times = {name: [] for name in systems}
        for _ in range(options.rounds):
            for name, run in systems.items():
                times[name].append(run())
        ms = {name: statistics.median(values) for name, values in times.items()}
        ratios.append(min(ms["onnxruntime"], ms["openvino"]) / ms["tilescribe"])
        print(f"{pathlib.Path(options.model).stem} {text}: " + "  ".join(f"{n} {m:.3f}" for n, m in ms.items()) + f"  x{ratios[-1]:.2f}",
              flush=True)
    print(f"geometric mean x{statistics.geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main()
