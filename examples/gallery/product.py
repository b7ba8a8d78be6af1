"""What the language model writes for one matrix product, step by step, and why it is fast.

usage: product.py [--rows M] [--depth K] [--columns N] [--trials T] [--picture OUT.png]

Tunes `relu(x @ w)`, M x K times K x N, and shows the decisions of the fastest program, the schedule that they are, and how near it comes to what the
machine can do: a roofline (Williams et al., 2009) with the programs that the model wrote, and as many that were drawn at random.
Needs tilescribe, onnx and matplotlib.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import tempfile

import numpy as np
import onnx
import tilescribe as ts
from onnx import TensorProto, helper, numpy_helper


def product(rows, depth, columns):
    weight = np.random.default_rng(0).standard_normal((depth, columns)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    value = lambda name, width: helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, width])
    graph = helper.make_graph(nodes, "product", [value("x", depth)], [value("y", columns)], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def show(*arguments):
    return subprocess.run([ts.program(), "show", *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=197)
    parser.add_argument("--depth", type=int, default=768)
    parser.add_argument("--columns", type=int, default=768)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--picture", help="draw schedule and roofline to this file")
    options = parser.parse_args()
    # measures the machine's limits, where they are not known yet
    machine = json.loads(subprocess.run([ts.program(), "doctor", "--json"], capture_output=True, text=True).stdout)
    with tempfile.TemporaryDirectory() as scratch:
        path, store = pathlib.Path(scratch) / "product.onnx", pathlib.Path(scratch) / "store.db"
        onnx.save(product(options.rows, options.depth, options.columns), path)
        (task,) = ts.tune(path, trials=options.trials, store=store).tasks
        print(f"{task.name}: {1e6 * task.best_s:.0f} us, untuned {1e6 * task.untuned_s:.0f} us\n")
        print("what the model wrote:\n" + task.trace)
        decisions = pathlib.Path(scratch) / "decisions.txt"
        decisions.write_text(task.trace)
        schedule = show(f"{path}#0", "--trace", decisions, "--schedule")
        print("as a schedule:\n" + schedule)
        written = programs(path, store)
        # the winner of the finals, which need not have the least time of all
        rank, best = next((at, it) for at, it in enumerate(written, 1) if it["decisions"].split() == task.trace.split())
        print(show(f"{path}#0@{rank}", "--store", store, "--figures"))
        chance = pathlib.Path(scratch) / "chance.db"
        ts.tune(path, trials=options.trials, method="random", store=chance)
        if options.picture:
            draw(best, written, programs(path, chance), machine, schedule, options.picture)


def programs(path, store):
    """The figures of the programs in a store, the fastest first."""
    found = []
    for rank in itertools.count(1):
        try:
            found.append(json.loads(show(f"{path}#0@{rank}", "--store", store, "--figures", "--json").splitlines()[0]))
        except subprocess.CalledProcessError:  # there are no more of them
            break
    return found


def draw(best, written, chance, machine, schedule, path):
    """The schedule; and a roofline for each level of memory: a program is a point for each level that it moves bytes of."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), width_ratios=(1, 1.7))
    left.axis("off")
    left.set_title("the schedule that the model wrote", loc="left", fontsize=10)
    left.text(0, 1, schedule.strip(), family="monospace", fontsize=8, va="top", transform=left.transAxes)
    roofline, flops = machine["roofline"], best["gflops"] * best["best_ns"]
    peak = roofline["peak_gflops"]["all_cores"]
    intensities = np.logspace(-1, 3, 200)
    for number, bandwidth in enumerate(roofline["bandwidths"]):
        name, rate, color = bandwidth["level"], bandwidth["gb_per_s"]["all_cores"], f"C{number}"
        right.plot(intensities, np.minimum(peak, rate * intensities), color=color, label=f"{name.capitalize()}, {rate:.0f} GB/s")
        for programs, marker, size in ((chance, "x", 18), (written, "o", 14), ([best], "*", 150)):
            moving = [it for it in programs if moved(it, name)]
            intensity = [flops / moved(it, name) for it in moving]
            right.scatter(intensity, [it["gflops"] for it in moving], color=color, marker=marker, s=size, zorder=3)
    right.set(xscale="log", yscale="log", xlabel="flops for each byte that is moved from the level", ylabel="GFLOP/s")
    right.set_ylim(5, 2 * peak)
    title = f"star: {best['gflops']:.0f} GFLOP/s, {best['of_peak']:.0%} of the peak; dots: written by the model; crosses: drawn at random"
    right.set_title(title, loc="left", fontsize=10)
    right.grid(alpha=0.3)
    right.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def moved(program, level):
    """Bytes that a program moves from a level, of all its cores."""
    found = [it["moved"] for it in program["figures"]["traffic"] if it["level"] == level]
    return sum(it["read_bytes"] + it["written_bytes"] for it in found)


if __name__ == "__main__":
    main()
