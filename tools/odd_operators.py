#!/usr/bin/env python3
"""Writes the odd suite: single operators whose extents no library was tuned for. Primes, 197 tokens, 7x7
images, 3 channels, batches of 3.

usage: odd_operators.py OUT_DIR

Needs numpy and onnx. None of the extents was chosen after looking at results. Time the files as those of
any other suite:

    tilescribe tune FILE --trials-per-task 256        for each
    bench.py --ours 'tilescribe bench {model}' FILE ...
"""
import pathlib
import sys

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save, shape_inference

OPSET = 17


class Model:
    """One operator, or a short chain, from input `x` to output `y`."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.constants, self.count = [], [], 0

    def weight(self, *shape):
        self.count += 1
        name = f"w{self.count}"
        fan_in = max(1, int(np.prod(shape[1:])))
        values = self.rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(fan_in))
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def integers(self, values):
        self.count += 1
        name = f"i{self.count}"
        self.constants.append(numpy_helper.from_array(np.array(values, dtype=np.int64), name))
        return name

    def op(self, kind, *inputs, **attributes):
        self.count += 1
        name = f"t{self.count}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def save(self, path, inputs, result):
        self.nodes.append(helper.make_node("Identity", [result], ["y"]))
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, path.stem, values, [output], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        model = shape_inference.infer_shapes(model, strict_mode=True)
        checker.check_model(model, full_check=True)
        save(model, path)


def dense(m, k, n, activation=None):
    def build(model):
        y = model.op("Add", model.op("MatMul", "x", model.weight(k, n)), model.weight(n))
        return {"x": [m, k]}, model.op(activation, y) if activation else y
    return build


def matmul(batch, m, k, n):
    def build(model):
        return {"x": [batch, m, k], "z": [batch, k, n]}, model.op("MatMul", "x", "z")
    return build


def conv(batch, c, side, o, kernel, stride=1, pad=None, group=1, dilation=1, activation="Relu", rank=2):
    pad = dilation * (kernel // 2) if pad is None else pad

    def build(model):
        y = model.op("Conv", "x", model.weight(o, c // group, *[kernel] * rank), model.weight(o), group=group,
                     strides=[stride] * rank, pads=[pad] * (2 * rank), dilations=[dilation] * rank)
        return {"x": [batch, c] + [side] * rank}, model.op(activation, y) if activation else y
    return build


def transposed(c, side, o, kernel, stride, pad):
    def build(model):
        y = model.op("ConvTranspose", "x", model.weight(c, o, kernel, kernel), model.weight(o),
                     strides=[stride] * 2, pads=[pad] * 4)
        return {"x": [1, c, side, side]}, y
    return build


def pool(kind, c, side, kernel, stride, pad):
    def build(model):
        y = model.op(kind, "x", kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)
        return {"x": [1, c, side, side]}, y
    return build


def softmax(rows, columns):
    return lambda model: ({"x": [rows, columns]}, model.op("Softmax", "x", axis=-1))


def layer_norm(rows, columns):
    def build(model):
        y = model.op("LayerNormalization", "x", model.weight(columns), model.weight(columns), axis=-1)
        return {"x": [rows, columns]}, y
    return build


def mean(rows, columns):
    return lambda model: ({"x": [rows, columns]}, model.op("ReduceMean", "x", axes=[-1], keepdims=0))


def transpose(*shape, perm):
    return lambda model: ({"x": list(shape)}, model.op("Transpose", model.op("Relu", "x"), perm=perm))


SUITE = {
    "dense_197x197x197": dense(197, 197, 197),
    "dense_197x768x768": dense(197, 768, 768),
    "dense_3x1021x509": dense(3, 1021, 509),
    "dense_7x4099x31": dense(7, 4099, 31, "Relu"),
    "dense_1x997x3001": dense(1, 997, 3001),
    "dense_61x353x1009_sigmoid": dense(61, 353, 1009, "Sigmoid"),
    "dense_251x13x251": dense(251, 13, 251, "Tanh"),
    "matmul_3x197x64x197": matmul(3, 197, 64, 197),
    "matmul_12x50x37x50": matmul(12, 50, 37, 50),
    "matmul_5x17x1031x19": matmul(5, 17, 1031, 19),
    "conv_3x3_64x7_64": conv(1, 64, 7, 64, 3),
    "conv_3x3_61x19_67": conv(1, 61, 19, 67, 3),
    "conv_3x3_b3_32x23_48": conv(3, 32, 23, 48, 3),
    "conv_3x3_3x97_31": conv(1, 3, 97, 31, 3),
    "conv_3x3s2_3x199_32": conv(1, 3, 199, 32, 3, stride=2),
    "conv_3x3s2_47x29_53": conv(1, 47, 29, 53, 3, stride=2),
    "conv_5x5_24x27_36": conv(1, 24, 27, 36, 5),
    "conv_3x3d2_64x28_64": conv(1, 64, 28, 64, 3, dilation=2),
    "conv_1x1_b3_96x7_576": conv(3, 96, 7, 576, 1),
    "conv_1x1_131x31_37": conv(1, 131, 31, 37, 1),
    "conv_1x1s2_89x37_101": conv(1, 89, 37, 101, 1, stride=2),
    "conv_7x1d_16x211_24": conv(1, 16, 211, 24, 7, rank=1),
    "conv_3x3g5_45x33_65": conv(1, 45, 33, 65, 3, group=5),
    "conv3d_3x3x3_7x13_11": conv(1, 7, 13, 11, 3, rank=3),
    "depthwise_3x3_97x13": conv(1, 97, 13, 97, 3, group=97),
    "depthwise_5x5s2_71x41": conv(1, 71, 41, 71, 5, stride=2, group=71),
    "depthwise_7x7_40x17_multiplier2": conv(1, 40, 17, 80, 7, group=40),
    "transposed_3x3s2_37x13_29": transposed(37, 13, 29, 3, 2, 1),
    "max_pool_3x3s2_59x71": pool("MaxPool", 59, 71, 3, 2, 1),
    "average_pool_5x5_43x37": pool("AveragePool", 43, 37, 5, 1, 0),
    "softmax_591x197": softmax(591, 197),
    "softmax_3x30011": softmax(3, 30011),
    "layer_norm_197x771": layer_norm(197, 771),
    "mean_1013x331": mean(1013, 331),
    "transpose_197x12x67": transpose(197, 12, 67, perm=[1, 2, 0]),
}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, build) in enumerate(SUITE.items()):
        model = Model(seed)
        inputs, result = build(model)
        model.save(folder / f"{name}.onnx", inputs, result)
    print(f"{len(SUITE)} files in {folder}")


if __name__ == "__main__":
    main()
