#!/usr/bin/env python3
"""Imports networks that were changed at random: refused or imported, within a time and a memory.

usage: hostile_networks.py [--count N] [--first K] [--seed S] [--keep DIR]

The networks are those of tests/files/graph and of tests/control_flow.py, and the node tests of the installed
onnx package. What is changed is their structure: nodes put into branches, loops, scans and functions, graphs
put into one another and into themselves, cycles through them, inputs and outputs dropped or doubled, names of
other scopes, extents that are open, or cannot be, and ranges for those that cannot be. What is done to network
K depends on the seed and K alone, and on the packages' versions.

Networks go to tools/import_models.rs, which may use 3 GiB of address space and must answer each within 20 s. A
panic, a signal, and a program that is not valid are failures. Prints a line for each failure, and what became
of all. Exits with 1 if something failed, with 3 if a package is missing; networks that failed are kept in DIR.
"""
import argparse
import collections
import pathlib
import random
import re
import resource
import select
import struct
import subprocess
import sys
import tempfile

try:
    import onnx
    from onnx import AttributeProto, TensorProto, helper
    from google.protobuf.message import DecodeError

    import control_flow
except ImportError as missing:
    print(f"{missing}: nothing was imported (pip install onnx onnxruntime)", file=sys.stderr)
    sys.exit(3)

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEMORY_BYTES = 3 << 30
PATIENCE_SECONDS = 20
# A program is begun anew after so many networks.
BATCH = 2000
# What often is a limit somewhere.
NUMBERS = [0, 1, -1, 2, 3, 7, 64, 127, 128, 255, 4096, 65535, 2**24, 2**24 + 1, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**62, 2**63 - 1, -(2**63)]
SYMBOLS = ["n", "m", "batch", "steps", "n * 2", "?", "-1", "x[0]", "", "unk__1", "é" * 40]
TYPES = [1, 2, 3, 6, 7, 9, 10, 11, 16, 8, 17, 0, 99]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=4000, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="the number of the first network")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR", help="where networks that failed are kept")
    options = parser.parse_args()
    build = ["cargo", "build", "--release", "--quiet", "--example", "import_models"]
    if subprocess.run(build, cwd=ROOT).returncode != 0:
        return 1
    sources, told, failed, slowest = Sources(), collections.Counter(), 0, (0, 0)
    importer = None
    for number in range(options.first, options.first + options.count):
        if importer is None or importer.fed >= BATCH:
            importer = Importer(importer)
        dice = random.Random(f"{options.seed} {number}")
        model, dims = sources.changed(dice)
        outcome, milliseconds = importer.feed(model, dims)
        slowest = max(slowest, (milliseconds, number))
        told[re.split(r"[ :]", outcome, maxsplit=1)[0]] += 1
        if not outcome.startswith(("imported", "refused")):
            failed += 1
            print(f"{number}: {outcome}", flush=True)
            importer = None
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{options.seed}-{number}.onnx").write_bytes(model)
                (options.keep / f"{options.seed}-{number}.txt").write_text(dims)
    if importer is not None:
        importer.end()
    counts = ", ".join(f"{count} {what}" for what, count in told.most_common())
    print(f"{options.count} networks: {counts}; the slowest, {slowest[1]}, took {slowest[0]} ms")
    return 1 if failed else 0


