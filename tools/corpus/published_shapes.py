#!/usr/bin/env python3
"""Tasks of the shapes that oneDNN's benchdnn and DeepBench publish: a test set, and further tasks to train on.

usage: published_shapes.py choose ONEDNN DEEPBENCH TILESCRIBE [--corpus corpus] [--out tools/corpus]
       published_shapes.py networks TABLE OUT_DIR
       published_shapes.py tasks TABLE TILESCRIBE OUT

`choose` reads the lists of both repositories (clones of them; see published_lists.py, which says by what
rule) and writes two tables, preregistered.csv and published.csv (for training), a line for each shape. Left
out is a test whose kind and sizes are those of a task that CORPUS holds or excludes, whatever is fused
behind it, and what would be trained on with kind and sizes of a test or of an excluded task; so both are
made anew with the corpus of the commit before theirs only. Nothing is compiled or timed for it.

`networks` makes an ONNX network of each line, one operator with what is fused behind it, weights constant
and random. `tasks` prints their tasks as `tilescribe tasks` does: to a file OUT.txt of numbered tasks, as
`tilescribe compare --workloads` reads it, or to a folder OUT, a file a network, for select_workloads.py.

Columns: sizes of images, kernels, strides, padding before and after, and dilation along each axis, joined
by x; the size of a product is its rows. Needs numpy and onnx.
"""
import argparse
import csv
import pathlib
import subprocess
import tempfile
import zlib

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save

import published_lists as lists
from select_workloads import excluded_by, kept, sizes_of

COLUMNS = ["name", "source", "kind", "batch", "groups", "inputs", "outputs", "size", "kernel", "stride", "before",
           "after", "dilation", "ending"]
EXTENTS = {"size", "kernel", "stride", "before", "after", "dilation"}
SOURCES = [f"# Shapes of {name} at {commit}, {root}, Apache-2.0\n"
           for name, commit, root in [lists.ONEDNN, lists.DEEPBENCH]]
OPSET = 18


class Graph:
    """Collects nodes of one graph; every method returns the name of its result."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.weights, self.inputs = [], [], []

    def input(self, *shape):
        self.inputs.append(helper.make_tensor_value_info(f"x{len(self.inputs)}", TensorProto.FLOAT, shape))
        return self.inputs[-1].name

    def weight(self, *shape):
        values = self.rng.standard_normal(shape, np.float32) / np.float32(max(1, np.prod(shape[1:]))) ** 0.5
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def op(self, kind, *inputs, **attributes):
        self.nodes.append(helper.make_node(kind, list(inputs), [f"t{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def model(self, name, result, shape):
        output = helper.make_tensor_value_info(result, TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, name, self.inputs, [output], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = 9
        checker.check_model(model)
        return model


def network(row):
    """The ONNX model of a line of a table."""
    graph = Graph(zlib.crc32(row["name"].encode()))
    batch, inputs, outputs, ending = row["batch"], row["inputs"], row["outputs"], row["ending"].split()
    kind, size = row["kind"], row["size"]
    bias = [graph.weight(outputs)] if "bias" in ending else []
    if kind == "batched product":
        shape = (batch, *size, outputs)
        result = graph.op("MatMul", graph.input(batch, *size, inputs), graph.input(batch, inputs, outputs))
    elif kind == "product":
        shape = (*size, outputs)
        result = graph.op("MatMul", graph.input(*size, inputs), graph.weight(inputs, outputs))
        result = graph.op("Add", result, *bias) if bias else result
    elif kind == "inner product":
        shape = (*size, outputs)
        result = graph.op("Gemm", graph.input(*size, inputs), graph.weight(outputs, inputs), *bias, transB=1)
    else:
        shape = (batch, outputs, *lists.results(row))
        window = {"strides": row["stride"], "pads": row["before"] + row["after"], "kernel_shape": row["kernel"]}
        image = graph.input(batch, inputs, *size)
        if any(dilation > 1 for dilation in row["dilation"]):
            window["dilations"] = row["dilation"]
        if kind == "pooling":
            result = graph.op("MaxPool" if "max" in ending else "AveragePool", image, **window)
        else:
            weight = graph.weight(outputs, inputs // row["groups"], *row["kernel"])
            result = graph.op("Conv", image, weight, *bias, group=row["groups"], **window)
    if "relu" in ending:
        result = graph.op("Relu", result)
    if "leaky" in ending:
        result = graph.op("LeakyRelu", result, alpha=0.1)
    return graph.model(row["name"], result, shape)


def read_table(path):
    """The lines of a table, numbers as numbers."""
    rows = list(csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#")))
    for row in rows:
        for column in EXTENTS:
            row[column] = [int(extent) for extent in row[column].split("x") if extent]
        for column in ["batch", "groups", "inputs", "outputs"]:
            row[column] = int(row[column])
    return rows


def write_table(path, rows):
    """A table with its sources at the top."""
    with path.open("w", newline="") as file:
        file.writelines(SOURCES)
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({c: "x".join(map(str, row.get(c, []))) if c in EXTENTS else row[c] for c in COLUMNS})


def printed(tilescribe, row):
    """What `tilescribe tasks` prints for a line of a table."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / f"{row['name']}.onnx"
        save(network(row), path)
        return subprocess.run([tilescribe, "tasks", str(path)], check=True, capture_output=True, text=True).stdout


