"""Small networks, and a place for what is compiled."""

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BF16 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BFLOAT16


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """No test meets what others, or the user, have measured."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


def value(name, shape, element=FLOAT):
    return helper.make_tensor_value_info(name, element, shape)


def network(nodes, inputs, outputs, constants=()):
    constants = [numpy_helper.from_array(array, name) for name, array in dict(constants).items()]
    graph = helper.make_graph(nodes, "network", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


WEIGHT = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
PRODUCT = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]


def product(rows):
    """``relu(x @ w)`` with x of ``rows`` × 16."""
    return network(PRODUCT, [value("x", [rows, 16])], [value("y", [rows, 16])], {"w": WEIGHT})


def two_outputs():
    """``relu(x @ w)`` and the sum over ``x @ w``, of any batch."""
    total = helper.make_node("ReduceSum", ["a"], ["total"], keepdims=0)
    return network([*PRODUCT, total], [value("x", ["batch", 16])], [value("y", ["batch", 16]), value("total", [])], {"w": WEIGHT})


def counting():
    """Where ``x`` is not 0."""
    return network([helper.make_node("NonZero", ["x"], ["places"])], [value("x", [4, 8])], [value("places", [2, "count"], INT64)])


def typed(element):
    """``a + b`` of a type."""
    add = helper.make_node("Add", ["a", "b"], ["y"])
    return network([add], [value("a", [4, 8], element), value("b", [4, 8], element)], [value("y", [4, 8], element)])


def running_total():
    """``next = total + x``, and the same once more as an output."""
    nodes = [helper.make_node("Add", ["total", "x"], ["next"]), helper.make_node("Relu", ["next"], ["y"])]
    return network(nodes, [value("total", [8]), value("x", [8])], [value("next", [8]), value("y", [8])])


def deep(width, depth):
    """A chain of products, slow enough to see that two run at one time."""
    rng = np.random.default_rng(1)
    weights = {f"w{i}": (rng.standard_normal((width, width)) / width**0.5).astype(np.float32) for i in range(depth)}
    nodes = [helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"]) for i in range(depth)]
    return network(nodes, [value("v0", [width, width])], [value(f"v{depth}", [width, width])], weights)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """Compiles a network without a search, once, and loads it."""
    import tilescribe as ts

    folders = {}

    def compile_and_load(name, model, threads=None, concurrent=None, **options):
        if name not in folders:
            folder = tmp_path_factory.mktemp("compiled") / name
            ts.compile(model, folder, trials=0, progress=False, **options)
            folders[name] = folder
        return ts.load(folders[name], threads=threads, concurrent=concurrent)

    return compile_and_load


@pytest.fixture(scope="session")
def squeezenet(tmp_path_factory):
    """The demo's network as ONNX, where the repository's program for it was built."""
    program = Path(__file__).resolve().parents[2] / "target" / "release" / "examples" / "demo_network"
    if not program.exists():
        pytest.skip(f"{program} is not built: cargo build --release --examples")
    path = tmp_path_factory.mktemp("squeezenet") / "squeezenet.onnx"
    subprocess.run([program, path], check=True, stdout=subprocess.DEVNULL)
    return path
