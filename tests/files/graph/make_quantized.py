#!/usr/bin/env python3
"""Makes small networks, quantised by ONNX Runtime's own tool, and what ONNX Runtime computes for them.

usage: make_quantized.py      (needs onnx, onnxruntime and numpy)

quantized/NAME/model.onnx with test_data_set_0/{input,output}_N.pb. Nothing is fused or rewritten for the expected
outputs, which so are those of QuantizeLinear, DequantizeLinear and of operators in f32 between them.
"""
import pathlib
import shutil
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

HERE = pathlib.Path(__file__).resolve().parent
RANDOM = np.random.default_rng(8)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values):
    return np.array(values, dtype=np.int64)


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs.split(" "), outputs.split(" "), outputs.split(" ")[0], **attributes)


def model(nodes, shape, constants):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "test", [x], [y], [numpy_helper.from_array(a, n) for n, a in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def convolutions():
    return model(
        [node("Conv", "x w0 b0", "c0", pads=[1, 1, 1, 1], strides=[2, 2]), node("Relu", "c0", "a"),
         node("Conv", "a w1 b1", "c1", pads=[1, 1, 1, 1]), node("Add", "c1 a", "s"), node("Relu", "s", "r"),
         node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]), node("Conv", "p w2", "c2"),
         node("GlobalAveragePool", "c2", "g"), node("Flatten", "g", "f"), node("Gemm", "f w3 b3", "y", transB=1)],
        (1, 3, 16, 16),
        {"w0": floats(8, 3, 3, 3), "b0": floats(8), "w1": floats(8, 8, 3, 3), "b1": floats(8), "w2": floats(16, 8, 1, 1),
         "w3": floats(5, 16), "b3": floats(5)})


