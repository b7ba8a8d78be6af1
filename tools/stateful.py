"""Runs a network that keeps states step by step beside ONNX Runtime, whose outputs stay bound as its next inputs: are the results alike,
and how many steps a second is that?

    python tools/stateful.py [--steps 128] [--rounds 5] [--threads 2] [--first NAME=N,...] --step NAME=N,... MODEL.onnx ARTIFACT

The artifact comes from `tilescribe compile --state`. Every pass starts empty: one run at the extents of --first (a prompt), if they are
given, then so many at those of --step. The systems take turns; each gets the median of its rounds. Needs numpy and onnxruntime.
"""
import argparse
import ctypes
import json
import pathlib
import statistics
import sys
import time

import numpy as np
import onnxruntime as ort

sys.path.append(str(pathlib.Path(__file__).parent.parent / "tests"))
from extents import TYPES, random, shape_of  # noqa: E402

# of the largest magnitude of an output
TOLERANCE = 1e-3
NUMPY = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64, "bool": np.bool_, "u8": np.uint8, "i8": np.int8}


class Artifact:
    """An artifact, through the C functions that its header declares."""

    def __init__(self, folder, threads):
        folder = pathlib.Path(folder)
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.name = self.manifest["name"]
        self.library = ctypes.CDLL(str((folder / f"lib{self.name}.so").absolute()))
        self.model = ctypes.c_void_p()
        self.call("create", str(folder / "weights.safetensors").encode(), ctypes.c_int(threads), ctypes.byref(self.model))

    def call(self, function, *arguments):
        status = getattr(self.library, f"{self.name}_{function}")(*arguments)
        if status != 0:
            message = self.library[f"{self.name}_error_string"]
            message.restype = ctypes.c_char_p
            sys.exit(f"{function}: {message(status).decode()}")

    def reset(self):
        self.call("reset", self.model)

    def prepare(self, inputs):
        """A function that runs on these inputs, and gives the outputs' arrays."""
        arrays = [np.ascontiguousarray(inputs[port["name"]]) for port in self.manifest["inputs"]]
        if "symbols" in self.manifest:
            shapes = [(ctypes.c_int64 * a.ndim)(*a.shape) for a in arrays]
            pointers = (ctypes.POINTER(ctypes.c_int64) * len(shapes))(*[ctypes.cast(s, ctypes.POINTER(ctypes.c_int64)) for s in shapes])
            self.call("set_extents", self.model, pointers)
        outputs = [np.empty(self.shape(number, port), NUMPY[port["dtype"]]) for number, port in enumerate(self.manifest["outputs"])]
        given = (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
        taken = (ctypes.c_void_p * len(outputs))(*[a.ctypes.data for a in outputs])

        def run():
            self.call("run", self.model, given, taken)
            return outputs
        run.arrays = arrays  # alive as long as it
        return run

    def shape(self, number, port):
        if "symbols" not in self.manifest:
            return port["shape"]
        shape = (ctypes.c_int64 * max(len(port["shape"]), 1))()
        self.call("output_shape", self.model, ctypes.c_size_t(number), shape)
        return list(shape)[:len(port["shape"])]


class Session:
    """The same with ONNX Runtime: what comes out for a state is bound where it goes in."""

    def __init__(self, model, states, threads):
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = threads
        self.session = ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
        self.states = states
        self.about = {argument.name: argument for argument in self.session.get_inputs()}
        self.outputs = [argument.name for argument in self.session.get_outputs()]

    def reset(self, point):
        empty = {**point, **{name: 0 for name in self.lengths()}}
        self.held = {name: ort.OrtValue.ortvalue_from_numpy(np.zeros(shape_of(self.about[name], empty), TYPES[self.about[name].type]))
                     for name in self.states}

    def lengths(self):
        """Dimensions that states alone have."""
        given = {extent for name, about in self.about.items() if name not in self.states for extent in about.shape}
        return {extent for name in self.states for extent in self.about[name].shape if isinstance(extent, str)} - given

    def run(self, inputs):
        binding = self.session.io_binding()
        for name, value in inputs.items():
            binding.bind_cpu_input(name, value)
        for name, value in self.held.items():
            binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            binding.bind_output(name)
        self.session.run_with_iobinding(binding)
        results = dict(zip(self.outputs, binding.get_outputs()))
        for name, output in self.states.items():
            self.held[name] = results.pop(output)
        return results


def points_of(options):
    def read(text):
        return {name: int(value) for name, value in (part.rsplit("=", 1) for part in text.split(","))}
    first = [read(options.first)] if options.first else []
    return first, read(options.step)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--first")
    parser.add_argument("--step", required=True)
    parser.add_argument("model")
    parser.add_argument("artifact")
    options = parser.parse_args()
    ours = Artifact(options.artifact, options.threads)
    states = {state["input"]["name"]: state["output"] for state in ours.manifest["states"]}
    peer = Session(options.model, states, options.threads)
    first, step = points_of(options)
    numbers = np.random.default_rng(1)
    given = [argument for name, argument in peer.about.items() if name not in states]
    runs = [{a.name: random(numbers, TYPES[a.type], shape_of(a, point)) for a in given} for point in first + [step] * options.steps]

    ours.reset()
    peer.reset(step)
    worst = 0
    for inputs in runs:
        found, expected = ours.prepare(inputs)(), peer.run(inputs)
        for port, value in zip(ours.manifest["outputs"], found):
            wanted = expected[port["name"]].numpy()
            worst = max(worst, np.abs(value - wanted).max(initial=0) / np.abs(wanted).max(initial=1e-30))
    print(f"{len(runs)} runs, largest difference of an output, of its largest magnitude: {worst:.1e}")
    if not worst <= TOLERANCE:
        sys.exit("the results differ")

    def of_ours():
        ours.reset()
        for inputs in runs[:len(first)]:
            ours.prepare(inputs)()
        middle = time.perf_counter()
        run = ours.prepare(runs[-1])
        for inputs in runs[len(first):]:
            for array, name in zip(run.arrays, [port["name"] for port in ours.manifest["inputs"]]):
                array[...] = inputs[name]
            run()
        return middle, time.perf_counter()

    def of_peer():
        peer.reset(step)
        for inputs in runs[:len(first)]:
            peer.run(inputs)
        middle = time.perf_counter()
        for inputs in runs[len(first):]:
            peer.run(inputs)
        return middle, time.perf_counter()

    rates, firsts = ([], []), ([], [])
    for _ in range(options.rounds):
        for system, of in enumerate((of_ours, of_peer)):
            start = time.perf_counter()
            middle, end = of()
            rates[system].append(options.steps / (end - middle))
            firsts[system].append((middle - start) * 1e3)
    for name, rate, once in zip(("tilescribe", "onnxruntime"), rates, firsts):
        note = f", first run {statistics.median(once):.2f} ms" if first else ""
        print(f"{name:12} {statistics.median(rate):10.1f} steps/s, {1e6 / statistics.median(rate):10.1f} us each{note}")
    print(f"tilescribe / onnxruntime: {statistics.median(rates[0]) / statistics.median(rates[1]):.2f}")


if __name__ == "__main__":
    main()