class Importer:
    """A process that imports what it is fed."""

    def __init__(self, before=None):
        if before is not None:
            before.end()
        self.fed = 0
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [str(ROOT / "target/release/examples/import_models")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.errors, preexec_fn=self.limit,
        )

    @staticmethod
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def feed(self, model, dims):
        """What became of a network, and the milliseconds that it took."""
        self.fed += 1
        text = dims.encode()
        try:
            self.process.stdin.write(struct.pack("<II", len(text), len(model)) + text + model)
            self.process.stdin.flush()
        except BrokenPipeError:
            return self.failure(), 0
        if not select.select([self.process.stdout], [], [], PATIENCE_SECONDS)[0]:
            self.process.kill()
            self.process.wait()
            return f"hang: no answer within {PATIENCE_SECONDS} s", PATIENCE_SECONDS * 1000
        line = self.process.stdout.readline().decode(errors="replace")
        if not line:
            return self.failure(), 0
        milliseconds, outcome = line.rstrip("\n").split(" ", 1)
        return outcome, int(milliseconds)

    def failure(self):
        code = self.process.wait()
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip().splitlines()
        return f"failure: exit code {code}: {' | '.join(said[:3])[:600]}"

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class Sources:
    """Networks as they should be."""

    def __init__(self):
        files = ROOT / "tests/files/graph"
        ours = [onnx.load(path) for path in sorted(files.glob("*/*/model.onnx"))]
        flows = [control_flow.network(kind, 0, number).model for kind in control_flow.KINDS for number in range(4)]
        nodes = pathlib.Path(onnx.__file__).parent / "backend/test/data/node"
        # what is refused at once teaches little
        known = {line.split(":")[0] for line in (ROOT / "tests/files/onnx/reasons.txt").read_text().splitlines()}
        cases = [onnx.load(path) for path in sorted(nodes.glob("*/model.onnx")) if path.parent.name not in known]
        holds = lambda model: any(a.type == AttributeProto.GRAPH for node in model.graph.node for a in node.attribute)
        self.kinds = [ours, flows, [case for case in cases if holds(case)], cases]
        self.operators = sorted({node.op_type for case in cases for node in case.graph.node})

    def some(self, dice):
        return dice.choice(dice.choices(self.kinds, [3, 4, 2, 1])[0])

    def changed(self, dice):
        """The bytes of a changed network, and ranges for its extents."""
        model = clone(self.some(dice))
        change = Change(model, self, dice)
        for _ in range(dice.choice([1, 1, 1, 2, 2, 3, 6])):
            try:
                dice.choice(CHANGES)(change)
            except DecodeError:
                break  # graphs inside of graphs, deeper than protobuf copies them
        return model.SerializeToString(), change.dims()


def clone(message):
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