def only_task(text):
    """(hash, name, Mflop, workload) of a network of a single task, or None."""
    blocks = [block for block in text.strip().split("\n\n") if block]
    if len(blocks) != 1:
        return None
    comment, _, workload = blocks[0].partition("\n")
    _, _, name, _, digest, mflop, _ = comment.split()
    return digest.rstrip(","), name, float(mflop), workload


def left(rows, tilescribe, known, most):
    """The lines whose single task has kind and sizes of none in `known`, which grows by them."""
    remaining, several, there = [], 0, 0
    for row in rows:
        task = only_task(printed(tilescribe, row))
        if task is None or task[2] > most:
            several += 1
        elif sizes_of(task[1]) in known:
            there += 1
        else:
            known.add(sizes_of(task[1]))
            remaining.append(row)
    print(f"{len(rows)} shapes: {there} are there, {several} are several tasks or too large, {len(remaining)} are left")
    return remaining


def choose(args):
    tests, training = lists.choose(args.onednn, args.deepbench)
    excluded = {sizes_of(name) for name in excluded_by(args.corpus / "excluded.txt").values()}
    corpus = {sizes_of(name) for _, name, _ in kept(args.corpus / "workloads")}
    tests = left(tests, args.tilescribe, excluded | corpus, float("inf"))
    write_table(args.out / "preregistered.csv", tests)
    excluded |= {sizes_of(only_task(printed(args.tilescribe, row))[1]) for row in tests}
    training = left(training, args.tilescribe, excluded, lists.TRAINING_MFLOP)
    write_table(args.out / "published.csv", training)


def networks(args):
    args.out.mkdir(parents=True, exist_ok=True)
    for row in read_table(args.table):
        save(network(row), args.out / f"{row['name']}.onnx")


def tasks(args):
    texts = {row["name"]: printed(args.tilescribe, row) for row in read_table(args.table)}
    if args.out.suffix == ".txt":
        blocks = []
        for number, text in enumerate(texts.values()):
            digest, name, _, workload = only_task(text)
            blocks.append(f"# {number} {name} {digest}\n{workload}\n")
        args.out.write_text("\n".join(blocks))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (args.out / f"{name}.txt").write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("choose")
    command.add_argument("onednn", type=pathlib.Path)
    command.add_argument("deepbench", type=pathlib.Path)
    command.add_argument("tilescribe")
    command.add_argument("--corpus", type=pathlib.Path, default=pathlib.Path("corpus"))
    command.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tools/corpus"))
    command.set_defaults(run=choose)
    command = commands.add_parser("networks")
    command.add_argument("table", type=pathlib.Path)
    command.add_argument("out", type=pathlib.Path)
    command.set_defaults(run=networks)
    command = commands.add_parser("tasks")
    command.add_argument("table", type=pathlib.Path)
    command.add_argument("tilescribe")
    command.add_argument("out", type=pathlib.Path)
    command.set_defaults(run=tasks)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
