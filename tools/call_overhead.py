#!/usr/bin/env python3
"""Times calls of a network of a microsecond through Python, beside onnxruntime's; shows that calls run side by side.

usage: call_overhead.py [--calls N] [--rounds K]

The network is relu(x @ w) with x of 1 x 16, and another one with an open batch. Rounds take turns, each system gets the least of its rounds'
means: what a call costs where nothing disturbs it. Then a larger network is called by one and by two threads. Needs the packages tilescribe
and tilescribe-runtime, numpy, onnx and onnxruntime.
"""
import argparse
import tempfile
import threading
import time

import numpy as np
import onnx
import onnxruntime
import tilescribe as ts
from onnx import TensorProto, helper, numpy_helper


def product(rows, width, depth):
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array((rng.standard_normal((width, width)) / width**0.5).astype(np.float32), f"w{i}") for i in range(depth)]
    nodes = [helper.make_node("MatMul", [f"v{i}" if i else "x", f"w{i}"], [f"v{i + 1}"]) for i in range(depth)]
    nodes.append(helper.make_node("Relu", [f"v{depth}"], ["y"]))
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, width])
    graph = helper.make_graph(nodes, "product", [value("x")], [value("y")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def least(calls, rounds, functions):
    """Microseconds of a call, by function: the least of the rounds' means."""
    found = {name: float("inf") for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            function()
            start = time.perf_counter()
            for _ in range(calls):
                function()
            found[name] = min(found[name], (time.perf_counter() - start) / calls * 1e6)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for rows in (1, "batch"):
            model = product(rows, 16, 1)
            net = ts.compile(model, f"{scratch}/net_{rows}", trials=0, progress=False)
            session_options = onnxruntime.SessionOptions()
            session = onnxruntime.InferenceSession(model.SerializeToString(), session_options)
            x, y = np.random.default_rng(1).standard_normal((1, 16)).astype(np.float32), np.empty((1, 16), np.float32)
            assert np.abs(net(x) - session.run(None, {"x": x})[0]).max() < 1e-5
            binding = session.io_binding()
            binding.bind_cpu_input("x", x)
            binding.bind_output("y")
            found = least(options.calls, options.rounds, {
                "tilescribe net(x)": lambda: net(x),
                "tilescribe net(x, out=y)": lambda: net(x, out=y),
                "onnxruntime run": lambda: session.run(None, {"x": x}),
                "onnxruntime run_with_iobinding": lambda: session.run_with_iobinding(binding),
            })  # fmt: skip
            print(f"relu(x @ w), x of {rows} x 16:", ", ".join(f"{name} {us:.2f} us" for name, us in found.items()))
            ours, best = found["tilescribe net(x)"], found["tilescribe net(x, out=y)"]
            theirs, bound = found["onnxruntime run"], found["onnxruntime run_with_iobinding"]
            print(f"  of onnxruntime's: {ours / theirs:.2f}, with arrays that are there: {best / bound:.2f}")
        compare_threads(f"{scratch}/large", options)


def compare_threads(folder, options):
    ts.compile(product(128, 512, 12), folder, trials=0, progress=False)
    net = ts.load(folder, threads=1)
    x = np.random.default_rng(1).standard_normal((128, 512)).astype(np.float32)
    calls = 40

    def several():
        for _ in range(calls):
            net(x)

    def rate(count):
        threads = [threading.Thread(target=several) for _ in range(count)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return count * calls / (time.perf_counter() - start)

    several()
    one = max(rate(1) for _ in range(5))
    two = max(rate(2) for _ in range(5))
    print(f"calls a second: one thread {one:.0f}, two threads {two:.0f}: {two / one:.2f} times")


if __name__ == "__main__":
    main()