class Change:
    """Changes a network in place."""

    def __init__(self, model, sources, dice):
        self.model, self.sources, self.dice = model, sources, dice
        self.made = 0

    def graphs(self):
        """The graph and those inside of it, as far as they are not too many."""
        found, pending = [], [self.model.graph]
        while pending and len(found) < 64:
            graph = pending.pop()
            found.append(graph)
            pending += [a.g for node in graph.node for a in node.attribute if a.type == AttributeProto.GRAPH]
        return found

    def graph(self):
        return self.dice.choice(self.graphs())

    def node(self):
        nodes = [node for graph in self.graphs() for node in graph.node]
        nodes += [node for function in self.model.functions for node in function.node]
        return self.dice.choice(nodes) if nodes else self.model.graph.node.add(op_type="Identity")

    def name(self):
        """Any name of any scope, now and then none."""
        names = ["", "nobody"]
        for graph in self.graphs():
            names += [name for node in graph.node for name in [*node.input, *node.output]]
            names += [value.name for value in [*graph.input, *graph.output, *graph.initializer]]
        return self.dice.choice(names)

    def fresh(self):
        self.made += 1
        return f"made_{self.made}"

    def constant(self, values, kind=TensorProto.INT64, shape=None):
        """A new initialiser of the outermost graph."""
        name = self.fresh()
        shape = [len(values)] if shape is None else shape
        self.model.graph.initializer.append(helper.make_tensor(name, kind, shape, values))
        return name

    def number(self):
        return self.dice.choice(NUMBERS) if self.dice.random() < 0.6 else self.dice.randint(-3, 12)

    def dims(self):
        """Ranges for extents, most of them possible ones."""
        if self.dice.random() < 0.5:
            return ""
        names = set()
        for value in self.model.graph.input:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                names.add(dim.dim_param or f"{value.name}[{axis}]")
        lines = []
        for name in sorted(names)[:8]:
            if self.dice.random() < 0.6:
                low, length = self.dice.randint(1, 5), self.dice.choice([0, 1, 3, 60, 2000])
                high = low + length
                if self.dice.random() < 0.04:
                    low, high = self.number(), self.number()
                lines.append(f"{name} {low} {high}\n")
        return "".join(lines)

    def rewired(self):
        node = self.node()
        names = node.input if self.dice.random() < 0.75 else node.output
        if names:
            names[self.dice.randrange(len(names))] = self.name()

    def arity(self):
        node = self.node()
        names = node.input if self.dice.random() < 0.6 else node.output
        if names and self.dice.random() < 0.5:
            del names[self.dice.randrange(len(names))]
        else:
            names.extend([self.name()] * self.dice.choice([1, 1, 2, 40]))

    def interface(self):
        graph = self.graph()
        values = self.dice.choice([graph.input, graph.output])
        if values and self.dice.random() < 0.5:
            del values[self.dice.randrange(len(values))]
        elif values and self.dice.random() < 0.5:
            values.append(clone(self.dice.choice(values)))
        else:
            values.add().CopyFrom(helper.make_tensor_value_info(self.name(), 1, [self.number()]))

    def attribute(self):
        node = self.node()
        if not node.attribute or self.dice.random() < 0.1:
            name = self.dice.choice(["axis", "axes", "to", "keepdims", "num_scan_inputs", "direction", "pads", "perm", "body"])
            value = self.dice.choice([self.number(), [self.number()] * self.dice.randint(1, 4), 0.5, "reverse"])
            node.attribute.append(helper.make_attribute(name, value))
            return
        attribute = self.dice.choice(node.attribute)
        choice = self.dice.random()
        if choice < 0.15:
            node.attribute.remove(attribute)
        elif choice < 0.25:
            attribute.type = self.dice.randrange(15)
        elif choice < 0.3:
            attribute.ref_attr_name = attribute.name
        elif attribute.type == AttributeProto.INT:
            attribute.i = self.number() if -(2**63) <= self.number() < 2**63 else 0
        elif attribute.type == AttributeProto.INTS and attribute.ints:
            attribute.ints[self.dice.randrange(len(attribute.ints))] = self.number()
            if self.dice.random() < 0.3:
                attribute.ints.append(self.number())
        elif attribute.type == AttributeProto.FLOAT:
            attribute.f = self.dice.choice([0.0, -1.0, 1e38, float("nan"), float("inf")])
        elif attribute.type == AttributeProto.STRING:
            attribute.s = self.dice.choice([b"", b"reverse", b"bidirectional", b"SAME_UPPER", b"\xff", b"Tanh"])
        elif attribute.type == AttributeProto.TENSOR:
            self.tensor(attribute.t)

    def tensor(self, tensor):
        choice = self.dice.random()
        if choice < 0.3:
            tensor.dims.extend([self.number()] * self.dice.choice([1, 1, 2, 40]))
        elif choice < 0.5 and tensor.dims:
            tensor.dims[self.dice.randrange(len(tensor.dims))] = self.number()
        elif choice < 0.6:
            tensor.data_type = self.dice.choice(TYPES)
        elif tensor.data_type == TensorProto.INT64 and 0 < len(tensor.raw_data or tensor.int64_data) < 4096:
            count = len(tensor.int64_data) or len(tensor.raw_data) // 8
            tensor.ClearField("int64_data")
            tensor.raw_data = b"".join(struct.pack("<q", self.number()) for _ in range(count))
        else:
            tensor.raw_data = tensor.raw_data[: self.dice.randrange(len(tensor.raw_data) + 1)] + b"\0" * self.dice.randrange(9)

    def initializer(self):
        graph = self.graph()
        if graph.initializer:
            self.tensor(self.dice.choice(graph.initializer))

    def moved_constant(self):
        """An initialiser becomes an input, or an input a constant."""
        graph = self.model.graph
        if graph.initializer and self.dice.random() < 0.5:
            tensor = self.dice.choice(graph.initializer)
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
            graph.initializer.remove(tensor)
        elif graph.input:
            value = self.dice.choice(graph.input)
            kind, shape = value.type.tensor_type.elem_type, [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            count = 1
            for extent in shape:
                count *= extent
            if kind in (1, 6, 7, 9, 11) and 0 < count < 4096:
                values = [self.number() if kind == 7 else self.dice.randint(0, 3) for _ in range(count)]
                graph.initializer.append(helper.make_tensor(value.name, kind, shape, values))
                if self.dice.random() < 0.8:
                    graph.input.remove(value)

    def extents(self):
        """Extents that are open, or cannot be."""
        graph = self.graph()
        if not graph.input:
            return
        value = self.dice.choice(graph.input)
        tensor = value.type.tensor_type
        choice = self.dice.random()
        if choice < 0.05:
            value.ClearField("type")
        elif choice < 0.1:
            tensor.elem_type = self.dice.choice(TYPES)
        elif choice < 0.15:
            tensor.ClearField("shape")
        elif choice < 0.25 or not tensor.shape.dim:
            tensor.shape.dim.add(dim_param=self.dice.choice(SYMBOLS))
        elif choice < 0.3:
            del tensor.shape.dim[self.dice.randrange(len(tensor.shape.dim))]
        elif choice < 0.45:
            self.dice.choice(tensor.shape.dim).dim_value = self.number()
        else:
            for dim in tensor.shape.dim:
                if self.dice.random() < 0.6:
                    dim.dim_param = self.dice.choice(SYMBOLS)

    def opened(self):
        """One name for the leading extents of all inputs, or a name for each extent."""
        is_shared = self.dice.random() < 0.5
        for value in self.model.graph.input:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                if axis == 0 or not is_shared:
                    dim.dim_param = "n" if is_shared else f"{value.name}_{axis}"

    def operator(self):
        node = self.node()
        node.op_type = self.dice.choice(self.sources.operators)
        if self.dice.random() < 0.05:
            node.domain = self.dice.choice(["com.microsoft", "ai.onnx", "ai.onnx.ml", "custom"])

    def nodes(self):
        graph = self.graph()
        if not graph.node:
            return
        node = self.dice.choice(graph.node)
        choice = self.dice.random()
        if choice < 0.3:
            graph.node.remove(node)
        elif choice < 0.5:
            graph.node.append(clone(node))
        else:
            copy = clone(node)
            for at in range(len(copy.output)):
                copy.output[at] = self.fresh()
            self.graph().node.append(copy)
            other = self.node()
            if other.input and copy.output:
                other.input[self.dice.randrange(len(other.input))] = copy.output[0]

    def wrapped(self):
        """A node goes into a branch, a loop, a scan or a function."""
        graph = self.graph()
        if not graph.node:
            return
        at = self.dice.randrange(len(graph.node))
        node = clone(graph.node[at])
        if node.ByteSize() > 1 << 16:
            return
        self.dice.choice([self.in_branch, self.in_loop, self.in_scan, self.in_function])(node, graph.node[at])

    def inner(self, node, inputs=(), before=()):
        """A graph of a node, whose results have names of their own."""
        body = onnx.GraphProto(name=self.fresh())
        body.node.append(clone(node))
        for name in inputs:
            body.input.add(name=name)
        for name in before:
            body.output.add(name=name)
        renamed = {name: self.fresh() for name in node.output if name}
        for position, name in enumerate(node.output):
            if name:
                body.node[0].output[position] = renamed[name]
                body.output.add(name=renamed[name])
        return body

    def condition(self):
        choice = self.dice.random()
        if choice < 0.4:
            return self.constant([self.dice.randint(0, 1)], TensorProto.BOOL, self.dice.choice([[], [1]]))
        if choice < 0.8:
            name = self.fresh()
            self.model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.BOOL, self.dice.choice([[], [1], ["n"]])))
            return name
        return self.name()

    def put(self, place, kind, inputs, outputs, **attributes):
        place.CopyFrom(helper.make_node(kind, inputs, outputs, name=self.fresh(), **attributes))

    def in_branch(self, node, place):
        other = self.inner(node)
        if self.dice.random() < 0.5:
            for value in other.node[0].input[:1]:
                other.node[0].input[0] = self.name()
        self.put(place, "If", [self.condition()], [name for name in node.output if name], then_branch=self.inner(node), else_branch=other)

    def trips(self):
        choice = self.dice.random()
        if choice < 0.6:
            return self.constant([self.number()], shape=self.dice.choice([[], [1], [1]]))
        if choice < 0.8 and self.model.graph.input:
            shape = self.model.graph.node.add(op_type="Shape", input=[self.dice.choice(self.model.graph.input).name], output=[self.fresh()])
            size = self.model.graph.node.add(op_type="ReduceProd", input=[shape.output[0]], output=[self.fresh()])
            size.attribute.append(helper.make_attribute("keepdims", self.dice.randint(0, 1)))
            return size.output[0]
        return self.name()

    def in_loop(self, node, place):
        """The first input is the state, the first result becomes it; or all results are collected."""
        step, going, state = self.fresh(), self.fresh(), self.fresh()
        has_state = bool(node.input) and self.dice.random() < 0.7
        initial = node.input[0] if has_state else ""
        if has_state:
            node.input[0] = state
        body = self.inner(node, [step, going, *([state] if has_state else [])], [going if self.dice.random() < 0.8 else self.condition()])
        if has_state and self.dice.random() < 0.3:
            body.output.insert(1, onnx.ValueInfoProto(name=state))
        condition = self.condition() if self.dice.random() < 0.6 else ""
        outputs = [name for name in node.output if name]
        self.put(place, "Loop", [self.trips(), condition, *([initial] if has_state else [])], outputs, body=body)

    def in_scan(self, node, place):
        if not node.input:
            return
        count = self.dice.randint(1, len(node.input))
        given = list(node.input)
        inner = [self.fresh() for _ in given]
        node.input[:] = inner
        body = self.inner(node, inner)
        self.put(place, "Scan", given, [name for name in node.output if name], body=body, num_scan_inputs=count)

    def in_function(self, node, place):
        name, inputs = self.fresh(), [value for value in node.input]
        body = [node]
        if self.dice.random() < 0.2:
            # it calls itself, or another one
            others = [function.name for function in self.model.functions]
            body.append(helper.make_node(self.dice.choice([name, *others]), inputs, [self.fresh()], domain="made"))
        known = sorted({value for value in inputs if value})
        outputs = [value for value in node.output if value]
        function = helper.make_function("made", name, known, outputs, body, list(self.model.opset_import))
        self.model.functions.append(function)
        self.model.opset_import.append(helper.make_opsetid("made", 1))
        self.put(place, name, known, outputs, domain="made")

    def nested(self):
        """A graph of a node is another one, or holds itself, many times over."""
        holders = [(node, a) for graph in self.graphs() for node in graph.node for a in node.attribute if a.type == AttributeProto.GRAPH]
        if not holders:
            return self.wrapped()
        _, attribute = self.dice.choice(holders)
        choice = self.dice.random()
        if choice < 0.3:
            other = clone(self.graph())
            if other.ByteSize() < 1 << 16:
                attribute.g.CopyFrom(other)
            return
        for _ in range(self.dice.choice([1, 2, 5, 30])):
            inner = clone(attribute.g)
            if inner.ByteSize() > 1 << 15:
                break
            kind = self.dice.choice(["then_branch", "body"])
            if kind == "then_branch":
                parts = {"then_branch": inner, "else_branch": inner}
                node = helper.make_node("If", [self.condition()], [value.name for value in inner.output], **parts)
            else:
                inputs = [self.trips(), "", *(value.name for value in attribute.g.input[2:])]
                node = helper.make_node("Loop", inputs, [value.name for value in inner.output[1:]], body=inner)
            del attribute.g.node[:]
            attribute.g.node.append(node)

    def versions(self):
        for imported in self.model.opset_import:
            if self.dice.random() < 0.7:
                imported.version = self.dice.choice([7, 8, 9, 10, 11, 12, 13, 16, 18, 21, 23, 27, 28, 0, -1])


CHANGES = [
    Change.rewired, Change.arity, Change.interface, Change.attribute, Change.attribute, Change.initializer,
    Change.moved_constant, Change.extents, Change.extents, Change.opened, Change.opened, Change.opened, Change.operator, Change.nodes,
    Change.wrapped, Change.wrapped, Change.wrapped, Change.wrapped, Change.nested, Change.nested, Change.versions,
]

if __name__ == "__main__":
    sys.exit(main())
