#!/usr/bin/env python3
"""Makes small networks of f32 to be computed in bf16, and what ONNX Runtime computes for them in f32.

usage: make_precise.py      (needs onnx, onnxruntime and numpy)

precise/NAME/model.onnx with test_data_set_0/{input,output}_N.pb.
"""
import pathlib

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, save

HERE = pathlib.Path(__file__).resolve().parent / "precise"
RANDOM = np.random.default_rng(16)


def floats(*shape):
    scale = np.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 1.0
    return (scale * RANDOM.standard_normal(shape)).astype(np.float32)


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs.split(" "), [output], output, **attributes)


def image():
    """Three channels, a kernel of seven, a maximum, a shortcut, a strided and a depthwise convolution, a mean, a product."""
    constants = {"w0": floats(16, 3, 7, 7), "b0": floats(16), "w1": floats(32, 16, 3, 3), "w2": floats(32, 32, 1, 1),
                 "w3": floats(32, 1, 3, 3), "w4": floats(48, 32, 3, 3), "w5": floats(10, 48), "b5": floats(10)}
    nodes = [node("Conv", "x w0 b0", "c0", pads=[3, 3, 3, 3], strides=[2, 2]), node("Relu", "c0", "r0"),
             node("MaxPool", "r0", "m", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
             node("Conv", "m w1", "c1", pads=[1, 1, 1, 1]), node("Relu", "c1", "r1"), node("Conv", "r1 w2", "c2"),
             node("Add", "c2 r1", "s"), node("Relu", "s", "r2"),
             node("Conv", "r2 w3", "d", pads=[1, 1, 1, 1], group=32), node("Relu", "d", "r3"),
             node("Conv", "r3 w4", "c4", pads=[1, 1, 1, 1], strides=[2, 2]), node("Relu", "c4", "r4"),
             node("GlobalAveragePool", "r4", "g"), node("Flatten", "g", "f"), node("Gemm", "f w5 b5", "y", transB=1)]
    return nodes, [1, 3, 64, 64], constants


def tokens():
    """A norm that three products read, and so does a shortcut; attention of one head; a product with an activation."""
    constants = {"g": floats(32), "b": floats(32), "q": floats(32, 32), "k": floats(32, 32), "v": floats(32, 32),
                 "w1": floats(32, 64), "w2": floats(64, 32)}
    nodes = [node("LayerNormalization", "x g b", "n"), node("MatMul", "n q", "nq"), node("MatMul", "n k", "nk"),
             node("MatMul", "n v", "nv"), node("Transpose", "nk", "kt", perm=[0, 2, 1]), node("MatMul", "nq kt", "scores"),
             node("Softmax", "scores", "p"), node("MatMul", "p nv", "mixed"), node("Add", "mixed n", "s"),
             node("MatMul", "s w1", "h"), node("Relu", "h", "r"), node("MatMul", "r w2", "o"), node("Add", "o s", "y")]
    return nodes, [1, 24, 32], constants


def main():
    for make in [image, tokens]:
        nodes, shape, constants = make()
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
        graph = helper.make_graph(nodes, "test", [x], [y], initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        data = HERE / make.__name__ / "test_data_set_0"
        data.mkdir(parents=True, exist_ok=True)
        save(model, data.parent / "model.onnx")
        given = RANDOM.standard_normal(shape).astype(np.float32)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        for name, value in [("input", given), ("output", session.run(None, {"x": given})[0])]:
            (data / f"{name}_0.pb").write_bytes(numpy_helper.from_array(value).SerializeToString())


if __name__ == "__main__":
    main()
