#!/usr/bin/env python3
"""Writes the networks in open/, whose extents are known only when they run, with what ONNX Runtime makes of them at some extents,
or onnx itself of what ONNX Runtime does not know.

open/NAME/model.onnx, and open/NAME/case_K/{input_I,output_I}.pb for each case. Needs onnx, onnxruntime and numpy.
"""
import pathlib
import shutil

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

HERE = pathlib.Path(__file__).parent / "open"
RANDOM = np.random.default_rng(7)
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def node(kind, inputs, outputs, name=None, **attributes):
    """`-` stands for an input that is left out."""
    return helper.make_node(kind, ["" if name == "-" else name for name in inputs.split()], outputs.split(), name or f"{kind}_{outputs.split()[0]}", **attributes)


def ints(*values):
    return np.array(values, np.int64)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def model(nodes, inputs, outputs, constants=None, opset=18, domains=()):
    """`inputs`: (type, extents) by name; outputs are floats of any extents, or (type, rank). `domains`: those beside ONNX's own."""
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info(name, *about) for name, about in inputs.items()],
        [helper.make_tensor_value_info(name, kind, [None] * rank) for name, (kind, rank) in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()])
    sets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    net = helper.make_model(graph, opset_imports=sets, ir_version=9)
    onnx.checker.check_model(net)
    return net


