#!/usr/bin/env python3
"""Compares recurrent operators, loops, branches, functions and the run-time library with ONNX Runtime.

usage: control_flow.py [--compiled] [--open] [--count N] [--seed S] [TEXT]

--compiled: through untuned artifacts, compiled for this machine and run
--open: only networks with a number of steps, or a batch, and these are known only when they run
--count N: so many random networks of each kind (default 6)
TEXT: only kinds with this in their name

Exits with 1 if a result is wrong or a network is refused, with 3 if a package is missing.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    print(f"{error}: nothing was compared (pip install onnx onnxruntime)", file=sys.stderr)
    sys.exit(3)

TYPES = {np.dtype("float32"): TensorProto.FLOAT, np.dtype("int64"): TensorProto.INT64, np.dtype("int32"): TensorProto.INT32,
         np.dtype("int8"): TensorProto.INT8, np.dtype("uint8"): TensorProto.UINT8, np.dtype("bool"): TensorProto.BOOL,
         np.dtype("int16"): TensorProto.INT16, np.dtype("uint16"): TensorProto.UINT16, np.dtype("uint32"): TensorProto.UINT32,
         np.dtype("uint64"): TensorProto.UINT64, np.dtype("float64"): TensorProto.DOUBLE}
ACTIVATIONS = ["Sigmoid", "Tanh", "Relu", "Softsign", "Softplus", "HardSigmoid", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "Affine", "Elu"]
# Gates that leave 0..1 let the state grow without bound, and then roundings decide.
GATES = ["Sigmoid", "HardSigmoid"]
WITH_ALPHA = {"HardSigmoid": 0.3, "LeakyRelu": 0.05, "ThresholdedRelu": 0.2, "ScaledTanh": 0.9, "Affine": 0.7, "Elu": 0.8}
WITH_BETA = {"HardSigmoid": 0.4, "ScaledTanh": 0.8, "Affine": 0.1}


def value(name, array):
    return helper.make_tensor_value_info(name, TYPES[array.dtype], array.shape)


def typed(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def constant(array, name):
    return numpy_helper.from_array(np.asarray(array), name)


class Case:
    """A network, and what it is run on."""

    def __init__(self, nodes, inputs, outputs, constants=(), functions=(), opset=21, open={}):
        """`open`: by input, names for extents that are known only when the network runs, where it is asked to be so."""
        inputs = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        graph = helper.make_graph(nodes, "case", [value(name, array) for name, array in inputs.items()],
                                  [helper.make_empty_tensor_value_info(name) for name in outputs],
                                  [constant(array, name) for name, array in dict(constants).items()])
        opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid(f.domain, 1) for f in functions[:1]]
        self.open = open
        self.model = helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)
        self.inputs = inputs

    def write(self, folder, is_open):
        for about in self.model.graph.input if is_open else []:
            for dim, name in zip(about.type.tensor_type.shape.dim, self.open.get(about.name, [])):
                if isinstance(name, str):
                    dim.dim_param = name
        data = folder / "test_data_set_0"
        data.mkdir(parents=True)
        # the compiler needs no types of outputs, ONNX Runtime infers them
        session = onnxruntime.InferenceSession(self.model.SerializeToString(), providers=["CPUExecutionProvider"])
        onnx.save(self.model, folder / "model.onnx")
        for at, (name, array) in enumerate(self.inputs.items()):
            (data / f"input_{at}.pb").write_bytes(constant(array, name).SerializeToString())
        names = [output.name for output in session.get_outputs()]
        for at, (name, array) in enumerate(zip(names, session.run(None, self.inputs))):
            (data / f"output_{at}.pb").write_bytes(constant(array, name).SerializeToString())


def recurrent(kind, random):
    """Any of the three, with whatever it can be given."""
    gates, functions = {"LSTM": (4, 3), "GRU": (3, 2), "RNN": (1, 1)}[kind]
    direction = random.choice(["forward", "reverse", "bidirectional"])
    directions = 2 if direction == "bidirectional" else 1
    steps, batch, width, hidden = (int(random.choice(sizes)) for sizes in [[1, 3, 7, 20], [1, 2, 5], [1, 6, 9], [1, 5, 16]])
    draw = lambda *shape: random.standard_normal(shape).astype(np.float32) * np.float32(0.4)
    inputs = {"x": draw(steps, batch, width)}
    weights = {"w": draw(directions, gates * hidden, width), "r": draw(directions, gates * hidden, hidden)}
    names = ["x", "w", "r"] + [""] * (5 if kind == "LSTM" else 3)
    some = lambda: random.random() < 0.5
    if some():
        names[3], weights["b"] = "b", draw(directions, 2 * gates * hidden)
    if some():
        names[4], inputs["lengths"] = "lengths", random.integers(1, steps + 1, batch).astype(np.int32)
    for at, name in [(5, "h"), (6, "c")][: 2 if kind == "LSTM" else 1]:
        if some():
            names[at], inputs[name] = name, draw(directions, batch, hidden)
    if kind == "LSTM" and some():
        names[7], weights["p"] = "p", draw(directions, 3 * hidden)
    attributes = {"direction": direction, "hidden_size": hidden}
    if some():
        chosen = [str(random.choice(GATES if at % functions == 0 else ACTIVATIONS)) for at in range(functions * directions)]
        attributes["activations"] = chosen
        for name, table in [("activation_alpha", WITH_ALPHA), ("activation_beta", WITH_BETA)]:
            if values := [table[a] for a in chosen if a in table]:
                attributes[name] = values
    elif some():
        attributes["clip"] = 0.8
    if kind == "LSTM" and some():
        attributes["input_forget"] = 1
    if kind == "GRU" and some():
        attributes["linear_before_reset"] = 1
    outputs = ["y", "y_h", "y_c"][: 3 if kind == "LSTM" else 2]
    open = {"x": ["steps", "batch", None], "lengths": ["batch"], "h": [None, "batch", None], "c": [None, "batch", None]}
    return Case([helper.make_node(kind, names, outputs, **attributes)], inputs, outputs, weights, open=open)


def branch(random):
    """Two computations under a condition that is known late, both of which read what is outside."""
    x, y = (random.standard_normal((3, 4)).astype(np.float32) for _ in range(2))
    result = [typed("z", TensorProto.FLOAT, [3, 4])]
    yes = helper.make_graph([helper.make_node("Exp", ["u"], ["e"]), helper.make_node("Mul", ["e", "y"], ["z"])], "yes", [], result)
    no = helper.make_graph([helper.make_node("MatMul", ["u", "m"], ["z"])], "no", [], result, [constant(np.eye(4, dtype=np.float32) * 2, "m")])
    nodes = [helper.make_node("Add", ["x", "y"], ["u"]), helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0), helper.make_node("Less", ["s", "limit"], ["c"]),
             helper.make_node("If", ["c"], ["v"], then_branch=yes, else_branch=no), helper.make_node("Sub", ["v", "x"], ["r"])]
    return Case(nodes, {"x": x, "y": y}, ["r"], {"limit": np.float32(0)})


def loop(random):
    """A loop with a state, an outer value, its number, collections (one of parts that are put together in each iteration), and a condition
    inside; short or long."""
    trips = int(random.choice([1, 2, 5, 700, 1501]))
    # a fixed point lies in reach
    state = random.standard_normal((2, 3)).astype(np.float32)
    bias = (0.1 * random.standard_normal((3,))).astype(np.float32)
    inner = [helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT), helper.make_node("Cos", ["f"], ["k"]), helper.make_node("MatMul", ["s", "m"], ["t"]),
             helper.make_node("Add", ["t", "bias"], ["u"]), helper.make_node("Mul", ["u", "k"], ["v"]), helper.make_node("Identity", ["go"], ["on"]),
             helper.make_node("ReduceSum", ["v"], ["total"], keepdims=0), helper.make_node("Less", ["total", "zero"], ["low"])]
    shape = [2, 3]
    yes = helper.make_graph([helper.make_node("Neg", ["v"], ["n"])], "yes", [], [typed("n", TensorProto.FLOAT, shape)])
    no = helper.make_graph([helper.make_node("Tanh", ["v"], ["q"])], "no", [], [typed("q", TensorProto.FLOAT, shape)])
    inner.append(helper.make_node("If", ["low"], ["next"], then_branch=yes, else_branch=no))
    inner += [helper.make_node("ReduceMax", ["next"], ["greatest"], keepdims=0), helper.make_node("ReduceMin", ["next"], ["least"], keepdims=0),
              helper.make_node("Unsqueeze", ["greatest", "front"], ["g1"]), helper.make_node("Unsqueeze", ["least", "front"], ["l1"]),
              helper.make_node("Concat", ["g1", "l1"], ["most"], axis=0)]
    body = helper.make_graph(inner, "body", [typed("i", TensorProto.INT64, []), typed("go", TensorProto.BOOL, []), typed("s", TensorProto.FLOAT, shape)],
                             [typed("on", TensorProto.BOOL, []), typed("next", TensorProto.FLOAT, shape), typed("most", TensorProto.FLOAT, [2]), typed("v", TensorProto.FLOAT, shape)])
    nodes = [helper.make_node("Loop", ["trips", "", "state"], ["last", "mosts", "all"], body=body), helper.make_node("Relu", ["all"], ["kept"])]
    matrix = np.linalg.qr(random.standard_normal((3, 3)))[0].astype(np.float32) * np.float32(0.9)
    constants = {"trips": np.int64(trips), "m": matrix, "zero": np.float32(0), "front": np.array([0], np.int64)}
    return Case(nodes, {"state": state, "bias": bias}, ["last", "mosts", "kept"], constants)


def until(random):
    """A loop that ends when a condition says so that depends on a state; perhaps it never begins."""
    state = np.abs(random.standard_normal((2, 3))).astype(np.float32) + np.float32(0.1)
    shape = [2, 3]
    inner = [helper.make_node("Mul", ["s", "less"], ["t"]), helper.make_node("Add", ["n", "one"], ["m"]), helper.make_node("ReduceSum", ["t"], ["total"], keepdims=0),
             helper.make_node("Greater", ["total", "limit"], ["on"])]
    body = helper.make_graph(inner, "body", [typed("i", TensorProto.INT64, []), typed("go", TensorProto.BOOL, []), typed("s", TensorProto.FLOAT, shape), typed("n", TensorProto.INT64, [])],
                             [typed("on", TensorProto.BOOL, []), typed("t", TensorProto.FLOAT, shape), typed("m", TensorProto.INT64, [])])
    nodes = [helper.make_node("ReduceSum", ["x"], ["all"], keepdims=0), helper.make_node("Greater", ["all", "limit"], ["start"]),
             helper.make_node("Loop", ["trips", "start", "x", "zero"], ["last", "count"], body=body), helper.make_node("Neg", ["last"], ["r"])]
    constants = {"trips": np.int64(random.choice([5, 40, 3000])), "less": np.float32(0.93), "limit": np.float32(random.choice([0.3, 2.5])), "zero": np.int64(0), "one": np.int64(1)}
    return Case(nodes, {"x": state}, ["r", "count"], constants)


def scan(random):
    """A scan over two tensors along any axis, in any direction; short or long."""
    length = int(random.choice([1, 4, 900, 1500]))
    axes, directions = [int(a) for a in random.integers(0, 2, 2)], [int(d) for d in random.integers(0, 2, 2)]
    out_axes, out_directions = [int(a) for a in random.integers(0, 2, 2)], [int(d) for d in random.integers(0, 2, 2)]
    draw = lambda axis: random.standard_normal((length, 3) if axis == 0 else (3, length)).astype(np.float32)
    inputs = {"h": random.standard_normal(3).astype(np.float32), "x": draw(axes[0]), "y": draw(axes[1])}
    inner = [helper.make_node("Mul", ["a", "b"], ["p"]), helper.make_node("Mul", ["s", "half"], ["t"]), helper.make_node("Add", ["t", "p"], ["n"]),
             helper.make_node("Add", ["count", "one"], ["more"]), helper.make_node("Sub", ["n", "a"], ["d"])]
    vector = lambda name: typed(name, TensorProto.FLOAT, [3])
    body = helper.make_graph(inner, "body", [vector("s"), typed("count", TensorProto.INT64, []), vector("a"), vector("b")],
                             [vector("n"), typed("more", TensorProto.INT64, []), vector("p"), vector("d")])
    node = helper.make_node("Scan", ["h", "zero", "x", "y"], ["last", "steps", "ps", "ds"], body=body, num_scan_inputs=2, scan_input_axes=axes,
                            scan_input_directions=directions, scan_output_axes=out_axes, scan_output_directions=out_directions)
    open = {name: [None] * axis + ["steps"] for name, axis in zip("xy", axes)}
    return Case([node], inputs, ["last", "steps", "ps", "ds"], {"half": np.float32(0.5), "one": np.int64(1), "zero": np.int64(0)}, open=open)


def top_k(random):
    """Any axis and type; many equal ones."""
    shape = [int(n) for n in random.integers(1, 40, int(random.integers(1, 4)))]
    axis = int(random.integers(0, len(shape)))
    dtype = random.choice(["float32", "float64", "int32", "int64"])
    x = random.integers(-9, 9, shape).astype(dtype)
    k = int(random.integers(1, shape[axis] + 1))
    node = helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=axis, largest=int(random.integers(0, 2)))
    return Case([helper.make_node("Neg", ["x0"], ["x"]), node], {"x0": x}, ["v", "i"], {"k": np.array([k], np.int64)})


def scatter(random):
    """Elements or blocks, with every reduction; places meet."""
    reduction = str(random.choice(["none", "add", "mul", "max", "min"]))
    dtype = str(random.choice(["float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]))
    shape = [int(n) for n in random.integers(2, 7, 3)]
    data = random.integers(-4, 5, shape).astype(dtype)
    if random.random() < 0.5:
        axis = int(random.integers(0, 3))
        places = [int(random.integers(1, n + 1)) for n in shape]
        # without a reduction, no two may meet
        at = np.argsort(random.random(places), axis=axis) if reduction == "none" else random.integers(-shape[axis], shape[axis], places)
        node = helper.make_node("ScatterElements", ["d", "i", "u"], ["y"], axis=axis, reduction=reduction)
        updates = random.integers(-4, 5, places).astype(dtype)
    else:
        depth = int(random.integers(1, 4))
        count = 1 if reduction == "none" else 5
        at = np.stack([random.integers(-n, n, count) for n in shape[:depth]], axis=-1)
        node = helper.make_node("ScatterND", ["d", "i", "u"], ["y"], reduction=reduction)
        updates = random.integers(-4, 5, [count] + shape[depth:]).astype(dtype)
    return Case([node], {"d": data, "i": at.astype(np.int64), "u": updates}, ["y"])


def function(random):
    """A function that calls another one, with attributes that are handed on, in a loop."""
    scaled = helper.make_function("local", "Scaled", ["a", "b"], ["c"], [
        helper.make_node("LeakyRelu", ["a"], ["l"]), helper.make_node("Add", ["l", "b"], ["c"])], [helper.make_opsetid("", 21)], ["slope"])
    scaled.node[0].attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    twice = helper.make_function("local", "Twice", ["a"], ["c"], [
        helper.make_node("Scaled", ["a", "a"], ["t"], domain="local", slope=0.3), helper.make_node("Scaled", ["t", "a"], ["c"], domain="local", slope=0.6)],
        [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)])
    x = random.standard_normal((2, 5)).astype(np.float32)
    nodes = [helper.make_node("Twice", ["x"], ["y"], domain="local"), helper.make_node("Scaled", ["y", "x"], ["z"], domain="local", slope=0.1)]
    return Case(nodes, {"x": x}, ["z"], functions=[scaled, twice])


def inside(random):
    """Sorting, scattering and a short recurrence inside of a long scan; what it leaves is concatenated."""
    steps = int(random.choice([2, 900]))
    inputs = {"h": random.standard_normal((2, 6)).astype(np.float32), "x": random.standard_normal((steps, 2, 6)).astype(np.float32)}
    inner = [helper.make_node("TopK", ["a", "two"], ["v", "p"], axis=1), helper.make_node("ScatterElements", ["s", "p", "v"], ["t"], axis=1),
             helper.make_node("Unsqueeze", ["t", "first"], ["u"]), helper.make_node("GRU", ["u", "wx", "wr"], ["", "g"], hidden_size=6),
             helper.make_node("Squeeze", ["g", "first"], ["n"])]
    state, places = typed("s", TensorProto.FLOAT, [2, 6]), typed("p", TensorProto.INT64, [2, 2])
    body = helper.make_graph(inner, "body", [state, typed("a", TensorProto.FLOAT, [2, 6])], [typed("n", TensorProto.FLOAT, [2, 6]), places])
    nodes = [helper.make_node("Scan", ["h", "x"], ["last", "places"], body=body, num_scan_inputs=1), helper.make_node("Concat", ["last", "h"], ["joined"], axis=0)]
    draw = lambda *shape: random.standard_normal(shape).astype(np.float32) * np.float32(0.3)
    constants = {"two": np.array([2], np.int64), "first": np.array([0], np.int64), "wx": draw(1, 18, 6), "wr": draw(1, 18, 6)}
    return Case(nodes, inputs, ["joined", "places"], constants, open={"x": ["steps"]})


def sparse(random, shape, share=0.5):
    """Small numbers, most of them 0 where the share is low."""
    values = random.integers(-3, 4, shape) * (random.random(shape) < share)
    return values.astype(random.choice([np.float32, np.int64]))


def non_zero(random):
    """Places of what is not zero, what is there, how many; something of as many elements, and of as many as are left."""
    shape = [int(extent) for extent in random.integers(1, 7, random.integers(1, 4))]
    x = sparse(random, shape, random.choice([0.0, 0.3, 1.0]))
    ends = np.array([1], np.int64)
    nodes = [helper.make_node("NonZero", ["x"], ["places"]), helper.make_node("Transpose", ["places"], ["rows"]),
             helper.make_node("GatherND", ["x", "rows"], ["found"]), helper.make_node("Shape", ["found"], ["count"]),
             helper.make_node("ConstantOfShape", ["count"], ["zeros"]), helper.make_node("Cast", ["found"], ["floats"], to=TensorProto.FLOAT),
             helper.make_node("Sub", ["floats", "zeros"], ["same"]), helper.make_node("Reshape", ["x", "minus"], ["flat"]),
             helper.make_node("Slice", ["flat", "count", "far"], ["left"]), helper.make_node("ReduceSum", ["same"], ["sum"]),
             helper.make_node("ScatterND", ["x", "rows", "found"], ["back"]), helper.make_node("Equal", ["back", "x"], ["is_back"])]
    constants = {"minus": -ends, "far": np.array([2**31], np.int64)}
    names = ["n", "m", "k"][: len(shape)]
    return Case(nodes, {"x": x}, ["places", "found", "count", "same", "left", "sum", "is_back"], constants, open={"x": names})


def unique(random):
    shape = [int(extent) for extent in random.integers(1, 6, random.integers(1, 4))]
    x = sparse(random, shape)
    axis = random.choice([None, *range(len(shape))])
    attributes = {} if axis is None else {"axis": int(axis)}
    nodes = [helper.make_node("Unique", ["x"], ["kinds", "first", "kind", "counts"], sorted=int(random.integers(0, 2)), **attributes),
             helper.make_node("Gather", ["kinds", "kind"], ["back"], axis=attributes.get("axis", 0)), helper.make_node("CumSum", ["counts", "zero"], ["sums"])]
    return Case(nodes, {"x": x}, ["kinds", "first", "kind", "counts", "back", "sums"], {"zero": np.array(0, np.int64)}, open={"x": ["n", "m", "k"][: len(shape)]})


def compress(random):
    """Rows that a condition takes, and of those again; a product of matrices with as many rows as are left."""
    rows, columns = int(random.integers(1, 20)), int(random.integers(1, 8))
    x, weights = random.standard_normal((rows, columns)).astype(np.float32), random.standard_normal((columns, 5)).astype(np.float32)
    condition = random.random(int(random.integers(1, rows + 1))) < random.choice([0.0, 0.5, 1.0])
    nodes = [helper.make_node("Compress", ["x", "condition"], ["taken"], axis=0), helper.make_node("MatMul", ["taken", "weights"], ["product"]),
             helper.make_node("ReduceSum", ["product", "one"], ["sums"], keepdims=0), helper.make_node("Greater", ["sums", "zero"], ["is_large"]),
             helper.make_node("Compress", ["product", "is_large"], ["again"], axis=0), helper.make_node("Softmax", ["again"], ["shares"]),
             helper.make_node("Concat", ["again", "product"], ["both"], axis=0), helper.make_node("Compress", ["x", "condition"], ["elements"])]
    constants = {"weights": weights, "one": np.array([1], np.int64), "zero": np.array(0, np.float32)}
    return Case(nodes, {"x": x, "condition": condition}, ["taken", "product", "shares", "both", "elements"], constants, open={"x": ["n", columns], "condition": ["c"]})


def boxes(random):
    """The end of a detector: boxes that do not overlap better ones, their scores and classes, the best of them."""
    batch, classes, count = int(random.integers(1, 3)), int(random.integers(1, 4)), int(random.integers(1, 40))
    centred = int(random.integers(0, 2))
    corner, size = random.random((batch, count, 2)) * 4, random.random((batch, count, 2)) * 2
    places = np.concatenate([corner, size if centred else corner + size], axis=2).astype(np.float32)
    scores = random.permutation(batch * classes * count).reshape(batch, classes, count).astype(np.float32) / 100
    nodes = [helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["selected"], center_point_box=centred),
             helper.make_node("GatherND", ["scores", "selected"], ["found"]), helper.make_node("Gather", ["selected", "pair"], ["batch_and_box"], axis=1),
             helper.make_node("GatherND", ["boxes", "batch_and_box"], ["kept"]), helper.make_node("Shape", ["found"], ["number"]),
             helper.make_node("Min", ["number", "ten"], ["k"]), helper.make_node("TopK", ["found", "k"], ["best", "order"]),
             helper.make_node("Gather", ["kept", "order"], ["result"], axis=0)]
    constants = {"most": np.array([random.integers(1, 12)], np.int64), "overlap": np.array([random.choice([0.0, 0.3, 0.9])], np.float32),
                 "least": np.array([random.choice([-1.0, 0.2, 5.0])], np.float32), "pair": np.array([0, 2], np.int64), "ten": np.array([10], np.int64)}
    return Case(nodes, {"boxes": places, "scores": scores}, ["selected", "found", "kept", "best", "result"], constants,
                open={"boxes": ["b", "n", 4], "scores": ["b", classes, "n"]})


def computed(random):
    """Extents that are computed from data: a range of floats, slices, a shape, the best few, and how often a loop runs."""
    x = random.standard_normal((int(random.integers(4, 9)), 3)).astype(np.float32)
    number = random.integers(1, 4, 1)
    limit = np.float32(random.random() * 9)
    scalar, states = typed("c", TensorProto.BOOL, []), typed("s", TensorProto.FLOAT, None)
    inner = [helper.make_node("Sin", ["s"], ["t"]), helper.make_node("Identity", ["c"], ["d"])]
    body = helper.make_graph(inner, "body", [typed("i", TensorProto.INT64, []), scalar, states], [typed("d", TensorProto.BOOL, []), typed("t", TensorProto.FLOAT, None)])
    nodes = [helper.make_node("Add", ["number", "number"], ["twice"]), helper.make_node("Slice", ["x", "number", "far", "first"], ["rest"]),
             helper.make_node("Slice", ["x", "first", "number"], ["front"]), helper.make_node("MatMul", ["rest", "weights"], ["product"]),
             helper.make_node("Concat", ["number", "three"], ["shape"], axis=0), helper.make_node("Expand", ["row", "shape"], ["wide"]),
             helper.make_node("Concat", ["front", "wide"], ["both"], axis=0), helper.make_node("TopK", ["x", "number"], ["best", "places"], axis=0),
             helper.make_node("Squeeze", ["number"], ["trips"]), helper.make_node("Loop", ["trips", "", "x"], ["looped"], body=body),
             helper.make_node("Mul", ["limit", "half"], ["end"]), helper.make_node("Range", ["zero", "end", "step"], ["numbers"]),
             helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0), helper.make_node("Sub", ["numbers", "most"], ["shifted"])]
    constants = {"far": np.array([2**31], np.int64), "first": np.array([0], np.int64), "weights": random.standard_normal((3, 4)).astype(np.float32),
                 "three": np.array([3], np.int64), "row": random.standard_normal((1, 3)).astype(np.float32), "half": np.float32(0.5), "zero": np.float32(0.25), "step": np.float32(0.75)}
    return Case(nodes, {"x": x, "number": number, "limit": np.array(limit)}, ["twice", "rest", "product", "both", "best", "places", "looped", "shifted"], constants, open={"x": ["n", 3]})


def endless(random):
    """A loop without a number of iterations, with the greatest of all, or with one that it does not come to, that a condition ends: one that
    depends on data, or only counts. It collects where it has a bound; perhaps it never begins."""
    counts, reads_number = random.random() < 0.5, random.random() < 0.5
    trips = random.choice([None, 2 ** 63 - 1, 3000])
    collects = bool(counts or trips == 3000)
    state = np.abs(random.standard_normal((2, 3))).astype(np.float32) + np.float32(0.1)
    shape = [2, 3]
    inner = [helper.make_node("Mul", ["s", "less"], ["u"]), helper.make_node("Add", ["n", "one"], ["m"]), helper.make_node("ReduceSum", ["u"], ["total"], keepdims=0)]
    inner.append(helper.make_node("Less", ["m", "most"], ["on"]) if counts else helper.make_node("Greater", ["total", "limit"], ["on"]))
    inner += [helper.make_node("Cast", ["i" if reads_number else "n"], ["f"], to=TensorProto.FLOAT), helper.make_node("Cos", ["f"], ["k"]),
              helper.make_node("Mul", ["k", "small"], ["d"]), helper.make_node("Add", ["u", "d"], ["t"])]
    body = helper.make_graph(inner, "body", [typed("i", TensorProto.INT64, []), typed("go", TensorProto.BOOL, []), typed("s", TensorProto.FLOAT, shape), typed("n", TensorProto.INT64, [])],
                             [typed("on", TensorProto.BOOL, []), typed("t", TensorProto.FLOAT, shape), typed("m", TensorProto.INT64, [])]
                             + ([typed("u", TensorProto.FLOAT, shape)] if collects else []))
    start = "" if counts else random.choice(["", "start"])
    outputs = ["last", "count"] + (["all"] if collects else [])
    nodes = [helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0), helper.make_node("Greater", ["sum", "limit"], ["start"]),
             helper.make_node("Loop", ["trips" if trips else "", start, "x", "zero"], outputs, body=body), helper.make_node("Neg", ["last"], ["r"])]
    constants = {"trips": np.int64(trips or 0), "less": np.float32(random.choice([0.93, 0.97])), "limit": np.float32(random.choice([0.4, 2.5])), "zero": np.int64(0),
                 "one": np.int64(1), "small": np.float32(0.01), "most": np.int64(random.choice([1, 2, 7, 3001]))}
    return Case(nodes, {"x": state}, ["r", "count"] + outputs[2:], constants)


def sequences(random):
    """Lists of rows: taken apart, changed, grown by a loop that is unrolled, stays one, or runs as often as an extent says, and put together."""
    rows, width = int(random.integers(3, 6)), int(random.integers(2, 5))
    trips = random.choice([3, 3000, 0])
    constants = {"one": np.int64(1), "sizes": np.array([1] * (rows - 2) + [2]), "place": np.int64(random.choice([0, 1, -1])), "trips": np.int64(trips),
                 "less": np.float32(0.9), "zero": np.float32(0), "nothing": np.int64(0)}
    nodes = [helper.make_node("SplitToSequence", ["x"] + ["one"] * (random.random() < 0.5), ["rows"], axis=0, keepdims=0),
             helper.make_node("SplitToSequence", ["x", "sizes"], ["parts"], axis=0), helper.make_node("ConcatFromSequence", ["parts"], ["whole"], axis=0),
             helper.make_node("SequenceAt", ["rows", "place"], ["row"]), helper.make_node("SequenceLength", ["rows"], ["many"])]
    held = "rows"
    for step in range(int(random.integers(1, 4))):
        given = ["place"] if random.random() < 0.5 else []
        kind = random.choice(["SequenceInsert", "SequenceErase", "Identity"])
        inputs = {"SequenceInsert": [held, "row"] + given, "SequenceErase": [held] + given, "Identity": [held]}[kind]
        nodes.append(helper.make_node(kind, inputs, [f"held{step}"]))
        held = f"held{step}"
    state, row = typed("s", TensorProto.FLOAT, [width]), helper.make_tensor_type_proto(TensorProto.FLOAT, [width])
    sequence = lambda name: helper.make_value_info(name, helper.make_sequence_type_proto(row))
    inner = [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Mul", ["s", "less"], ["u"]), helper.make_node("Add", ["u", "row"], ["t"]),
             helper.make_node("SequenceInsert", ["grown", random.choice(["t", "u"])], ["more"])]
    body = helper.make_graph(inner, "body", [typed("i", TensorProto.INT64, []), typed("go", TensorProto.BOOL, []), state, sequence("grown")],
                             [typed("on", TensorProto.BOOL, []), typed("t", TensorProto.FLOAT, [width]), sequence("more")])
    if random.random() < 0.3:
        nodes.append(helper.make_node("SequenceEmpty", [], ["start"]))
    else:
        nodes.append(helper.make_node("Identity", [held], ["start"]))
    nodes += [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Gather", ["shape", "nothing"], ["extent"]),
              helper.make_node("Loop", ["trips" if trips else "extent", "", "row", "start"], ["state", "all"], body=body)]
    joined = helper.make_node("ConcatFromSequence", ["all"], ["joined"], axis=int(random.choice([0, -1])), new_axis=int(random.random() < 0.5))
    nodes += [joined, helper.make_node("SequenceLength", ["all"], ["length"]), helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
              helper.make_node("Greater", ["sum", "zero"], ["is"]), helper.make_node("Cast", ["is"], ["where"], to=TensorProto.INT64),
              helper.make_node("SequenceAt", ["all", "where"], ["chosen"]), helper.make_node("Neg", ["joined"], ["r"])]
    x = random.standard_normal((rows, width)).astype(np.float32)
    return Case(nodes, {"x": x}, ["r", "state", "length", "whole", "many", "chosen"], constants)


def places(random):
    """A loop that reads a part of a tensor where its number, or a counter of its own, says, and writes where that does."""
    rows, width = int(random.choice([5, 600])), int(random.integers(1, 4))
    own, backwards = random.random() < 0.5, random.random() < 0.4
    at = "n" if own else "i"
    inner = [helper.make_node("Add", ["n", "one"], ["m"]), helper.make_node("Less", ["m", "rows"], ["on"])]
    inner.append(helper.make_node("Sub", ["final", at], ["p"]) if backwards else helper.make_node("Identity", [at], ["p"]))
    inner += [helper.make_node("Unsqueeze", ["p", "axis"], ["from"]), helper.make_node("Add", ["from", "one"], ["behind"]),
              helper.make_node("Min", ["behind", "rows"], ["to"]), helper.make_node("Slice", ["x", "from", "to", "axis"], ["part"]),
              helper.make_node("Mul", ["part", "factor"], ["scaled"]), helper.make_node("Shape", ["scaled"], ["shape"]),
              helper.make_node("Expand", ["p", "shape"], ["where"]), helper.make_node("ScatterElements", ["s", "where", "scaled"], ["t"], axis=0)]
    body = helper.make_graph(inner, "body", [typed("i", TensorProto.INT64, []), typed("go", TensorProto.BOOL, []), typed("s", TensorProto.FLOAT, [rows, width]), typed("n", TensorProto.INT64, [])],
                             [typed("on", TensorProto.BOOL, []), typed("t", TensorProto.FLOAT, [rows, width]), typed("m", TensorProto.INT64, []), typed("part", TensorProto.FLOAT, [1, width])])
    constants = {"one": np.int64(1), "rows": np.int64(rows), "final": np.int64(rows - 1), "axis": np.array([0]), "factor": np.float32(random.choice([2.0, -0.5])),
                 "zero": np.int64(0), "trips": np.int64(random.choice([2 ** 63 - 1, rows, rows - 2])), "state": np.zeros((rows, width), np.float32)}
    nodes = [helper.make_node("Loop", ["trips", "", "state", "zero"], ["last", "count", "parts"], body=body), helper.make_node("Neg", ["last"], ["r"])]
    return Case(nodes, {"x": random.standard_normal((rows, width)).astype(np.float32)}, ["r", "count", "parts"], constants)


KINDS = {"lstm": lambda r: recurrent("LSTM", r), "gru": lambda r: recurrent("GRU", r), "rnn": lambda r: recurrent("RNN", r), "if": branch, "loop": loop, "while": until,
         "scan": scan, "top_k": top_k, "scatter": scatter, "function": function, "inside": inside,
         "non_zero": non_zero, "unique": unique, "compress": compress, "boxes": boxes, "computed": computed, "endless": endless,
         "sequences": sequences, "places": places}


def network(kind, seed, number):
    """One of the networks of a kind, each of its own seed."""
    return KINDS[kind](np.random.default_rng([seed, list(KINDS).index(kind), number]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", nargs="?", default="")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as folder:
        made = 0
        for kind in KINDS:
            for number in range(options.count if options.text in kind else 0):
                case = network(kind, options.seed, number)
                if case.open or not options.open:
                    case.write(pathlib.Path(folder) / f"{kind}_{number}", options.open)
                    made += 1
        # none may be refused
        reasons = pathlib.Path(folder) / "reasons.txt"
        reasons.write_text("# none\n")
        command = ["cargo", "run", "--release", "--quiet", "--example", "onnx_backend_tests", "--", folder, "--reasons", str(reasons)]
        return subprocess.run(command + ["--compiled"] * options.compiled, cwd=root).returncode


if __name__ == "__main__":
    sys.exit(main())