def depthwise():
    return model(
        [node("Conv", "x w0 b0", "c0"), node("Clip", "c0 low high", "a"),
         node("Conv", "a w1 b1", "c1", pads=[1, 1, 1, 1], group=8), node("Clip", "c1 low high", "b"),
         node("Conv", "b w2", "c2", group=2), node("AveragePool", "c2", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
        (1, 4, 7, 6),
        {"w0": floats(8, 4, 1, 1), "b0": floats(8), "w1": floats(8, 1, 3, 3), "b1": floats(8), "w2": floats(4, 4, 1, 1),
         "low": np.float32(0), "high": np.float32(6)})


def joined():
    return model(
        [node("Conv", "x w0 b0", "c0", pads=[1, 0, 1, 1], dilations=[2, 1]), node("Sigmoid", "c0", "g"), node("Mul", "c0 g", "a"),
         node("Conv", "x w1", "c1", pads=[1, 0, 1, 1], dilations=[2, 1]), node("Relu", "c1", "b"), node("Concat", "a b", "j", axis=1),
         node("ConvTranspose", "j w2", "t", strides=[2, 2], pads=[1, 1, 1, 1]), node("Resize", "t  scales", "y", mode="nearest")],
        (1, 4, 6, 6),
        {"w0": floats(4, 4, 3, 2), "b0": floats(4), "w1": floats(4, 4, 3, 2), "w2": floats(8, 3, 3, 3),
         "scales": np.array([1, 1, 2, 2], dtype=np.float32)})


def attention():
    return model(
        [node("LayerNormalization", "x s b", "n", axis=-1), node("MatMul", "n wq", "q"), node("MatMul", "n wk", "k"),
         node("MatMul", "n wv", "v"), node("Add", "q bq", "qb"),
         node("Reshape", "qb heads", "qh"), node("Reshape", "k heads", "kh"), node("Reshape", "v heads", "vh"),
         node("Transpose", "qh", "qt", perm=[0, 2, 1, 3]), node("Transpose", "kh", "kt", perm=[0, 2, 3, 1]),
         node("Transpose", "vh", "vt", perm=[0, 2, 1, 3]), node("MatMul", "qt kt", "scores"),
         node("Softmax", "scores", "p"), node("MatMul", "p vt", "o"), node("Transpose", "o", "ot", perm=[0, 2, 1, 3]),
         node("Reshape", "ot flat", "of"), node("MatMul", "of wo", "m"), node("Add", "m x", "y")],
        (1, 6, 16),
        {"s": np.ones(16, np.float32), "b": floats(16), **{f"w{n}": floats(16, 16) / 4 for n in "qkvo"}, "bq": floats(16),
         "heads": ints(0, 0, 2, 8), "flat": ints(0, 0, 16)})


def products():
    return model(
        [node("MatMul", "x w0", "h"), node("Add", "h b0", "a"), node("Relu", "a", "r"), node("Gemm", "r w1 b1", "y", alpha=0.5)],
        (3, 12), {"w0": floats(12, 20), "b0": floats(20), "w1": floats(20, 7) + 1, "b1": floats(7)})


class Inputs(CalibrationDataReader):
    def __init__(self, shape):
        self.feeds = iter([{"x": floats(*shape)} for _ in range(4)])

    def get_next(self):
        return next(self.feeds, None)


def static(net, form=QuantFormat.QDQ, activation=QuantType.QUInt8, weight=QuantType.QInt8, **options):
    with tempfile.TemporaryDirectory() as scratch:
        files = [pathlib.Path(scratch) / name for name in ("plain.onnx", "prepared.onnx", "quantized.onnx")]
        onnx.save(net, files[0])
        quant_pre_process(files[0], files[1], skip_symbolic_shape=True)
        shape = [extent.dim_value for extent in net.graph.input[0].type.tensor_type.shape.dim]
        quantize_static(files[1], files[2], Inputs(shape), quant_format=form, activation_type=activation,
                        weight_type=weight, **options)
        return onnx.load(files[2])


def dynamic(net, **options):
    with tempfile.TemporaryDirectory() as scratch:
        files = [pathlib.Path(scratch) / name for name in ("plain.onnx", "quantized.onnx")]
        onnx.save(net, files[0])
        quantize_dynamic(files[0], files[1], **options)
        return onnx.load(files[1])


def as_float(net, name):
    """The network without quantising and dequantising a tensor."""
    quantize, = (n for n in net.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == name)
    dequantize, = (n for n in net.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == quantize.output[0])
    for reader in net.graph.node:
        reader.input[:] = [name if given == dequantize.output[0] else given for given in reader.input]
    net.graph.node.remove(quantize)
    net.graph.node.remove(dequantize)
    return net


def networks():
    signed = {"activation": QuantType.QInt8}
    symmetric = {"extra_options": {"ActivationSymmetric": True}}
    operators = {"form": QuantFormat.QOperator}
    yield "convolutions", static(convolutions(), per_channel=True)
    yield "convolutions_joined", as_float(static(convolutions(), per_channel=True), "c1")
    yield "convolutions_signed", static(convolutions(), **signed)
    yield "convolutions_symmetric", static(convolutions(), **signed, **symmetric, per_channel=True)
    yield "convolutions_unsigned", static(convolutions(), weight=QuantType.QUInt8)
    yield "convolutions_operators", static(convolutions(), **operators, per_channel=True)
    yield "depthwise", static(depthwise(), per_channel=True)
    yield "depthwise_unsigned", static(depthwise(), weight=QuantType.QUInt8)
    yield "joined", static(joined(), per_channel=True)
    yield "joined_operators", static(joined(), **operators)
    yield "attention", static(attention(), per_channel=True)
    yield "attention_signed", static(attention(), **signed)
    yield "attention_dynamic", dynamic(attention(), per_channel=True)
    yield "products", static(products(), per_channel=True)
    yield "products_unsigned", static(products(), weight=QuantType.QUInt8)
    yield "products_operators", static(products(), **operators)
    yield "products_dynamic", dynamic(products(), weight_type=QuantType.QUInt8)


def main():
    shutil.rmtree(HERE / "quantized", ignore_errors=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, net in networks():
        data = HERE / "quantized" / name / "test_data_set_0"
        data.mkdir(parents=True)
        onnx.save(net, data.parent / "model.onnx")
        session = onnxruntime.InferenceSession(net.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feed = {"x": floats(*session.get_inputs()[0].shape)}
        result = session.run(None, feed)[0]
        (data / "input_0.pb").write_bytes(numpy_helper.from_array(feed["x"]).SerializeToString())
        (data / "output_0.pb").write_bytes(numpy_helper.from_array(result).SerializeToString())


if __name__ == "__main__":
    main()
