#!/usr/bin/env python3
"""Makes the small ONNX files of this folder, and what ONNX Runtime computes for them.

usage: make.py      (needs onnx, onnxruntime and numpy)

networks/NAME/model.onnx with test_data_set_0/{input,output}_N.pb: import and evaluation have to agree.
refused/NAME.onnx: hostile or unsupported; import has to refuse them with what NAME.txt says (written by the test).
"""
import itertools
import pathlib
import shutil
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).resolve().parent
RANDOM = np.random.default_rng(7)
HALVES = np.random.default_rng(16)
TYPES = np.random.default_rng(64)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def positive(*shape):
    return RANDOM.uniform(0.5, 1.5, shape).astype(np.float32)


def ints(*values):
    return np.array(values, dtype=np.int64)


def model(nodes, inputs, outputs, constants, opset=18):
    """inputs and outputs: name -> (type, shape); constants: name -> array."""
    values = [[helper.make_tensor_value_info(n, t, s) for n, (t, s) in group.items()] for group in (inputs, outputs)]
    graph = helper.make_graph(nodes, "test", *values, [numpy_helper.from_array(a, n) for n, a in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(kind, inputs, outputs, name="", **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), name or outputs.split()[0], **attributes)


def image(*shape):
    return {"x": (TensorProto.FLOAT, shape)}, {"y": (TensorProto.FLOAT, None)}


def networks():
    x, y = image(2, 4, 9, 7)
    norm = {"s": positive(6), "b": floats(6), "m": floats(6), "v": positive(6)}
    yield "conv_batch_norm", model(
        [node("Conv", "x w c", "h", pads=[1, 0, 1, 1], strides=[2, 1], group=2),
         node("BatchNormalization", "h s b m v", "n"), node("Mul", "n f", "p"), node("Relu", "p", "y")],
        x, y, {"w": floats(6, 2, 3, 3), "c": floats(6), "f": floats(1, 6, 1, 1), **norm})
    yield "conv_read_twice", model(
        [node("Conv", "x w", "h"), node("BatchNormalization", "h s b m v", "n"), node("Add", "n h", "y")],
        x, y, {"w": floats(6, 4, 1, 1), **norm})
    yield "pooling", model(
        [node("MaxPool", "x", "a", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
         node("AveragePool", "a", "b", kernel_shape=[2, 2], pads=[1, 0, 0, 1]),
         node("GlobalAveragePool", "b", "c"), node("Mul", "b c", "y")], x, y, {})
    yield "transposed", model(
        [node("ConvTranspose", "x w", "h", strides=[3, 2], pads=[1, 1, 1, 1], output_padding=[1, 0], group=2),
         node("LRN", "h", "y", size=3)], x, y, {"w": floats(4, 3, 4, 3)})
    yield "depthwise", model(
        [node("Conv", "x w", "h", group=4, auto_pad="SAME_UPPER", strides=[2, 2]), node("Clip", "h low high", "y")],
        x, y, {"w": floats(4, 1, 3, 3), "low": np.float32(0), "high": np.float32(6)})

    # positions become a table, and a small network of it a bias: larger in between than what is kept
    table = np.sin(np.arange(600, dtype=np.float32)).reshape(300, 2)
    layers = [np.cos(np.arange(n * m, dtype=np.float32) / 7).reshape(n, m) for n, m in ((2, 256), (256, 9))]
    yield "bulky", model(
        [node("MatMul", "table first", "t1"), node("Relu", "t1", "t2"), node("MatMul", "t2 second", "t3"),
         node("Gather", "t3 places", "t4"), node("Sigmoid", "t4", "t5"), node("Transpose", "t5", "t6", perm=[2, 0, 1]),
         node("Slice", "t6 from to", "t7"), node("Add", "x t7", "a"),
         node("Range", "zero many one", "r1"), node("Cast", "r1", "r2", to=TensorProto.FLOAT), node("Sin", "r2", "r3"),
         node("Reshape", "r3 image", "r4"), node("Conv", "r4 w", "h"), node("BatchNormalization", "h s b m v", "n"),
         node("GlobalAveragePool", "n", "g"), node("Mul", "a g", "y")],
        x, y, {"table": table, "first": layers[0], "second": layers[1] / 16, "places": ints(*range(63)).reshape(9, 7) * 4,
               "from": ints(0), "to": ints(4), "zero": np.array(0, dtype=np.int64), "one": np.array(1, dtype=np.int64),
               "many": np.array(40000, dtype=np.int64), "image": ints(1, 1, 200, 200),
               "w": np.sin(np.arange(36, dtype=np.float32)).reshape(4, 1, 3, 3),
               **{name: np.linspace(0.5, 1.5, 4, dtype=np.float32) for name in "sbmv"}})
    x, y = image(2, 5, 8)
    yield "attention", model(
        [node("LayerNormalization", "x s b", "n", axis=-1), node("MatMul", "n wq", "q"), node("MatMul", "n wk", "k"),
         node("Reshape", "q heads", "qh"), node("Reshape", "k heads", "kh"),
         node("Transpose", "qh", "qt", perm=[0, 2, 1, 3]), node("Transpose", "kh", "kt", perm=[0, 2, 3, 1]),
         node("MatMul", "qt kt", "scores"), node("Div", "scores scale", "scaled"), node("Softmax", "scaled", "p"),
         node("MatMul", "p qt", "o"), node("Transpose", "o", "ot", perm=[0, 2, 1, 3]), node("Reshape", "ot flat", "y")],
        x, y, {"s": positive(8), "b": floats(8), "wq": floats(8, 8), "wk": floats(8, 8), "heads": ints(0, 0, 2, 4),
               "flat": ints(0, 0, -1), "scale": np.float32(2)})
    yield "shapes", model(
        [node("Shape", "x", "shape"), node("Gather", "shape zero", "batch"), node("Unsqueeze", "batch axis", "first"),
         node("Concat", "first rest", "wanted", axis=0), node("Reshape", "x wanted", "r"),
         node("Slice", "r from to axes step", "s"), node("Pad", "s pads", "y", mode="reflect")],
        x, y, {"zero": np.array(0, dtype=np.int64), "axis": ints(0), "rest": ints(4, 10), "from": ints(-1, 1),
               "to": ints(-9, 9), "axes": ints(1, 2), "step": ints(-2, 3), "pads": ints(0, 1, 2, 0, 1, 0)})
    yield "softmax_before_13", model([node("Softmax", "x", "y", axis=1)], x, y, {}, opset=9)
    yield "concat_and_split", model(
        [node("Split", "x sizes", "a b c", axis=2), node("Concat", "c a b", "d", axis=2), node("Identity", "d", "e"),
         node("Where", "mask e x", "y")],
        x, y, {"sizes": ints(1, 5, 2), "mask": np.array([True, False] * 4)})
    yield "fills", model(
        [node("ConstantOfShape", "ws", "w", value=helper.make_tensor("v", TensorProto.FLOAT, [1], [0.5])),
         node("ConstantOfShape", "bs", "b"), node("MatMul", "x w", "h"), node("Add", "h b", "a"),
         node("ReduceMax", "a axes", "y")],
        x, y, {"ws": ints(8, 12000), "bs": ints(2, 5, 12000), "axes": ints(2)})
    yield "gemm", model(
        [node("Flatten", "x", "f", axis=2), node("Gemm", "f w c", "h", transB=1, alpha=0.5, beta=2.0),
         node("BatchNormalization", "h s b m v", "n"), node("Gelu", "n", "y", approximate="tanh")],
        x, y, {"w": floats(6, 8), "c": floats(6), **norm}, opset=20)
    yield "resize", model(
        [node("Resize", "x none scales", "a", mode="nearest"), node("Resize", "a none none sizes", "y", mode="linear")],
        *image(1, 2, 3, 4), {"none": np.array([], dtype=np.float32), "scales": np.array([1, 1, 2, 2], np.float32),
                             "sizes": ints(1, 2, 5, 5)})
    ids = {"i": (TensorProto.INT64, [2, 3])}
    yield "embedding", model(
        [node("Gather", "table i", "e"), node("Gather", "positions places", "p"), node("Add", "e p", "f"),
         node("Einsum", "f w", "y", equation="bsd,hd->bhs")],
        ids, {"y": (TensorProto.FLOAT, None)},
        {"table": floats(11, 4), "positions": floats(6, 4), "places": ints(1, 3, 5), "w": floats(2, 4)})
    half = TensorProto.FLOAT16
    halves = {name: HALVES.standard_normal(shape).astype(np.float16) for name, shape in
              {"w": (6, 4, 3, 3), "c": (6,), "v": (300, 5), "s": (5,), "t": (5,)}.items()}
    yield "half", model(
        [node("Conv", "x w c", "h", pads=[1, 1, 1, 1]), node("Relu", "h", "r"), node("Reshape", "r flat", "f"),
         node("ConstantOfShape", "us", "u", value=helper.make_tensor("u", half, [1], [0.01])), node("MatMul", "f u", "m"),
         node("MatMul", "m v", "n"), node("LayerNormalization", "n s t", "l"), node("Softmax", "l", "y")],
        {"x": (half, [2, 4, 9, 7])}, {"y": (half, None)}, {"flat": ints(2, -1), "us": ints(378, 300), **halves})
    # the second convolution starts in the middle of a word
    halves = {name: HALVES.standard_normal(shape).astype(np.float16) for name, shape in
              {"v": (3, 4, 3, 3), "w": (2, 4, 1, 1), "u": (3, 5, 3, 3)}.items()}
    yield "joined", model(
        [node("Conv", "x v", "a", pads=[1, 1, 1, 1]), node("Conv", "x w", "b"), node("Concat", "a b", "c", axis=1),
         node("Conv", "c u", "d"), node("Relu", "d", "y")],
        {"x": (half, [1, 4, 5, 7])}, {"y": (half, None), "c": (half, None)}, halves)
    yield from types()
    yield from signals()
    yield from images()



def types():
    """Types beside f32, i64 and f16."""
    u64, double = TensorProto.UINT64, TensorProto.DOUBLE
    yield "unsigned", model(
        [node("BitShift", "x two", "a", direction="RIGHT"), node("BitShift", "x two", "b", direction="LEFT"),
         node("BitwiseXor", "a b", "c"), node("BitwiseAnd", "c mask", "d"), node("BitwiseNot", "d", "e"),
         node("Div", "e three", "f"), node("Mod", "x three", "g"), node("Add", "f g", "h"), node("Less", "x h", "l"),
         node("Max", "x h", "y"), node("Cast", "y", "z", to=TensorProto.FLOAT)],
        {"x": (u64, [4, 6])}, {"y": (u64, None), "z": (TensorProto.FLOAT, None), "l": (TensorProto.BOOL, None)},
        {"two": np.array([2], np.uint64), "mask": np.array([0xff00_ffff_0000_fff1], np.uint64),
         "three": np.array([3, 5, 7, 9, 11, 2**63 + 1], np.uint64)})
    doubles = {n: TYPES.standard_normal(s) for n, s in {"w": (6, 5), "b": (5,), "s": (5,)}.items()}
    yield "double", model(
        [node("MatMul", "x w", "a"), node("Add", "a b", "c"), node("Tanh", "c", "d"), node("Exp", "d", "e"),
         node("Softmax", "e", "f"), node("ReduceMean", "f", "m", axes=[1]), node("Sub", "f m", "g"), node("Div", "g tenth", "h"),
         node("Sigmoid", "h", "i"), node("Log", "i", "j"), node("Mul", "j s", "k"), node("Cast", "k", "z", to=TensorProto.FLOAT),
         node("Sum", "k i d", "y")],
        {"x": (double, [4, 6])}, {"y": (double, None), "z": (TensorProto.FLOAT, None)},
        {**doubles, "tenth": np.array(0.1)}, opset=17)
    yield "functions", model(
        [node("Cast", "x", "f", to=TensorProto.FLOAT), node("Tanh", "f", "t"), node("Mul", "f f", "q"), node("Add", "q one", "o"),
         node("Tan", "f", "a"), node("Asin", "t", "b"), node("Acos", "t", "c"), node("Atan", "f", "d"), node("Sinh", "f", "e"),
         node("Cosh", "f", "g"), node("Asinh", "f", "h"), node("Acosh", "o", "i"), node("Atanh", "t", "j"),
         node("Concat", "a b c d e g h i j", "y", axis=0)],
        {"x": (TensorProto.FLOAT16, [5, 7])}, {"y": (TensorProto.FLOAT, None)}, {"one": np.array(1, np.float32)})
    signed = {n: TYPES.integers(-128, 128, s).astype(np.int8) for n, s in {"w": (6, 2, 3, 3), "v": (6, 5), "u": (3, 6, 1, 1)}.items()}
    scales = {n: np.array(v, np.float32) for n, v in
              {"xs": 0.02, "ws": [0.01, 0.02, 0.005, 0.03, 0.01, 0.02], "ys": 0.9, "vs": 0.03, "zs": 1.7}.items()}
    yield "quantized", model(
        [node("QLinearConv", "x xs xz w ws wz ys yz c", "a", group=2, pads=[1, 0, 1, 1], strides=[2, 1]),
         node("Transpose", "a", "b", perm=[0, 2, 3, 1]), node("QLinearMatMul", "b ys yz v vs vz zs zz", "d"),
         node("DequantizeLinear", "d zs zz", "e"), node("DynamicQuantizeLinear", "e", "f fs fz"),
         node("MatMulInteger", "f u8s fz", "g"), node("ConvInteger", "a u yz uz", "h"),
         node("DequantizeLinear", "a ys6 yz6", "i", axis=1), node("QuantizeLinear", "i ys6 iz6", "j", axis=1)],
        {"x": (TensorProto.UINT8, [2, 4, 7, 6])},
        {n: (t, None) for n, t in {"a": TensorProto.UINT8, "d": TensorProto.UINT8, "e": TensorProto.FLOAT, "f": TensorProto.UINT8,
                                   "fs": TensorProto.FLOAT, "g": TensorProto.INT32, "h": TensorProto.INT32, "i": TensorProto.FLOAT,
                                   "j": TensorProto.INT8}.items()},
        {**signed, **scales, "xz": np.uint8(128), "wz": np.zeros(6, np.int8), "yz": np.uint8(120),
         "c": TYPES.integers(-900, 900, 6).astype(np.int32), "vz": np.int8(-3), "zz": np.uint8(127), "uz": np.int8(0),
         "u8s": TYPES.integers(0, 256, (5, 4)).astype(np.uint8), "ys6": np.linspace(0.1, 1, 6, dtype=np.float32),
         "yz6": np.arange(100, 106).astype(np.uint8), "iz6": np.arange(-3, 3).astype(np.int8)})


def few_bits():
    """Weights of 4 and 8 bits in blocks. Drawn from numbers of its own, so that the networks before stay as they are."""
    draw = np.random.default_rng(4)
    scales = lambda *shape: draw.uniform(0.01, 0.1, shape).astype(np.float32)
    nodes, constants, outputs = [], {}, {}
    for bits in (4, 8):
        packed = draw.integers(0, 256, (37, 7, 2 * bits), dtype=np.uint8)
        zeros = draw.integers(0, 256, 37 * -(-7 * bits // 8), dtype=np.uint8)
        constants |= {f"w{bits}": packed, f"s{bits}": scales(37 * 7), f"z{bits}": zeros}
        nodes.append(node("MatMulNBits", f"x w{bits} s{bits} z{bits}", f"y{bits}", domain="com.microsoft",
                          K=100, N=37, block_size=16, bits=bits))
    # a block of 25 does not go into whole bytes of two, one of 20 does
    for name, kind, low, high, block in [("a", np.uint8, 0, 256, 20), ("b", np.int8, -8, 8, 20), ("c", np.uint8, 3, 12, 25)]:
        weight = draw.integers(low, high, (100, 24)).astype(kind)
        constants |= {f"w{name}": weight, f"s{name}": scales(100 // block, 24)}
        constants[f"z{name}"] = draw.integers(low, high, (100 // block, 24)).astype(kind)
        nodes += [node("DequantizeLinear", f"w{name} s{name} z{name}", f"d{name}", axis=0, block_size=block),
                  node("MatMul", f"x d{name}", f"y{name}")]
    nodes += [node("DequantizeLinear", "wd sd zd", "dd", axis=0, block_size=20), node("MatMul", "x dd", "yd"),
              node("DequantizeLinear", "we se", "de", axis=1), node("MatMul", "x de", "ye")]
    constants |= {"sd": scales(5, 24), "se": scales(24)}
    network = model(nodes, {"x": (TensorProto.FLOAT, [3, 100])}, several("y4", "y8", "ya", "yb", "yc", "yd", "ye"), constants, opset=21)
    network.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    network.ir_version = 10
    pairs = lambda count: draw.integers(0, 256, count, dtype=np.uint8).tobytes()
    for name, kind, shape in [("wd", TensorProto.INT4, [100, 24]), ("zd", TensorProto.INT4, [5, 24]), ("we", TensorProto.UINT4, [100, 24])]:
        network.graph.initializer.append(helper.make_tensor(name, kind, shape, pairs(-(-int(np.prod(shape)) // 2)), raw=True))
    yield "few_bits", network


def several(*names, kind=TensorProto.FLOAT):
    return {name: (kind, None) for name in names}


def signals():
    numbers = {"step": np.int64(160), "size": np.int64(512), "bands": np.int64(24), "rate": np.int64(16000),
               "low": np.float32(20), "high": np.float32(7600), "last": ints(-1)}
    yield "spectrogram", model(
        [node("HannWindow", "size", "w"), node("STFT", "x step w", "f"), node("Mul", "f f", "q"),
         node("ReduceSum", "q last", "p", keepdims=0), node("MelWeightMatrix", "bands size rate low high", "m"),
         node("MatMul", "p m", "y")],
        {"x": (TensorProto.FLOAT, [2, 1200, 1])}, several("y"), numbers)
    # lengths that are split, with a window that is no constant
    yield "transforms", model(
        [node("DFT", "x n axis", "a", onesided=1), node("DFT", "x b axis", "c"),
         helper.make_node("DFT", ["c", "", "axis"], ["d"], "d", inverse=1), node("STFT", "s step w", "e")],
        {"x": (TensorProto.FLOAT, [2, 1000, 3, 1]), "s": (TensorProto.FLOAT, [1, 1500, 1]), "w": (TensorProto.FLOAT, [1024])},
        several("a", "c", "d", "e"),
        {"n": np.int64(1024), "b": np.int64(2048), "axis": np.int64(1), "step": np.int64(300)}, opset=20)
    yield "hardmax_before_13", model([node("Hardmax", "x", "y", axis=1)], *image(3, 4, 5), {}, opset=11)
    # longer than what is summed up at once
    yield "running", model(
        [node("CumSum", "x axis", "a"), node("CumSum", "x axis", "b", exclusive=1, reverse=1)],
        {"x": (TensorProto.FLOAT, [2, 700, 3])}, several("a", "b"), {"axis": np.int64(1)})
    yield "reversed", model(
        [node("ReverseSequence", "x lengths", "a", time_axis=1, batch_axis=0), node("CenterCropPad", "a wanted", "y", axes=[1, 2])],
        *image(3, 6, 5), {"lengths": ints(6, 1, 4), "wanted": ints(9, 2)})


def rows():
    # products that fill a concatenation, and sums that read it
    yield "summed_parts", model(
        [node("HannWindow", "size", "w"), node("STFT", "x step w", "f"),
         node("Split", "f", "a b", axis=0, num_outputs=2), node("Mul", "a a", "c"), node("Mul", "b b", "d"),
         node("Concat", "c d", "q", axis=0), node("ReduceSum", "q last", "y", keepdims=0)],
        {"x": (TensorProto.FLOAT, [2, 1200, 1])}, several("y"),
        {"step": np.int64(160), "size": np.int64(512), "last": ints(-1)})


def images():
    x = {"x": (TensorProto.FLOAT, [2, 3, 7, 9])}
    theta = {"t": (TensorProto.FLOAT, [2, 2, 3])}
    yield "grids", model(
        [node("AffineGrid", "t size", "g"), node("AffineGrid", "t size", "h", align_corners=1),
         node("GridSample", "x g", "a"), node("GridSample", "x h", "b", padding_mode="reflection", align_corners=1),
         node("GridSample", "x g", "c", padding_mode="reflection", mode="cubic"),
         node("GridSample", "x g", "d", padding_mode="border"),
         node("GridSample", "x h", "e", padding_mode="zeros", mode="cubic", align_corners=1)],
        {**x, **theta}, several("a", "b", "c", "d", "e"), {"size": ints(2, 3, 5, 6)}, opset=20)
    boxes = np.array([[0, 0, 8, 6], [2.5, 1, 3, 5.5], [-3, -2, 30, 4], [4, 4, 4, 4], [1, 2, 60, 80]], dtype=np.float32)
    regions = {"r": boxes, "i": ints(1, 0, 1, 0, 0)}
    yield "regions", model(
        [node("RoiAlign", "x r i", "a", output_height=2, output_width=3),
         node("RoiAlign", "x r i", "b", output_height=2, output_width=3, coordinate_transformation_mode="output_half_pixel"),
         node("RoiAlign", "x r i", "c", output_height=3, output_width=2, sampling_ratio=2, spatial_scale=0.5)],
        x, several("a", "b", "c"), regions)
    yield "determinants", model(
        [node("Det", "x", "a"), node("Det", "z", "b"), node("Det", "s", "c")],
        {"x": (TensorProto.FLOAT, [4, 5, 5]), "z": (TensorProto.FLOAT, [2, 3, 3])}, several("a", "b", "c"),
        {"s": np.array([[[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 2], [0, 0, 3, 0]], [[1, 2, 3, 4]] * 4], dtype=np.float32)}, opset=18)
    yield "columns", model(
        [node("Col2Im", "x image block", "a", strides=[2, 1], dilations=[1, 2], pads=[1, 0, 1, 1]),
         node("Col2Im", "z image block", "b", strides=[3, 2])],
        {"x": (TensorProto.FLOAT, [2, 12, 20]), "z": (TensorProto.FLOAT, [1, 6, 9])}, several("a", "b"),
        {"image": ints(8, 7), "block": ints(2, 3)})
    yield "largest", model(
        [node("MaxPool", "x", "a i", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 1, 1, 0]),
         node("MaxPool", "x", "b j", kernel_shape=[2, 2], dilations=[2, 3], storage_order=1)],
        x, {**several("a", "b"), **several("i", "j", kind=TensorProto.INT64)}, {})


def refused():
    x, y = image(2, 3)
    relu = [node("Relu", "x", "y")]
    good = model(relu, x, y, {}).SerializeToString()
    yield "truncated", good[:-7]
    yield "empty", b""
    yield "not_onnx", b"\x89PNG\r\n\x1a\n" * 9
    yield "cycle", model([node("Add", "x b", "a"), node("Relu", "a", "c"), node("Neg", "c", "b"), node("Abs", "c", "y")],
                         x, y, {})
    yield "self_loop", model([node("Add", "x y", "y")], x, y, {})
    yield "dangling", model([node("Add", "x nowhere", "y")], x, y, {})
    yield "no_output", model([node("Relu", "x", "z")], x, y, {})
    yield "duplicate_value", model([node("Relu", "x", "y", "first"), node("Neg", "x", "y", "second")], x, y, {})
    yield "duplicate_input", model([node("Relu", "x", "x")], x, y, {})
    yield "unsupported", model(
        [node("SequenceMap", "x", "a"), helper.make_node("Attention", ["x"], ["b"], "fused", domain="com.example"),
         node("Loop", "x", "c"), node("Relu", "x", "y")], x, y, {})
    yield "huge_average", model([node("AveragePool", "x", "y", kernel_shape=[3], pads=[1, 1])], *image(1, 1, 10 ** 9), {})
    yield "huge_dim", model(relu, {"x": (TensorProto.FLOAT, [2 ** 62, 2 ** 62])}, y, {})
    yield "many_elements", model(relu, {"x": (TensorProto.FLOAT, [2 ** 30, 2 ** 30])}, y, {})
    yield "negative_dim", model(relu, {"x": (TensorProto.FLOAT, [2, -3])}, y, {})
    yield "huge_fill", model([node("ConstantOfShape", "s", "w"), node("Add", "x w", "y")], x, y,
                             {"s": ints(2 ** 40, 2 ** 40)})
    yield "huge_expand", model([node("Expand", "x s", "y")], x, y, {"s": ints(2 ** 29, 2 ** 29, 2, 3)})
    yield "huge_tile", model([node("Tile", "x s", "y")], x, y, {"s": ints(2 ** 62, 2)})
    yield "huge_pads", model([node("Conv", "x w", "y", pads=[2 ** 62, 2 ** 62])], *image(1, 1, 8), {"w": floats(1, 1, 3)})
    yield "huge_dilation", model([node("Conv", "x w", "y", dilations=[2 ** 62])], *image(1, 1, 8), {"w": floats(1, 1, 3)})
    yield "zero_stride", model([node("MaxPool", "x", "y", kernel_shape=[2], strides=[0])], *image(1, 1, 8), {})
    yield "zero_groups", model([node("Conv", "x w", "y", group=0)], *image(1, 1, 8), {"w": floats(1, 1, 3)})
    yield "zero_slice_step", model([node("Slice", "x a b c d", "y")], x, y,
                                   {"a": ints(0), "b": ints(2), "c": ints(0), "d": ints(0)})
    yield "integer_division_by_zero", model(
        [node("Shape", "x", "s"), node("Div", "s z", "t"), node("Reshape", "x t", "y")], x, y, {"z": ints(0)})
    yield "prime_transform", model([node("DFT", "x", "y")], *image(1, 4099, 1), {})
    yield "huge_transform", model([node("DFT", "x n", "y")], *image(1, 4, 1), {"n": np.int64(2 ** 30)})
    yield "complex_onesided", model([node("DFT", "x", "y", onesided=1)], *image(1, 8, 2), {})
    yield "huge_window", model([node("HannWindow", "n", "w"), node("Mul", "x w", "y")], *image(1, 1), {"n": np.int64(2 ** 30)})
    yield "part_of_an_axis_twice", model(
        [node("Resize", "x x none size", "y", mode="linear", axes=[0, 0], coordinate_transformation_mode="tf_crop_and_resize")],
        *image(4), {"none": np.zeros(0, np.float32), "size": ints(9, 2)})
    yield "large_determinant", model([node("Det", "x", "y")], *image(17, 17), {})
    yield "misfitting_blocks", model([node("Col2Im", "x a b", "y")], *image(1, 4, 5), {"a": ints(3, 3), "b": ints(2, 2)})
    yield "misfitting_grid", model([node("GridSample", "x g", "y")], *image(1, 2, 3, 3), {"g": floats(1, 3, 3, 3)})
    yield "greatest_of_regions", model([node("RoiAlign", "x r i", "y", mode="max")], *image(1, 2, 3, 3),
                                       {"r": floats(1, 4), "i": ints(0)})
    yield "reshape_misfit", model([node("Reshape", "x s", "y")], x, y, {"s": ints(4, -1)})
    yield "broadcast_misfit", model([node("Add", "x w", "y")], x, y, {"w": floats(4)})
    yield "nothing_of_a_batch", model([node("Slice", "x start end axes", "y")], {"x": (TensorProto.FLOAT, ["batch", 3])}, y,
                                      {"start": ints(3), "end": ints(9), "axes": ints(1)})
    yield "index_out_of_range", model([node("Gather", "x i", "y")], x, y, {"i": ints(2)})
    yield "axis_out_of_range", model([node("Softmax", "x", "y", axis=2 ** 62)], x, y, {})
    yield "missing_input", model([node("MatMul", "x", "y")], x, y, {})
    yield "old_opset", model(relu, x, y, {}, opset=6)
    yield "float8", model(relu, {"x": (TensorProto.FLOAT8E5M2, [2])}, {"y": (TensorProto.FLOAT8E5M2, None)}, {})
    yield "shift_of_signed", model([node("BitShift", "i i", "y", direction="LEFT")], {"i": (TensorProto.INT32, [2])},
                                   {"y": (TensorProto.INT32, None)}, {})
    yield "bits_of_another_size", model([node("BitCast", "x", "y", to=TensorProto.INT64)], x, {"y": (TensorProto.INT64, None)}, {},
                                        opset=26)
    yield "quantized_to_four_bits", model([node("QuantizeLinear", "x s", "y", output_dtype=TensorProto.INT4)], x,
                                          {"y": (TensorProto.INT4, None)}, {"s": np.array(0.1, np.float32)}, opset=21)
    yield "misfit_of_scales", model([node("QuantizeLinear", "x s", "y", axis=0)], x, {"y": (TensorProto.UINT8, None)},
                                    {"s": np.array([0.1, 0.2, 0.3], np.float32)}, opset=21)
    yield "wrong_attribute_type", model([node("Softmax", "x", "y", axis="last")], x, y, {})
    short = model([node("Add", "x w", "y")], x, y, {"w": floats(3)})
    short.graph.initializer[0].dims[0] = 4
    yield "short_initializer", short
    for name, entries in {
        "external_absolute": {"location": "/etc/passwd"},
        "external_parent": {"location": "../networks/gemm/model.onnx"},
        "external_link": {"location": "link.bin"},
        "external_missing": {"location": "missing.bin"},
        "external_offset": {"location": "data.bin", "offset": str(2 ** 63)},
        "external_past_end": {"location": "data.bin", "offset": "8"},
        "external_not_a_number": {"location": "data.bin", "offset": "-4"},
        "external_folder": {"location": "."},
    }.items():
        outside = model([node("Add", "x w", "y")], x, y, {"w": floats(3)})
        tensor = outside.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
        yield name, outside
    (HERE / "refused/data.bin").write_bytes(bytes(16))
    (HERE / "refused/link.bin").symlink_to("../networks/gemm/model.onnx")
    deep = helper.make_graph([node("Relu", "x", "y")], "innermost", [], [])
    for _ in range(25):
        deep = helper.make_graph([helper.make_node("If", ["x"], ["y"], then_branch=deep)], "nested", [], [])
    yield "nested", model([helper.make_node("If", ["x"], ["y"], "outermost", then_branch=deep)], x, y, {})


def body(nodes, inputs, outputs, name="body"):
    """A graph in an attribute; inputs and outputs: name -> (type, shape)."""
    values = [[helper.make_tensor_value_info(n, t, s) for n, (t, s) in group.items()] for group in (inputs, outputs)]
    return helper.make_graph(nodes, name, *values)


def refused_operations():
    """Loops, branches and functions."""
    x, y = image(2, 3)
    state = {"s": (TensorProto.FLOAT, [2, 3])}
    head = {"i": (TensorProto.INT64, []), "go": (TensorProto.BOOL, []), **state}
    tail = {"on": (TensorProto.BOOL, []), "t": (TensorProto.FLOAT, [2, 3])}
    on = node("Identity", "go", "on")
    step = body([on, node("Tanh", "s", "t")], head, tail)
    long = {"n": np.int64(5000)}
    yield "function_in_itself", helper.make_model(
        helper.make_graph([node("F", "x", "y", domain="local")], "test", *[[helper.make_tensor_value_info(n, *v) for n, v in g.items()] for g in (x, y)]),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("local", 1)], ir_version=8,
        functions=[helper.make_function("local", "F", ["a"], ["b"], [node("F", "a", "b", domain="local")], [helper.make_opsetid("local", 1)])])
    doubled = [helper.make_function("local", f"F{k}", ["a"], ["b"], [node(f"F{k + 1}", "a", "t", domain="local"), node(f"F{k + 1}", "t", "b", domain="local")],
                                    [helper.make_opsetid("local", 1)]) for k in range(20)]
    doubled.append(helper.make_function("local", "F20", ["a"], ["b"], [node("Neg", "a", "b")], [helper.make_opsetid("", 18)]))
    yield "functions_without_end", helper.make_model(
        helper.make_graph([node("F0", "x", "y", domain="local")], "test", *[[helper.make_tensor_value_info(n, *v) for n, v in g.items()] for g in (x, y)]),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("local", 1)], ir_version=8, functions=doubled)
    branch = body([node("Add", "x z", "t")], {}, {"t": tail["t"]})
    yield "cycle_through_a_graph", model(
        [node("If", "c", "y", then_branch=branch, else_branch=branch), node("Neg", "y", "z")], x, y, {"c": np.bool_(True)})
    yield "dangling_in_a_graph", model([node("If", "c", "y", then_branch=branch, else_branch=branch)], x, y, {"c": np.bool_(True)})
    other = body([node("ReduceSum", "x", "t")], {}, {"t": tail["t"]})
    same = body([node("Neg", "x", "t")], {}, {"t": tail["t"]})
    asked = {**x, "c": (TensorProto.BOOL, [])}
    yield "branches_of_two_shapes", model([node("If", "c", "y", then_branch=same, else_branch=other)], asked, y, {})
    yield "branch_with_what_is_unsupported", model(
        [node("If", "c", "y", then_branch=body([node("SequenceMap", "x", "t")], {}, {"t": tail["t"]}), else_branch=same)], x, y, {"c": np.bool_(True)})
    yield "loop_without_end", model([helper.make_node("Loop", ["", "", "x"], ["y"], "endless", body=step)], x, y, {})
    some = body([helper.make_node("Loop", ["n", "", "x"], ["t"], "some", body=step)], {}, {"t": tail["t"]})
    yield "loop_of_run_time", model([node("If", "c", "y", then_branch=some, else_branch=same)], {**asked, "n": (TensorProto.INT64, [])}, y, {})
    inner = body([on, helper.make_node("Loop", ["n", "", "s"], ["t"], "inner", body=step)], head, tail)
    yield "long_loop_in_a_long_one", model([helper.make_node("Loop", ["n", "", "x"], ["y"], "outer", body=inner)], x, y, long)
    yield "loop_that_grows", model([helper.make_node("Loop", ["n", "", "x"], ["y"], body=body([on, node("Concat", "s s", "t", axis=0)], head, tail))], x, y, long)
    ends = [node("ReduceSum", "s", "r", keepdims=0), node("Less", "r m", "on"), node("Tanh", "s", "t")]
    collects = body(ends + [node("Neg", "t", "u")], head, {**tail, "u": tail["t"]})
    yield "loop_that_collects_without_bound", model([helper.make_node("Loop", ["", "", "x"], ["", "y"], body=collects)], x, y, {"m": np.float32(1)})
    row = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3]))
    listed = lambda nodes: helper.make_graph(
        [on, *nodes], "listed", [*(helper.make_tensor_value_info(n, *head[n]) for n in ("i", "go")), helper.make_value_info("s", row)],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_value_info("t", row)])
    whole = node("ConcatFromSequence", "rows", "y", axis=0)
    some = [node("SequenceConstruct", "x x x", "first"), helper.make_node("Loop", ["n", "", "first"], ["rows"], "long", body=listed([node("SequenceErase", "s", "t")])), whole]
    yield "sequence_that_shrinks", model(some, x, y, long)
    read = [node("SequenceLength", "s", "m"), node("Cast", "m", "f", to=TensorProto.FLOAT), node("Mul", "x f", "u"), node("SequenceInsert", "s u", "t")]
    yield "sequence_that_is_read_while_it_grows", model([node("SequenceConstruct", "x", "first"), helper.make_node("Loop", ["n", "", "first"], ["rows"], "long", body=listed(read)), whole], x, y, long)
    yield "sequence_as_tensor", model([node("SequenceConstruct", "x x", "rows"), node("Neg", "rows", "y")], x, y, {})
    yield "sequence_as_output", model([node("SequenceConstruct", "x x", "y")], x, y, {})
    yield "beyond_a_sequence", model([node("SequenceConstruct", "x x", "rows"), node("SequenceAt", "rows place", "y")], x, y, {"place": ints(2)[0]})
    yield "sequences_of_two_lengths", model(
        [node("If", "c", "rows", then_branch=body([node("SequenceConstruct", "x", "t")], {}, {"t": tail["t"]}), else_branch=body([node("SequenceConstruct", "x x", "t")], {}, {"t": tail["t"]})),
         whole], asked, y, {})
    changing = body([on, node("Unsqueeze", "i front", "to"), node("Slice", "x none to front", "part"), node("ReduceSum", "part", "p"), node("Add", "s p", "t")], head, tail)
    yield "extent_of_an_iteration", model([helper.make_node("Loop", ["n", "", "x"], ["y"], "long", body=changing)], x, y, {**long, "front": ints(0), "none": ints(0)})
    yield "loop_with_a_foreign_body", model([helper.make_node("Loop", ["n", "", "x"], ["y"], body=body([node("Neg", "s", "t")], state, {"t": tail["t"]}))], x, y, long)
    yield "recurrence_of_a_wrong_width", model([helper.make_node("GRU", ["z", "w", "r"], ["y"], hidden_size=4)], {"z": (TensorProto.FLOAT, [5, 1, 3])}, y,
                                               {"w": floats(1, 12, 2), "r": floats(1, 12, 4)})
    yield "scatter_of_a_wrong_shape", model([node("ScatterND", "x i u", "y")], x, y, {"i": ints(0, 1).reshape(2, 1), "u": floats(2, 2)})
    yield "more_than_all", model([node("TopK", "x k", "y i")], x, y, {"k": ints(4)})
    yield "window_over_too_little", model(
        [node("NonZero", "x", "at"), node("Cast", "at", "places", to=TensorProto.FLOAT),
         node("Unsqueeze", "places front", "signal"), node("Conv", "signal w", "y")],
        x, y, {"front": ints(0), "w": np.zeros((1, 2, 9), np.float32)})


# kinds of `tests/control_flow.py`, and the numbers of networks that are kept
OPERATIONS = {"lstm": [2, 3], "gru": [1, 5], "rnn": [0], "if": [0], "loop": [0, 1], "while": [0], "scan": [0, 5], "top_k": [0], "scatter": [0, 1, 2], "function": [0],
              "inside": [1], "non_zero": [3, 4], "unique": [0, 1], "compress": [0], "boxes": [0], "computed": [0], "endless": [0, 1, 2, 3, 4], "sequences": [0, 1, 2, 3], "places": [0, 1, 2]}


def operations():
    sys.path.insert(0, str(HERE.parents[1]))
    import control_flow

    for kind, numbers in OPERATIONS.items():
        for number in numbers:
            control_flow.network(kind, seed=2, number=number).write(HERE / "networks" / f"{kind}_{number}", is_open=False)


def write(name, net, options=None):
    """A network, inputs for it, and what ONNX Runtime makes of them."""
    data = HERE / "networks" / name / "test_data_set_0"
    data.mkdir(parents=True)
    onnx.save(net, data.parent / "model.onnx")
    session = onnxruntime.InferenceSession(net.SerializeToString(), options)
    feed = {}
    for i, value in enumerate(session.get_inputs()):
        draw = {"tensor(int64)": lambda shape: RANDOM.integers(0, 10, shape), "tensor(float)": lambda shape: floats(*shape),
                "tensor(uint64)": lambda shape: TYPES.integers(0, 2 ** 64, shape, dtype=np.uint64),
                "tensor(double)": lambda shape: TYPES.standard_normal(shape),
                "tensor(uint8)": lambda shape: TYPES.integers(0, 256, shape).astype(np.uint8),
                "tensor(float16)": lambda shape: HALVES.standard_normal(shape).astype(np.float16)}
        feed[value.name] = draw[value.type](value.shape)
        (data / f"input_{i}.pb").write_bytes(numpy_helper.from_array(feed[value.name]).SerializeToString())
    for i, value in enumerate(session.run(None, feed)):
        (data / f"output_{i}.pb").write_bytes(numpy_helper.from_array(value).SerializeToString())


def parts_of_images():
    """Channels of heads become an image, whose parts have windows of their own."""
    x, y = image(1, 3, 31, 8)
    yield "heads_as_image", model(
        [node("Slice", "x from to axes", "t"), node("Transpose", "t", "tt", perm=[0, 1, 3, 2]),
         node("Reshape", "tt wanted", "i"), node("Split", "i sizes", "a b", axis=1),
         node("Conv", "a wa", "ca", group=6, pads=[1] * 4), node("Conv", "b wb", "cb", group=18, pads=[2] * 4),
         node("Concat", "ca cb", "y", axis=1)],
        x, y, {"from": ints(1), "to": ints(31), "axes": ints(2), "wanted": ints(1, 24, 6, 5), "sizes": ints(6, 18),
               "wa": floats(6, 1, 3, 3), "wb": floats(18, 1, 5, 5)})


def until_it_ends():
    """A state of one row, which a loop hands out as it is, and a `Dropout` of which it is computed that it drops nothing."""
    x, y = image(1, 3, 1)[0], {"y": (TensorProto.FLOAT, None), "z": (TensorProto.FLOAT, None)}
    state = {"s": (TensorProto.FLOAT, [1, 3, 1])}
    ends = [node("Mul", "s f", "g"), node("Abs", "g", "t"), node("ReduceSum", "t", "r", keepdims=0), node("Less", "r m", "on")]
    grows = body(ends, {"i": (TensorProto.INT64, []), "go": (TensorProto.BOOL, []), **state}, {"on": (TensorProto.BOOL, []), "t": state["s"]})
    yield "state_of_one_row", model(
        [helper.make_node("Loop", ["", "", "x"], ["y"], body=grows), node("ReduceMax", "y", "most", keepdims=0),
         node("Less", "most none", "trains"), node("Dropout", "x ratio trains", "z")],
        x, y, {"m": np.float32(30), "f": np.float32(1.5), "none": np.float32(-1), "ratio": np.float32(0.5)})


def computed_parts():
    """Parts of images that are resized, of which a run says what they are: with elements between others, and with the nearest."""
    x, y = image(1, 2, 9, 7)[0], {"y": (TensorProto.FLOAT, None), "z": (TensorProto.FLOAT, None)}
    crop = dict(coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=-3.0)
    yield "computed_parts", model(
        [node("ReduceMean", "x", "mean", axes=[0, 1, 2, 3], keepdims=0), node("Abs", "mean", "a"), node("Unsqueeze", "a front", "a1"),
         node("Sub", "one a1", "b1"), node("Add", "b1 a1", "past"), node("Concat", "zeros a1 a1 ones b1 past", "part", axis=0),
         node("Resize", "x part none size", "y", mode="linear", **crop),
         node("Resize", "x part none other", "z", mode="nearest", nearest_mode="floor", **crop)],
        x, y, {"front": ints(0), "one": np.array([1], np.float32), "zeros": np.zeros(2, np.float32), "ones": np.ones(2, np.float32),
               "none": np.zeros(0, np.float32), "size": ints(1, 2, 5, 8), "other": ints(1, 2, 12, 1)}, opset=13)


def not_numbers():
    """A variance as JAX writes it: it is no number where there are no elements."""
    x, y = image(3, 5)
    yield "variance_or_none", model(
        [node("ReduceMean", "x", "mean", axes=[1]), node("Sub", "x mean", "d"), node("Mul", "d d", "dd"),
         node("ReduceSum", "dd last", "sum"), node("Size", "x", "n"), node("Cast", "n", "nf", to=TensorProto.FLOAT), node("Div", "sum nf", "v"),
         node("ReduceMax", "v", "most"), node("Less", "most zero", "none"), node("Where", "none nan v", "y")],
        x, y, {"last": ints(1), "zero": np.float32(0), "nan": np.float32(np.nan)}, opset=13)


def optimizers():
    """What ONNX Runtime's optimizers make of several operators."""
    draw = np.random.default_rng(30)
    f = lambda *shape: draw.standard_normal(shape).astype(np.float32)
    fused = lambda kind, inputs, outputs, **attributes: node(kind, inputs, outputs, domain="com.microsoft", **attributes)
    activation = lambda kind, *parameters: {"activation": kind, **({"activation_params": list(map(float, parameters))} if parameters else {})}
    around = dict(pads=[1, 1, 1, 1])
    x = image(1, 4, 6, 5)[0]
    yield "fused", of_microsoft(
        [fused("FusedConv", "x w0 b", "a", **around, **activation("Relu")),
         fused("FusedConv", "a w1 b a", "c", **around, **activation("LeakyRelu", 0.1)),
         fused("FusedConv", "c w1", "d", strides=[2, 1], **around, **activation("Clip", -0.5, 6)),
         fused("FusedConv", "c w1", "e", **activation("HardSigmoid", 0.25, 0.4)), fused("FusedConv", "d w1 b", "g", **activation("Tanh")),
         node("Flatten", "g", "flat"),
         fused("FusedGemm", "flat v bias", "y", transB=1, alpha=0.5, activation="LeakyRelu", activation_alpha=0.2),
         fused("FusedGemm", "flat v bias", "z", transB=1, activation="Sigmoid"),
         fused("FusedGemm", "flat v bias", "h", transB=1, activation="HardSigmoid", activation_alpha=0.2, activation_beta=0.4),
         fused("FusedGemm", "flat v bias", "i", transB=1, activation="Elu", activation_alpha=0.7),
         fused("FusedGemm", "flat v", "j", transB=1, activation="Softplus")],
        x, several("y", "z", "e", "h", "i", "j"), {"w0": f(8, 4, 3, 3), "w1": f(8, 8, 3, 3), "b": f(8), "v": f(7, 24), "bias": f(7)})
    halves = {"past": (TensorProto.FLOAT, [2, 2, 2, 3, 4])}
    short = draw.integers(-128, 128, (8, 24)).astype(np.int8)
    yield "fused_attention", of_microsoft(
        [fused("Attention", "x w b - past", "y present", num_heads=2, unidirectional=1), node("DynamicQuantizeLinear", "x", "q s zero"),
         fused("QAttention", "q short b s scale - zero none past", "z now", num_heads=2, unidirectional=1),
         fused("QAttention", "q short b s scale mask zero none", "m", num_heads=2)],
        {"x": (TensorProto.FLOAT, [2, 5, 8]), **halves}, several("y", "present", "z", "now", "m"),
        {"w": f(8, 24), "b": f(24), "short": short, "scale": np.float32(0.01), "none": np.int8(0), "mask": np.array([5, 3], np.int32)})


def of_microsoft(nodes, inputs, outputs, constants):
    # inputs that are left out
    for each in nodes:
        each.input[:] = ["" if name == "-" else name for name in each.input]
    network = model(nodes, inputs, outputs, constants)
    network.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return network


def main():
    shutil.rmtree(HERE / "networks", ignore_errors=True)
    (HERE / "networks").mkdir()
    # the messages beside them are written by the test that reads them
    for made_before in (path for path in (HERE / "refused").iterdir() if path.suffix != ".txt"):
        made_before.unlink()
    for name, net in itertools.chain(networks(), rows()):
        write(name, net)
    operations()
    for name, content in [*refused(), *refused_operations()]:
        content = content if isinstance(content, bytes) else content.SerializeToString()
        (HERE / "refused" / f"{name}.onnx").write_bytes(content)
    # optimised, it multiplies rows that are rounded to eight bits
    as_written = onnxruntime.SessionOptions()
    as_written.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, net in few_bits():
        write(name, net, as_written)
    for name, net in itertools.chain(parts_of_images(), until_it_ends(), computed_parts(), not_numbers(), optimizers()):
        write(name, net)


if __name__ == "__main__":
    main()