def networks():
    """Name, network, the extents of some cases, by name, and what runs it, if that is not ONNX Runtime."""
    # what exporters make of x.reshape(batch, sequence, heads, width) and back, with attention between
    yield "heads", model(
        [node("Shape", "x", "shape"), node("Gather", "shape zero", "b"), node("Gather", "shape one", "s"),
         node("Unsqueeze", "b front", "b1"), node("Unsqueeze", "s front", "s1"),
         node("Concat", "b1 s1 two three4", "split", axis=0), node("Reshape", "x split", "h"),
         node("Transpose", "h", "q", perm=[0, 2, 1, 3]), node("Transpose", "h", "k", perm=[0, 2, 3, 1]),
         node("MatMul", "q k", "scores"), node("Softmax", "scores", "p", axis=-1), node("MatMul", "p q", "m"),
         node("Transpose", "m", "t", perm=[0, 2, 1, 3]), node("Mul", "b s", "bs"), node("Mul", "bs eight", "all"),
         node("Div", "all b", "whole"), node("Div", "whole eight", "again"), node("Unsqueeze", "again front", "again1"),
         node("Concat", "b1 again1 minus1", "join", axis=0), node("Reshape", "t join", "y")],
        {"x": (FLOAT, ["batch", "sequence", 8])}, {"y": (FLOAT, 3)},
        {"zero": ints(0)[0], "one": ints(1)[0], "front": ints(0), "two": ints(2), "three4": ints(4), "eight": ints(8)[0],
         "minus1": ints(-1)}), [dict(batch=2, sequence=5), dict(batch=1, sequence=1), dict(batch=3, sequence=9)]
    # past and new, positions and a mask of what has come, as in a decoder
    yield "past", model(
        [node("Shape", "past", "ps"), node("Gather", "ps one", "before"), node("Shape", "x", "xs"),
         node("Gather", "xs one", "new"), node("Add", "before new", "all"), node("Range", "zero new step", "r"),
         node("Add", "r before", "positions"), node("Range", "zero all step", "places"),
         node("Unsqueeze", "positions last", "rows"), node("LessOrEqual", "places rows", "seen"),
         node("Where", "seen nothing low", "bias"), node("Concat", "past x", "present", axis=1),
         node("Transpose", "present", "keys", perm=[0, 2, 1]), node("MatMul", "x keys", "scores"),
         node("Add", "scores bias", "masked"), node("Softmax", "masked", "p", axis=-1),
         node("MatMul", "p present", "m"), node("Gather", "m end", "y", axis=1)],
        {"past": (FLOAT, ["batch", "past", 4]), "x": (FLOAT, ["batch", "new", 4])}, {"y": (FLOAT, 2), "present": (FLOAT, 3)},
        {"zero": ints(0)[0], "one": ints(1)[0], "step": ints(1)[0], "last": ints(-1), "end": ints(-1)[0],
         "nothing": np.float32(0), "low": np.float32(-1e9)}), [
             dict(batch=1, past=0, new=3), dict(batch=2, past=4, new=1), dict(batch=2, past=3, new=5)]
    # slices with bounds of either sign, forwards and backwards, some of them computed
    yield "slices", model(
        [node("Shape", "x", "shape"), node("Slice", "shape one two", "n"), node("Div", "n two", "half"),
         node("Slice", "x half far one", "a"), node("Slice", "x minus3 far one", "b"), node("Slice", "x zero minus1 one", "c"),
         node("Slice", "x minus1 least one back", "d"), node("Slice", "x one far one two", "e"),
         node("Slice", "x zero half one", "f"), node("Slice", "x two five one", "g"),
         node("Concat", "a b c d e f g", "y", axis=1)],
        {"x": (FLOAT, [2, "length"])}, {"y": (FLOAT, 2)},
        {"zero": ints(0), "one": ints(1), "two": ints(2), "five": ints(5), "far": ints(2 ** 63 - 1), "minus1": ints(-1),
         "minus3": ints(-3), "least": ints(-2 ** 63), "back": ints(-1)}), [
             dict(length=1), dict(length=2), dict(length=3), dict(length=4), dict(length=8), dict(length=11)]
    # windows, padding and resizing over any height and width
    yield "pictures", model(
        [node("Conv", "x w", "a", strides=[2, 2], pads=[1, 1, 1, 1]), node("Relu", "a", "ar"),
         node("MaxPool", "ar", "b", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
         node("Shape", "ar", "shape"), node("Slice", "shape two four", "size"), node("Slice", "shape zero two", "outer"),
         node("Concat", "outer size", "sizes", axis=0), node("Resize", "b - - sizes", "c", mode="linear"),
         node("Concat", "ar c", "d", axis=1), node("Pad", "d pads", "e", mode="reflect"),
         node("Conv", "e v", "f", auto_pad="SAME_UPPER", strides=[2, 1]),
         node("AveragePool", "f", "g", kernel_shape=[2, 2], pads=[1, 1, 0, 0], ceil_mode=1, strides=[2, 2]),
         node("Resize", "g - doubled", "h", mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
         node("GlobalAveragePool", "h", "i"), node("Mul", "h i", "y")],
        {"x": (FLOAT, ["batch", 3, "height", "width"])}, {"y": (FLOAT, 4)},
        {"w": floats(4, 3, 3, 3), "v": floats(2, 8, 3, 3), "zero": ints(0), "two": ints(2), "four": ints(4),
         "pads": ints(0, 0, 1, 0, 0, 0, 0, 1), "doubled": np.array([1, 1, 2, 1.5], np.float32)}), [
             dict(batch=1, height=8, width=8), dict(batch=2, height=11, width=17), dict(batch=1, height=7, width=10)]
    # tensors of as many ones, zeros and copies as there are inputs
    yield "filled", model(
        [node("Shape", "x", "shape"), node("ConstantOfShape", "shape", "ones", value=helper.make_tensor("v", FLOAT, [1], [1.0])),
         node("Slice", "shape zero one", "n"), node("Concat", "n three", "wide", axis=0), node("Expand", "row wide", "rows"),
         node("Equal", "shape minus", "unset"), node("Where", "unset shape shape", "same"), node("Expand", "x same", "again"),
         node("Size", "x", "count"), node("Cast", "count", "many", to=FLOAT), node("ReduceMean", "x", "mean", keepdims=0),
         node("ReduceMean", "x axis", "means", keepdims=1), node("Add", "ones again", "a"), node("Mul", "a means", "b"),
         node("MatMul", "b x", "c"), node("Add", "c rows", "d"), node("Mul", "d many", "e"), node("Add", "e mean", "y")],
        {"x": (FLOAT, ["n", "n"])}, {"y": (FLOAT, 2)},
        {"zero": ints(0), "one": ints(1), "three": ints(1), "row": floats(1, 1), "minus": ints(-1, -1), "axis": ints(1)}), [
            dict(n=1), dict(n=4), dict(n=7)]
    # a name for each input where all have to be equal, or what the network says
    yield "equated", model(
        [node("Add", "x y", "a"), node("MatMul", "a w", "b"), node("Concat", "b z", "c", axis=1), node("Add", "c u", "y0")],
        {"x": (FLOAT, ["a", "depth"]), "y": (FLOAT, ["b", "depth"]), "z": (FLOAT, ["c", "more"]), "u": (FLOAT, ["d", "all"])},
        {"y0": (FLOAT, 2)}, {"w": floats(5, 3)}), [
            dict(a=2, b=2, c=2, d=2, depth=5, more=4, all=7), dict(a=6, b=6, c=6, d=6, depth=5, more=1, all=4)]
    # sums over time, normalised, and where the largest is
    yield "reduced", model(
        [node("ReduceMean", "x time", "mean", keepdims=1), node("Sub", "x mean", "centred"),
         node("ReduceL2", "centred time", "norm", keepdims=1), node("Div", "centred norm", "unit"),
         node("ReduceMax", "unit time", "largest", keepdims=0), node("LayerNormalization", "x g h", "l", axis=-1),
         node("ArgMax", "unit", "place", axis=1, keepdims=0), node("Cast", "place", "p", to=FLOAT),
         node("Transpose", "x", "xt", perm=[0, 2, 1]), node("InstanceNormalization", "xt gi hi", "i"),
         node("ReduceSum", "i all", "s", keepdims=0), node("ReduceMean", "l time", "lm", keepdims=0),
         node("Add", "largest p", "a"), node("Add", "a lm", "b"), node("Add", "b s", "y")],
        {"x": (FLOAT, ["batch", "time", 6])}, {"y": (FLOAT, 2)},
        {"time": ints(1), "all": ints(-1), "g": floats(6), "h": floats(6), "gi": floats(6), "hi": floats(6)}), [
            dict(batch=1, time=2), dict(batch=3, time=10), dict(batch=2, time=5)]
    yield "unnamed", model([node("Relu", "x", "y")], {"x": (FLOAT, ["?", "-1", None, "time", "?"])}, {"y": (FLOAT, 5)}), [
        {"x[0]": 2, "x[1]": 3, "x[2]": 4, "time": 5, "x[4]": 6}]
    # both directions over sequences of their own lengths, between states that come in and go out
    yield "tagger", model(
        [node("LSTM", "x w r b lengths h c p", "y h1 c1", direction="bidirectional", hidden_size=5), node("Relu", "y", "z")],
        {"x": (FLOAT, ["steps", "batch", 3]), "lengths": (TensorProto.INT32, ["batch"]), "h": (FLOAT, [2, "batch", 5]),
         "c": (FLOAT, [2, "batch", 5])}, {"z": (FLOAT, 4), "h1": (FLOAT, 3), "c1": (FLOAT, 3)},
        {"w": floats(2, 20, 3), "r": floats(2, 20, 5), "b": floats(2, 40), "p": floats(2, 15)}), [
            dict(steps=1, batch=2), dict(steps=6, batch=3), dict(steps=7, batch=1), dict(steps=16, batch=2)]
    # one backwards behind one forwards, both without any state that is given
    yield "layers", model(
        [node("GRU", "x w r b", "a last", hidden_size=4, linear_before_reset=1), node("Squeeze", "a one", "s"),
         node("RNN", "s v u", "y first", hidden_size=6, direction="reverse", activations=["Relu"])],
        {"x": (FLOAT, ["steps", "batch", 3])}, {"y": (FLOAT, 4), "last": (FLOAT, 3), "first": (FLOAT, 3)},
        {"w": floats(1, 12, 3), "r": floats(1, 12, 4) / 4, "b": floats(1, 24), "one": ints(1), "v": floats(1, 6, 4),
         "u": floats(1, 6, 6) / 8}), [
            dict(steps=1, batch=1), dict(steps=2, batch=3), dict(steps=9, batch=2), dict(steps=64, batch=1)]
    # axes that do not come first, and both directions, with a value from outside
    body = helper.make_graph(
        [node("Mul", "state w", "kept"), node("Add", "kept a", "sum"), node("Add", "sum b", "next"), node("Tanh", "next", "shown"),
         node("Sub", "a b", "apart")], "body",
        [helper.make_tensor_value_info(name, FLOAT, None) for name in ("state", "a", "b")],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in ("next", "shown", "apart")])
    yield "scan", model(
        [node("Scan", "s x y", "last all differences", body=body, num_scan_inputs=2, scan_input_axes=[1, 0], scan_input_directions=[0, 1],
              scan_output_axes=[1, -1], scan_output_directions=[1, 0])],
        {"s": (FLOAT, ["batch", 3]), "x": (FLOAT, ["batch", "steps", 3]), "y": (FLOAT, ["steps", "batch", 3])},
        {"last": (FLOAT, 2), "all": (FLOAT, 3), "differences": (FLOAT, 3)}, {"w": floats(3) / 4}), [
            dict(steps=1, batch=2), dict(steps=2, batch=1), dict(steps=5, batch=3), dict(steps=30, batch=2)]
    # as often as there are columns, and one more time, with the number of the iteration
    body = helper.make_graph(
        [node("Cast", "i", "number", to=FLOAT), node("Mul", "state half", "kept"), node("Add", "kept number", "next"),
         node("Neg", "next", "shown"), node("Identity", "go", "on")], "body",
        [helper.make_tensor_value_info("i", INT, []), helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("state", FLOAT, None)],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("next", FLOAT, None),
         helper.make_tensor_value_info("shown", FLOAT, None)])
    yield "loop", model(
        [node("Shape", "x", "shape"), node("Gather", "shape one", "columns"), node("Add", "columns one", "trips"),
         node("Loop", "trips - x", "y all", body=body)], {"x": (FLOAT, ["rows", "columns"])}, {"y": (FLOAT, 2), "all": (FLOAT, 3)},
        {"one": ints(1)[0], "half": np.float32(0.5)}), [dict(rows=2, columns=1), dict(rows=1, columns=6), dict(rows=3, columns=11)]


    # until a sum is large, or all columns are gone through
    body = helper.make_graph(
        [node("Mul", "state two", "next"), node("ReduceMax", "next", "most", keepdims=0), node("Less", "most enough", "on")], "body",
        [helper.make_tensor_value_info("i", INT, []), helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("state", FLOAT, None)],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("next", FLOAT, None)])
    yield "until", model(
        [node("Shape", "x", "shape"), node("Gather", "shape one", "columns"), node("Loop", "columns - x", "y", body=body)],
        {"x": (FLOAT, ["rows", "columns"])}, {"y": (FLOAT, 2)},
        {"one": ints(1)[0], "two": np.float32(2), "enough": np.float32(100)}), [
            dict(rows=2, columns=1), dict(rows=1, columns=5), dict(rows=3, columns=12), dict(rows=1, columns=13)]
    # with the batch in front, which ONNX Runtime does not take
    weights = {"w": floats(2, 12, 3), "r": floats(2, 12, 4), "b": floats(2, 24)}
    inputs = {"x": (FLOAT, ["batch", "steps", 3]), "lengths": (TensorProto.INT32, ["batch"]), "h": (FLOAT, ["batch", 2, 4])}
    outputs = {"y": (FLOAT, 4), "last": (FLOAT, 3)}
    about = dict(direction="bidirectional", hidden_size=4)
    turned = [node("Transpose", "x", "xt", perm=[1, 0, 2]), node("Transpose", "h", "ht", perm=[1, 0, 2]),
              node("GRU", "xt w r b lengths ht", "yt lt", **about), node("Transpose", "yt", "y", perm=[2, 0, 1, 3]),
              node("Transpose", "lt", "last", perm=[1, 0, 2])]
    yield ("batchwise", model([node("GRU", "x w r b lengths h", "y last", layout=1, **about)], inputs, outputs, weights),
           [dict(steps=1, batch=1), dict(steps=4, batch=2), dict(steps=11, batch=3)],
           runtime(model(turned, inputs, outputs, weights)))
    # the state of a token mixer, and of the convolution before it, as they come in and go out
    mixers = model(
        [node("CausalConvWithState", "x w b before", "c after", activation="silu"), node("Transpose", "c", "t", perm=[0, 2, 1]),
         node("Split", "t sizes", "q wide v g r", axis=2), node("Mul", "wide quarter", "k"), node("Abs", "g", "faded"),
         node("Neg", "faded", "decay"), node("Sigmoid", "r", "rate"),
         node("LinearAttention", "q k v state decay rate", "y last", q_num_heads=4, kv_num_heads=2, update_rule="gated_delta")],
        {"x": (FLOAT, ["batch", 26, "steps"]), "before": (FLOAT, ["batch", 26, 3]), "state": (FLOAT, ["batch", 2, 3, 2])},
        {"y": (FLOAT, 3), "after": (FLOAT, 3), "last": (FLOAT, 4)},
        {"w": floats(26, 1, 4), "b": floats(26), "sizes": ints(12, 6, 4, 2, 2), "quarter": np.float32(0.25)}, opset=27)
    yield "mixers", mixers, [dict(steps=1, batch=2), dict(steps=2, batch=1), dict(steps=5, batch=3), dict(steps=70, batch=1)], reference(mixers)


    # a recurrence in each branch, of which one runs
    lstm = lambda name, direction: helper.make_graph(
        [node("LSTM", "x w r", f"{name}_y {name}_h", direction=direction, hidden_size=4)], name, [],
        [helper.make_tensor_value_info(f"{name}_{part}", FLOAT, None) for part in "yh"])
    yield "either", model(
        [node("ReduceSum", "x", "sum", keepdims=0), node("Less", "sum zero", "low"),
         node("If", "low", "y h", then_branch=lstm("back", "reverse"), else_branch=lstm("forth", "forward"))],
        {"x": (FLOAT, ["steps", "batch", 3])}, {"y": (FLOAT, 4), "h": (FLOAT, 3)},
        {"w": floats(1, 16, 3), "r": floats(1, 16, 4), "zero": np.float32(0)}), [
            dict(steps=at + 1, batch=1 + at % 3) for at in range(6)]
    # one element is left of sequences of some lengths only
    yield "squeezed", model(
        [node("Conv", "x w", "c", strides=[4]), node("MaxPool", "c", "p", kernel_shape=[2], strides=[2]),
         node("Squeeze", "p last", "s"), node("Neg", "s", "y")],
        {"x": (FLOAT, ["batch", 2, "length"])}, {"y": (FLOAT, 2)}, {"w": floats(3, 2, 3), "last": ints(2)}), [
            dict(batch=1, length=7), dict(batch=2, length=14), dict(batch=3, length=10)]
    # a decoder's attention as it is written for ONNX Runtime: the total length follows from the mask's extent
    yield "grouped", model(
        [node("MatMul", "x w", "all"), node("Shape", "mask", "extents"), node("Split", "extents", "batch total", num_outputs=2),
         node("Cast", "total", "total32", to=TensorProto.INT32), node("Sub", "total one", "before"),
         node("Cast", "before", "before32", to=TensorProto.INT32), node("Expand", "before32 batch", "lengths"),
         node("GroupQueryAttention", "all - - keys values lengths total32 cosine sine", "y key value", domain="com.microsoft",
              num_heads=2, kv_num_heads=1, do_rotary=1)],
        {"x": (FLOAT, ["batch", "new", 4]), "mask": (FLOAT, ["batch", "total"]),
         "keys": (FLOAT, ["batch", 1, "past", 16]), "values": (FLOAT, ["batch", 1, "past", 16])},
        {"y": (FLOAT, 3), "key": (FLOAT, 4), "value": (FLOAT, 4)},
        {"w": floats(4, 64), "cosine": floats(32, 8), "sine": floats(32, 8), "one": ints(1)}, domains=["com.microsoft"]), [
            dict(batch=2, new=1, past=3, total=4), dict(batch=1, new=1, past=20, total=21), dict(batch=1, new=3, past=7, total=10)]
    # what was halved twice, doubled and added to what was halved once: for multiples of 4
    yield "doubled", model(
        [node("Conv", "x w", "a", strides=[2, 2], pads=[1, 1, 1, 1]), node("Conv", "a v", "b", strides=[2, 2], pads=[1, 1, 1, 1]),
         node("Resize", "b - scales", "c", mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
         node("Add", "a c", "d"), node("MaxPool", "d", "e", kernel_shape=[2, 2], strides=[2, 2]), node("Add", "b e", "y")],
        {"x": (FLOAT, ["batch", 2, "height", "width"])}, {"y": (FLOAT, 4)},
        {"w": floats(3, 2, 3, 3), "v": floats(3, 3, 3, 3), "scales": np.array([1, 1, 2, 2], np.float32)}), [
            dict(batch=1, height=8, width=4), dict(batch=2, height=12, width=16)]
    # nothing may be found; then an exporter gives nothing at once
    empty = helper.make_graph(
        [helper.make_node("Constant", [], ["empty"], value=numpy_helper.from_array(np.zeros(0, np.float32)))], "empty", [],
        [helper.make_tensor_value_info("empty", FLOAT, [0])])
    some = helper.make_graph(
        [node("ReduceMax", "found", "most", keepdims=0), node("Mul", "chosen most", "moved")], "some", [],
        [helper.make_tensor_value_info("moved", FLOAT, [None])])
    yield "nothing", model(
        [node("Greater", "x bound", "large"), node("NonZero", "large", "at"), node("Transpose", "at", "places", perm=[1, 0]),
         node("GatherND", "x places", "chosen"), node("Unsqueeze", "chosen last", "column"), node("Concat", "column column", "found", axis=1),
         node("Shape", "found", "shape"), node("ReduceProd", "shape", "elements", keepdims=0), node("Equal", "elements zero", "none"),
         node("Cast", "none", "flag", to=TensorProto.BOOL), node("If", "flag", "y", then_branch=empty, else_branch=some)],
        {"x": (FLOAT, ["n"])}, {"y": (FLOAT, 1)}, {"bound": np.float32(1.2), "last": ints(-1), "zero": ints(0)[0]}), [
            dict(n=1), dict(n=40), dict(n=7)]
    # what is put around follows from extents: a window of positions for each length, as in relative attention
    yield "padded", model(
        [node("Shape", "x", "shape"), node("Gather", "shape one", "n"), node("Sub", "n four", "short"), node("Max", "short zero", "pad"),
         node("Unsqueeze", "pad front", "pad1"), node("Concat", "nothing pad1 nothing pad1", "pads", axis=0),
         node("Pad", "table pads", "window"), node("MatMul", "x window", "y"),
         node("Pad", "x pads few axes", "z"), node("Pad", "x pads - axes", "u", mode="edge")],
        {"x": (FLOAT, ["batch", "n", 5])}, {"y": (FLOAT, 3), "z": (FLOAT, 3), "u": (FLOAT, 3)},
        {"table": floats(5, 3), "one": ints(1)[0], "four": ints(4)[0], "zero": ints(0)[0], "front": ints(0), "nothing": ints(0),
         "few": np.float32(0.5), "axes": ints(0, 1)}), [dict(batch=1, n=2), dict(batch=2, n=4), dict(batch=3, n=9)]
    # exporters name the axes of each input by themselves; the network needs some to be equal
    yield "apart", model(
        [node("Shape", "mask", "shape"), node("Gather", "shape one", "n"), node("Gather", "shape zero", "b"), node("Unsqueeze", "b front", "b1"),
         node("Unsqueeze", "n front", "n1"), node("Concat", "b1 minus1 three", "split", axis=0), node("Reshape", "x split", "parts"),
         node("Mul", "b n", "rows"), node("Unsqueeze", "rows front", "rows1"), node("Concat", "rows1 six", "joint", axis=0),
         node("Reshape", "x joint", "z"), node("ReduceSum", "parts last", "sums", keepdims=0), node("Slice", "sums front n1 second", "some"),
         node("Add", "some mask", "y")],
        {"x": (FLOAT, ["rows", "places", 6]), "mask": (FLOAT, ["batch", "n"])}, {"y": (FLOAT, 2), "z": (FLOAT, 2)},
        {"one": ints(1)[0], "zero": ints(0)[0], "front": ints(0), "minus1": ints(-1), "three": ints(3), "six": ints(6), "last": ints(-1),
         "second": ints(1)}), [dict(rows=2, places=5, batch=2, n=5), dict(rows=1, places=1, batch=1, n=1), dict(rows=3, places=8, batch=3, n=8)]
    # spectra of a signal of any length, and transforms along an axis that is known, and along one that is not; ONNX Runtime's err by 3e-6
    spectra = model(
        [node("Mul", "x soft", "quiet"), node("Unsqueeze", "quiet last", "signal"), node("STFT", "signal step window", "frames"), node("STFT", "signal step - long", "others"),
         node("ReduceSumSquare", "frames last", "y", keepdims=0), node("ReduceSumSquare", "others last", "z", keepdims=0),
         node("Unsqueeze", "y last", "rows"), node("DFT", "rows - axis", "u"), node("DFT", "u - first", "v"),
         node("DFT", "u - first", "w", inverse=1)],
        {"x": (FLOAT, ["batch", "samples"])}, {"y": (FLOAT, 3), "z": (FLOAT, 3), "u": (FLOAT, 4), "v": (FLOAT, 4), "w": (FLOAT, 4)},
        {"last": ints(-1), "step": ints(5)[0], "window": np.hanning(16).astype(np.float32), "long": ints(528)[0], "axis": ints(2)[0], "first": ints(1)[0],
         "soft": np.float32(0.05)}, opset=20)
    yield "spectra", spectra, [
            dict(batch=1, samples=528), dict(batch=2, samples=540), dict(batch=3, samples=577)], reference(spectra)
    # a part of nothing, as of heads that are rotated whole, is moved, and joined to the others
    yield "hollow", model(
        [node("Slice", "x four far last", "rest"), node("Neg", "rest", "moved"), node("Concat", "moved rest", "nothing", axis=2),
         node("Reshape", "nothing flat", "again"), node("Mul", "x x", "squares"), node("Concat", "squares again", "y", axis=-1)],
        {"x": (FLOAT, ["batch", "n", 4])}, {"y": (FLOAT, 3)},
        {"four": ints(4), "far": ints(2**62), "last": ints(-1), "flat": ints(0, 0, 0)}), [dict(batch=1, n=1), dict(batch=2, n=5)]
    # as many regions as there are
    yield "regions", model(
        [node("Shape", "boxes", "shape"), node("Slice", "shape front one", "n"), node("ConstantOfShape", "n", "of", value=numpy_helper.from_array(ints(0))),
         node("Abs", "boxes", "positive"), node("Split", "positive", "start size", axis=1, num_outputs=2), node("Add", "start size", "end"),
         node("Concat", "start end", "regions", axis=1), node("RoiAlign", "image regions of", "y", output_height=2, output_width=3, sampling_ratio=2),
         node("RoiAlign", "image regions of", "z", output_height=2, output_width=2, sampling_ratio=0)],
        {"boxes": (FLOAT, ["n", 4])}, {"y": (FLOAT, 4), "z": (FLOAT, 4)},
        {"image": floats(1, 2, 6, 5), "front": ints(0), "one": ints(1)}), [dict(n=1), dict(n=6), dict(n=33)]
    # attention to positions relative to one's own, of a table that is cut, or that is put amid zeros
    yield "positions", model(
        [node("Shape", "x", "shape"), node("Gather", "shape zero", "b"), node("Gather", "shape one", "n"),
         node("Unsqueeze", "b front", "b1"), node("Unsqueeze", "n front", "n1"),
         node("Sub", "six n", "start"), node("Unsqueeze", "start front", "start1"),
         node("Add", "n five", "end"), node("Unsqueeze", "end front", "end1"),
         node("Slice", "table start1 end1 front", "near"), node("Transpose", "near", "near_t", perm=[1, 0]),
         node("MatMul", "x near_t", "apart"), node("Pad", "apart pads", "wider"),
         node("Mul", "n two", "width"), node("Unsqueeze", "width front", "width1"),
         node("Concat", "b1 width1 n1", "turned", axis=0), node("Reshape", "wider turned", "skewed"),
         node("Slice", "skewed second far second", "rest"), node("Sub", "width1 second", "odd"),
         node("Concat", "b1 n1 odd", "back", axis=0), node("Reshape", "rest back", "moved"),
         node("Div", "odd two", "half"), node("Add", "half second", "most"),
         node("Slice", "moved front most third", "by_place"), node("Transpose", "x", "x_t", perm=[0, 2, 1]),
         node("MatMul", "x x_t", "by_content"), node("Add", "by_content by_place", "y"),
         node("Sub", "n three", "more"), node("Max", "more zero", "more0"),
         node("Unsqueeze", "more0 front", "around"),
         node("Concat", "around front around front", "sides", axis=0), node("Pad", "few sides", "amid"),
         node("Transpose", "amid", "amid_t", perm=[1, 0]), node("MatMul", "x amid_t", "z")],
        {"x": (FLOAT, ["batch", "n", 16])}, {"y": (FLOAT, 3), "z": (FLOAT, 3)},
        {"table": floats(11, 16), "few": floats(5, 16), "zero": ints(0)[0], "one": ints(1)[0],
         "two": ints(2)[0], "three": ints(3)[0], "five": ints(5)[0], "six": ints(6)[0], "front": ints(0),
         "second": ints(1), "third": ints(2), "far": ints(2**62), "pads": ints(0, 0, 1, 0, 0, 0)}), [
            dict(batch=1, n=1), dict(batch=2, n=4), dict(batch=3, n=6)]
    # what is found is gone over by windows, and made longer
    yield "found", model(
        [node("Greater", "x bound", "large"), node("NonZero", "large", "at"),
         node("Transpose", "at", "places", perm=[1, 0]), node("GatherND", "x places", "chosen"),
         node("Unsqueeze", "chosen leading", "signal"), node("Conv", "signal single", "a"),
         node("Conv", "a around", "b", pads=[1, 1]),
         node("ConvTranspose", "b twice", "c", strides=[2], pads=[1, 1]),
         node("Resize", "c - scales", "y", mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
         node("MaxPool", "y", "z", kernel_shape=[3], strides=[2], pads=[1, 1])],
        {"x": (FLOAT, ["n"])}, {"y": (FLOAT, 3), "z": (FLOAT, 3)},
        {"bound": np.float32(0.2), "leading": ints(0, 1), "single": floats(3, 1, 1),
         "around": floats(2, 3, 3), "twice": floats(2, 2, 4), "scales": np.array([1, 1, 2], np.float32)}), [
            dict(n=40), dict(n=9), dict(n=60)]
    # loops as TensorFlow writes them: a counter of 32 bits is compared as a float, states hold limits and weights, and what a loop
    # goes through lies outside of it; the second ends as soon as a row is large
    about = lambda name, kind, *shape: helper.make_tensor_value_info(name, kind, shape)
    states = [about("count", TensorProto.INT32), about("h", FLOAT, 1, 3), about("limit", TensorProto.INT32), about("m", FLOAT, 3, 3)]
    inner = [node("Gather", "x count", "row"), node("MatMul", "h m", "hm"), node("Add", "hm row", "sum"), node("Tanh", "sum", "next"),
             node("Add", "count once", "more"), node("Cast", "more", "morefloat", to=FLOAT), node("Cast", "limit", "limitfloat", to=FLOAT),
             node("Less", "morefloat limitfloat", "below"), node("Identity", "limit", "samelimit"), node("Squeeze", "next front", "part")]
    ends = [node("ReduceMax", "row", "most", keepdims=0), node("Less", "most large", "small"), node("And", "below small", "on")]
    given = [about("i", INT), about("go", TensorProto.BOOL), *states]
    taken = lambda on: [about(on, TensorProto.BOOL), about("more", TensorProto.INT32), about("next", FLOAT, 1, 3), about("samelimit", TensorProto.INT32),
                        about("m", FLOAT, 3, 3), about("part", FLOAT, 3)]
    counts, until = helper.make_graph(inner, "counts", given, taken("below")), helper.make_graph(inner + ends, "until", given, taken("on"))
    yield "row_by_row", model(
        [node("Shape", "x", "shape"), node("Cast", "shape", "short", to=TensorProto.INT32), node("Gather", "short first", "n"),
         node("Cast", "n", "nfloat", to=FLOAT), node("Less", "none nfloat", "start"),
         node("Loop", "- start zero h0 n w", "c1 last l1 m1 all", name="counts", body=counts),
         node("Loop", "- start zero h0 n w", "c2 at l2 m2 some", name="until", body=until), node("Relu", "some", "found")],
        {"x": (FLOAT, ["rows", 3])}, {"last": (FLOAT, 2), "all": (FLOAT, 2), "at": (FLOAT, 2), "found": (FLOAT, 2)},
        {"first": ints(0)[0], "zero": np.int32(0), "once": np.int32(1), "none": np.float32(0), "front": ints(0), "large": np.float32(1.5),
         "h0": floats(1, 3), "w": floats(3, 3)}), [dict(rows=2), dict(rows=1), dict(rows=40)]
    # the bound of a counter is a state that comes towards it
    body = helper.make_graph(
        [node("Add", "low once", "lower"), node("Sub", "high once", "higher"), node("Less", "lower higher", "on"), node("Mul", "s two", "t")], "meet",
        [about("i", INT), about("go", TensorProto.BOOL), about("low", INT), about("high", INT), about("s", FLOAT, None)],
        [about("on", TensorProto.BOOL), about("lower", INT), about("higher", INT), about("t", FLOAT, None)])
    yield "meeting", model(
        [node("Shape", "x", "shape"), node("Squeeze", "shape", "n"), node("Add", "n once", "end"), node("Less", "zero end", "start"),
         node("Loop", "- start zero n x", "a b y", name="meet", body=body)],
        {"x": (FLOAT, ["rows"])}, {"y": (FLOAT, 1)}, {"zero": ints(0)[0], "once": ints(1)[0], "two": np.float32(2)}), [
            dict(rows=1), dict(rows=2), dict(rows=7), dict(rows=30)]
    # rows in a sequence, which one loop reads and another one grows until data end it, or their number does: `a and b` of a script
    rows = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [3]))
    sequence = lambda name: helper.make_value_info(name, rows)
    reads = helper.make_graph(
        [node("Identity", "go", "on"), node("SequenceAt", "apart i", "row"), node("Mul", "s half", "less"), node("Add", "less row", "t"),
         node("SequenceInsert", "grown t", "more")], "reads",
        [about("i", INT), about("go", TensorProto.BOOL), about("s", FLOAT, 3), sequence("grown")],
        [about("on", TensorProto.BOOL), about("t", FLOAT, 3), sequence("more")])
    least = helper.make_graph([node("Constant", "", "bound", value_int=6), node("Less", "m bound", "few")], "least", [], [about("few", TensorProto.BOOL)])
    never = helper.make_graph([node("Identity", "no", "none")], "never", [], [about("none", TensorProto.BOOL)])
    until = helper.make_graph(
        [node("Mul", "s twice", "t"), node("SequenceInsert", "grown t", "more"), node("Add", "n once", "m"), node("ReduceMax", "t", "most", keepdims=0),
         node("Less", "most large", "small"), node("If", "small", "on", then_branch=least, else_branch=never)], "until",
        [about("i", INT), about("go", TensorProto.BOOL), about("s", FLOAT, 3), about("n", INT), sequence("grown")],
        [about("on", TensorProto.BOOL), about("t", FLOAT, 3), about("m", INT), sequence("more")])
    yield "listed", model(
        [node("SplitToSequence", "x once", "apart", axis=0, keepdims=0), node("SequenceLength", "apart", "many"), node("SequenceEmpty", "", "empty"),
         node("SequenceAt", "apart last", "row_last"), node("Loop", "many - row_last empty", "state all", name="reads", body=reads),
         node("ConcatFromSequence", "all", "stacked", axis=1, new_axis=1), node("ConcatFromSequence", "all", "chained", axis=0),
         node("SequenceConstruct", "row_last", "first"), node("Loop", "- yes row_last zero first", "end count some", name="until", body=until),
         node("ConcatFromSequence", "some", "found", axis=0, new_axis=1), node("SequenceLength", "some", "length")],
        {"x": (FLOAT, ["rows", 3])}, {"state": (FLOAT, 1), "stacked": (FLOAT, 2), "chained": (FLOAT, 1), "found": (FLOAT, 2), "count": (INT, 0), "length": (INT, 0)},
        {"zero": ints(0)[0], "once": ints(1)[0], "last": ints(-1)[0], "half": np.float32(0.5), "twice": np.float32(2), "large": np.float32(20),
         "no": np.array(False), "yes": np.array(True)}), [dict(rows=1), dict(rows=2), dict(rows=50)]
    # a row is read and written where the number of the iteration says; a state that nobody reads, a flag of two ranks, and assignments as Paddle writes them
    flag = lambda name, kind, *given: helper.make_graph([node(kind, " ".join(given), name)], name, [], [about(name, TensorProto.BOOL)])
    body = helper.make_graph(
        [node("Unsqueeze", "n front", "from"), node("Add", "from once", "behind"), node("Min", "behind extent", "to"), node("Slice", "x from to front once", "row"),
         node("Mul", "row twice", "more"), node("Shape", "row", "shape"), node("Expand", "from", "where_", name="unused"),
         node("Squeeze", "from", "at"), node("Squeeze", "to", "end"), node("Range", "at end step", "places"), node("Unsqueeze", "places last", "column"),
         node("Expand", "column shape", "where"), node("ScatterElements", "s where more", "t", axis=0), node("Add", "n nothing", "n0"), node("Add", "n0 step", "m"),
         node("Less", "m bound", "below"), node("ReduceMax", "row", "most", keepdims=0), node("Less", "most large", "small"),
         node("If", "small", "ok", then_branch=flag("fine", "Identity", "fact"), else_branch=flag("bad", "Identity", "wrong")),
         node("Squeeze", "ok", "ok0"), node("And", "below ok0", "both"), node("Cast", "both", "number", to=INT), node("Add", "number nothing", "same"),
         node("Cast", "same", "on", to=TensorProto.BOOL), node("Mul", "row twice", "row2")], "places",
        [about("i", INT), about("go", TensorProto.BOOL), about("s", FLOAT, "rows", 3), about("n", INT), about("unread", FLOAT, 1)],
        [about("on", TensorProto.BOOL), about("t", FLOAT, "rows", 3), about("m", INT), about("row2", FLOAT, 1, 3)])
    body.node.remove(next(one for one in body.node if one.name == "unused"))
    yield "in_places", model(
        [node("Shape", "x", "shape_", end=1), node("Squeeze", "shape_", "bound"), node("Identity", "shape_", "extent"), node("Sub", "x x", "zeros"),
         node("Loop", "most_trips - zeros zero undefined", "y count rest", name="places", body=body)],
        {"x": (FLOAT, ["rows", 3])}, {"y": (FLOAT, 2), "count": (INT, 0)},
        {"zero": ints(0)[0], "nothing": ints(0)[0], "step": ints(1)[0], "once": ints(1), "front": ints(0), "last": ints(1), "twice": np.float32(2),
         "large": np.float32(2), "fact": np.array([True]), "wrong": np.array(False), "undefined": np.zeros(1, np.float32), "most_trips": ints(1000)[0]}), [
            dict(rows=1), dict(rows=2), dict(rows=9), dict(rows=40)]
    # the least and the greatest of integers, all of which are on one side of 0
    nodes, results = [node("Abs", "x", "a"), node("Add", "a one", "above"), node("Neg", "above", "below")], []
    for kind in (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64):
        for side in ("above", "below")[: 1 if kind == TensorProto.UINT8 else 2]:
            name = f"{side}{kind}"
            nodes.append(node("Cast", side, name, to=kind))
            for axis in ("first", "second", "both"):
                for reduce in ("Min", "Max"):
                    result = f"{reduce}{axis}{name}"
                    nodes += [node(f"Reduce{reduce}", f"{name} {axis}", f"{result}r", keepdims=1), node("Cast", f"{result}r", f"{result}f", to=FLOAT),
                              node("ReduceSum", f"{result}f", result, keepdims=0), node("Unsqueeze", f"{result} front", f"{result}u")]
                    results.append(f"{result}u")
    nodes.append(node("Concat", " ".join(results), "y", axis=0))
    yield "least_and_greatest", model(
        nodes, {"x": (FLOAT, ["b", "k"])}, {"y": (FLOAT, 1)},
        {"one": np.float32(5), "first": ints(0), "second": ints(1), "both": ints(0, 1), "front": ints(0)}), [dict(b=1, k=1), dict(b=2, k=3), dict(b=3, k=37)]
    # two short circuits, whose branches name their values alike; and a formula of the number that is made of itself again and again
    ends = lambda bound: helper.make_graph([node("Constant", "", "bound", value_int=bound), node("Less", "m bound", "few")], "ends", [], [about("few", TensorProto.BOOL)])
    chain = [node(kind, inputs, output) for k in range(40) for kind, inputs, output in (("Sub", f"seven y{k}", f"z{k}"), ("Max", f"y{k} z{k}", f"y{k + 1}"))]
    body = helper.make_graph(
        [node("Add", "i once", "m"), node("Less", "m rows", "below"), node("If", "below", "first", then_branch=ends(9), else_branch=never),
         node("If", "below", "second", then_branch=ends(6), else_branch=never), node("And", "first second", "on"), node("Identity", "i", "y0"), *chain,
         node("Cast", "y40", "f", to=FLOAT), node("Mul", "s half", "less"), node("Add", "less f", "t")], "two_ends",
        [about("i", INT), about("go", TensorProto.BOOL), about("s", FLOAT, 3)], [about("on", TensorProto.BOOL), about("t", FLOAT, 3), about("part", FLOAT, 3)])
    body.node.append(node("Neg", "t", "part"))
    yield "two_ends", model(
        [node("Shape", "x", "shape", end=1), node("Squeeze", "shape", "rows"), node("ReduceMax", "x first_", "s0", keepdims=0),
         node("Loop", "- - s0", "last all", name="two_ends", body=body)],
        {"x": (FLOAT, ["rows", 3])}, {"last": (FLOAT, 1), "all": (FLOAT, 2)},
        {"once": ints(1)[0], "seven": ints(7)[0], "half": np.float32(0.5), "no": np.array(False), "first_": ints(0)}), [dict(rows=1), dict(rows=4), dict(rows=30)]
    # signals without an axis for the parts of their numbers, as ONNX Runtime takes them, too
    yield "rows_of_signals", model(
        [node("STFT", "x step window", "s"), node("Mul", "s s", "ss"), node("ReduceSum", "ss last", "y", keepdims=0)], {"x": (FLOAT, ["b", "samples"])}, {"y": (FLOAT, 3)},
        {"step": ints(4)[0], "window": floats(16), "last": ints(-1)}, opset=17), [dict(b=1, samples=16), dict(b=2, samples=30), dict(b=3, samples=100)]

    # a cache and a mask that is named by what it has to be, and a table of positions that is cut to what is in use of both
    yield "named_by_sum", model(
        [node("Concat", "past x", "keys", axis=1), node("Shape", "x", "new", start=1, end=2), node("Shape", "keys", "all", start=1, end=2), node("Sub", "all new", "old"),
         node("Transpose", "keys", "turned", perm=[0, 2, 1]), node("MatMul", "x turned", "scores"),
         node("Slice", "table old all front once", "rows"), node("Slice", "rows front all second once", "seen"), node("Cast", "seen", "is_seen", to=TensorProto.BOOL),
         node("Where", "is_seen scores low", "causal"), node("Unsqueeze", "mask once", "over"), node("Add", "causal over", "y")],
        {"x": (FLOAT, ["b", "s", 4]), "past": (FLOAT, ["b", "p", 4]), "mask": (FLOAT, ["b", "p + s"])}, {"y": (FLOAT, 3)},
        {"front": ints(0), "once": ints(1), "second": ints(1), "low": np.float32(-100), "table": np.tril(np.ones((16, 16), np.float32))}), [
            {"b": 1, "s": 3, "p": 2, "p + s": 5}, {"b": 2, "s": 1, "p": 15, "p + s": 16}, {"b": 1, "s": 16, "p": 0, "p + s": 16}]
    # an image whose channels the filters say, as patches of which a table has nine
    yield "square", model(
        [node("Conv", "x w", "patches", kernel_shape=[2, 2], strides=[2, 2]), node("BatchNormalization", "patches one one one one", "even"),
         node("Reshape", "even shape", "rows"), node("Transpose", "rows", "turned", perm=[0, 2, 1]), node("Add", "turned table", "y")],
        {"x": (FLOAT, ["b", "channels", "height", "width"])}, {"y": (FLOAT, 3)},
        {"w": floats(4, 3, 2, 2), "one": np.ones(4, np.float32), "shape": ints(0, 0, -1), "table": floats(9, 4)}), [
            dict(b=1, channels=3, height=6, width=6), dict(b=2, channels=3, height=7, width=6)]
    # an image that is lengthened to whole windows, where that has to leave it as it is
    rounded = [node("Add", "size three", "up"), node("Div", "up four", "windows"), node("Mul", "windows four", "whole"), node("Sub", "whole size", "lacking")]
    yield "whole_windows", model(
        [node("Shape", "x", "size", start=1, end=3), *rounded, node("Concat", "none lacking nothing", "pads", axis=0), node("Pad", "x pads", "padded"),
         node("Gather", "size front", "h", axis=0), node("Gather", "size second", "w", axis=0), node("Mul", "h w", "places"),
         node("Concat", "kept places two", "shape", axis=0), node("Reshape", "padded shape", "y")],
        {"x": (FLOAT, ["b", "height", "width", 2])}, {"y": (FLOAT, 3)},
        {"three": ints(3), "four": ints(4), "none": ints(0, 0, 0, 0, 0), "nothing": ints(0), "front": ints(0), "second": ints(1), "kept": ints(0), "two": ints(2)}), [
            dict(b=1, height=4, width=8), dict(b=2, height=12, width=4)]
    # images that are sampled where data says, on regular grids, and in regions
    samples = [node("GridSample", "x grid", f"s{k}", mode=mode, padding_mode=outside, align_corners=aligned)
               for k, (mode, outside, aligned) in enumerate([("linear", "zeros", 0), ("cubic", "reflection", 1), ("cubic", "reflection", 0), ("nearest", "border", 1)])]
    yield "sampled", model(
        [*samples, node("Sum", "s0 s1 s2 s3", "y"), node("Shape", "x", "size"), node("AffineGrid", "theta size", "inner"), node("AffineGrid", "theta size", "outer", align_corners=1),
         node("Add", "inner outer", "both"), node("GridSample", "x both", "turned"), node("RoiAlign", "x regions images", "adaptive", output_height=2, output_width=3),
         node("RoiAlign", "x regions images", "fixed", output_height=2, output_width=3, sampling_ratio=2), node("Add", "adaptive fixed", "pooled")],
        {"x": (FLOAT, ["b", 2, "height", "width"]), "grid": (FLOAT, ["b", "rows", "columns", 2]), "theta": (FLOAT, ["b", 2, 3])},
        {"y": (FLOAT, 4), "turned": (FLOAT, 4), "pooled": (FLOAT, 4)},
        {"regions": np.array([[0, 0, 2, 2], [1, 0.5, 4, 3], [-1, 0, 1.5, 9]], np.float32), "images": ints(0, 0, 0)}, opset=20), [
            dict(b=1, height=5, width=4, rows=3, columns=2), dict(b=2, height=2, width=7, rows=1, columns=4), dict(b=1, height=6, width=3, rows=4, columns=3)]
    # sizes in floats: halves, rounded down, and thirds, rounded up, three times
    yield "halves", model(
        [node("Shape", "x", "own", end=2), node("Shape", "x", "size", start=2), node("Cast", "size", "f", to=FLOAT), node("Mul", "f half", "h"), node("Floor", "h", "down"),
         node("Cast", "down", "less", to=INT), node("Concat", "own less", "sizes", axis=0), node("Resize", "x - - sizes", "y", mode="linear"),
         node("Div", "f three", "t"), node("Ceil", "t", "up"), node("Mul", "up three", "whole"), node("Cast", "whole", "more", to=INT),
         node("Concat", "own more", "larger", axis=0), node("Resize", "x - - larger", "grown", mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
         node("Sub", "h whole", "apart"), node("Neg", "apart", "lacking"), node("Cast", "lacking", "between", to=INT), node("Concat", "own between", "shape", axis=0),
         node("ConstantOfShape", "shape", "zeros")],
        {"x": (FLOAT, ["b", 2, "height", "width"])}, {"y": (FLOAT, 4), "grown": (FLOAT, 4), "zeros": (FLOAT, 4)},
        {"half": np.float32(0.5), "three": np.float32(3)}), [dict(b=1, height=5, width=4), dict(b=2, height=2, width=7), dict(b=1, height=30, width=9)]
    # the sides of an image, from the number of its parts
    yield "sides", model(
        [node("Conv", "x w", "patches", strides=[2, 2]), node("Reshape", "patches flat", "rows"), node("Transpose", "rows", "parts", perm=[0, 2, 1]),
         node("Shape", "parts", "own"), node("Gather", "own second", "count", axis=0), node("Cast", "count", "f", to=FLOAT), node("Pow", "f half", "root"),
         node("Cast", "root", "side", to=INT), node("Sqrt", "f", "again"), node("Floor", "again", "low"), node("Cast", "low", "other", to=INT),
         node("Gather", "own front", "b", axis=0), node("Concat", "b side other four", "shape", axis=0), node("Reshape", "parts shape", "y")],
        {"x": (FLOAT, ["b", 3, "height", "width"])}, {"y": (FLOAT, 4)},
        {"w": floats(4, 3, 2, 2), "flat": ints(0, 4, -1), "second": ints(1), "front": ints(0), "half": np.float32(0.5), "four": ints(4)}), [
            dict(b=1, height=6, width=6), dict(b=2, height=2, width=2)]
    # what is left of an image beside its windows, whose sides are rounded up where those of the image are rounded down
    yield "windowed", model(
        [node("MaxPool", "x", "whole", kernel_shape=[2, 2], strides=[2, 2]), node("Shape", "x", "own"), node("Slice", "own two end", "size"),
         node("Cast", "size", "f", to=FLOAT), node("Div", "f twice", "half"), node("Ceil", "half", "up"), node("Cast", "up", "sides", to=INT),
         node("ReduceProd", "sides", "count", keepdims=1), node("Slice", "own front one", "b"), node("Concat", "b channels left count", "shape", axis=0),
         node("Reshape", "whole shape", "y")],
        {"x": (FLOAT, ["b", 8, "height", "width"])}, {"y": (FLOAT, 4)},
        {"two": ints(2), "end": ints(4), "twice": np.float32(2), "front": ints(0), "one": ints(1), "channels": ints(2), "left": ints(-1)}), [
            dict(b=1, height=4, width=6), dict(b=2, height=8, width=2)]


def merged():
    """A network whose flag says which of two graphs it is; one of them has nothing of the second output."""
    about = lambda name: helper.make_tensor_value_info(name, FLOAT, None)
    nothing = numpy_helper.from_array(np.zeros((0, 3), np.float32), "value")
    doubled = helper.make_graph([node("Add", "x x", "y_"), node("Constant", "", "rest_", value=nothing)], "doubled", [], [about("y_"), about("rest_")])
    squares = helper.make_graph([node("Mul", "x x", "y_"), node("Identity", "y_", "rest_")], "squares", [], [about("y_"), about("rest_")])
    return model([node("If", "flag", "y rest", then_branch=doubled, else_branch=squares)],
                 {"x": (FLOAT, ["b", 3]), "flag": (TensorProto.BOOL, [1])}, {"y": (FLOAT, 2), "rest": (FLOAT, 2)})


def runtime(net):
    session = onnxruntime.InferenceSession(net.SerializeToString())
    return lambda feed: session.run(None, feed)


def reference(net):
    evaluator = ReferenceEvaluator(net)
    return lambda feed: evaluator.run(None, feed)


def main():
    for name, net, cases, *run in networks():
        run = run[0] if run else runtime(net)
        shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / name).mkdir(parents=True)
        onnx.save(net, HERE / name / "model.onnx")
        for at, extents in enumerate(cases):
            case = HERE / name / f"case_{at}"
            case.mkdir()
            feed = {}
            for i, value in enumerate(net.graph.input):
                dims = value.type.tensor_type.shape.dim
                named = lambda axis, dim: dim.dim_param if dim.dim_param in extents else f"{value.name}[{axis}]"
                shape = [dim.dim_value or extents[named(axis, dim)] for axis, dim in enumerate(dims)]
                is_length = value.type.tensor_type.elem_type == TensorProto.INT32
                feed[value.name] = RANDOM.integers(1, extents["steps"] + 1, shape).astype(np.int32) if is_length else floats(*shape)
                (case / f"input_{i}.pb").write_bytes(numpy_helper.from_array(feed[value.name]).SerializeToString())
            for i, value in enumerate(run(feed)):
                (case / f"output_{i}.pb").write_bytes(numpy_helper.from_array(value).SerializeToString())


if __name__ == "__main__":
    main()
    (HERE.parent / "constant" / "merged").mkdir(parents=True, exist_ok=True)
    onnx.save(merged(), HERE.parent / "constant" / "merged" / "model.onnx")
