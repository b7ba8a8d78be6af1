"""Small networks with random weights, for tests/networks.py: what the light networks, whose weights are constant, cannot tell apart."""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Net:
    """A network in the making; values are named by their number."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes, self.weights = [], []

    def weight(self, *shape, scale=1.0):
        return self.constant((self.random.standard_normal(shape) * scale).astype(np.float32))

    def constant(self, array):
        self.weights.append(numpy_helper.from_array(np.asarray(array), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def node(self, kind, *inputs, **attributes):
        self.nodes.append(helper.make_node(kind, list(inputs), [f"v{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def save(self, path, shape, output):
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, path.stem, [x], [y], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, path)


def convolutions(path):
    """Windows of all kinds; `stem` is read again by every later layer."""
    net = Net(1)

    def conv(x, inputs, outputs, kernel, groups=1, **attributes):
        fan = inputs // groups * kernel * kernel
        weight = net.weight(outputs, inputs // groups, kernel, kernel, scale=fan**-0.5)
        return net.node("Conv", x, weight, net.weight(outputs, scale=0.1), group=groups, **attributes)

    stem = net.node("Relu", conv("x", 3, 8, 3, strides=[2, 2], auto_pad="SAME_LOWER"))
    x = net.node("MaxPool", stem, kernel_shape=[3, 3], strides=[1, 1], auto_pad="SAME_LOWER")
    for _ in range(4):
        x = net.node("Add", net.node("Relu", conv(x, 8, 8, 3, pads=[1, 1, 1, 1])), stem)
    x = net.node("Concat", x, conv(x, 8, 8, 2, groups=8, auto_pad="SAME_UPPER"), stem, axis=1)
    x = net.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    x = net.node("ConvTranspose", x, net.weight(24, 4, 3, 3, scale=0.1), strides=[2, 2], pads=[1, 1, 1, 1])
    x = net.node("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=0)
    x = net.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    net.save(path, [2, 3, 27, 27], x)


def transformer(path, width=24, heads=3, tokens=11, layers=3):
    """Blocks before whose last layer the first sum, and each later one, is added again: buffers that live long and have many readers."""
    net = Net(2)
    size = width // heads

    def dense(x, inputs, outputs):
        return net.node("Add", net.node("MatMul", x, net.weight(inputs, outputs, scale=inputs**-0.5)), net.weight(outputs, scale=0.1))

    def norm(x):
        centred = net.node("Sub", x, net.node("ReduceMean", x, axes=[-1]))
        variance = net.node("ReduceMean", net.node("Mul", centred, centred), axes=[-1])
        deviation = net.node("Sqrt", net.node("Add", variance, net.constant(np.float32(1e-5))))
        return net.node("Add", net.node("Mul", net.node("Div", centred, deviation), net.weight(width)), net.weight(width, scale=0.1))

    def split(x):
        x = net.node("Reshape", x, net.constant(np.array([1, tokens, heads, size])))
        return net.node("Transpose", x, perm=[0, 2, 1, 3])

    first = dense("x", width, width)
    x, sums = first, [first]
    for _ in range(layers):
        y = norm(x)
        q, k, v = (split(dense(y, width, width)) for _ in range(3))
        # scores beyond 88, of which exp is infinite
        scores = net.node("Mul", net.node("MatMul", q, net.node("Transpose", k, perm=[0, 1, 3, 2])), net.constant(np.float32(40)))
        mixed = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
        mixed = net.node("Reshape", net.node("Transpose", mixed, perm=[0, 2, 1, 3]), net.constant(np.array([1, tokens, width])))
        x = net.node("Add", x, dense(mixed, width, width))
        hidden = dense(norm(x), width, 2 * width)
        hidden = net.node("Mul", hidden, net.node("Sigmoid", hidden))
        x = net.node("Add", x, dense(hidden, 2 * width, width))
        for earlier in sums:
            x = net.node("Add", x, net.node("MatMul", earlier, net.weight(width, width, scale=0.1 * width**-0.5)))
        sums.append(x)
    net.save(path, [1, tokens, width], net.node("Sum", *sums))


def elementwise(path):
    """More than a single task holds: a long chain, and values that are read twice."""
    net = Net(3)
    x = "x"
    for _ in range(20):
        x = net.node("Mul", x, net.node("Sigmoid", x))
        x = net.node("Add", x, net.node("Tanh", x))
    for at in range(150):
        x = net.node(("Neg", "Tanh", "Abs", "Cos", "Sin")[at % 5], x)
    net.save(path, [5, 37], net.node("Concat", x, net.node("Neg", x), axis=1))


def make(folder):
    for network in (convolutions, transformer, elementwise):
        network(folder / f"{network.__name__}.onnx")
