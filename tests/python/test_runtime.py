"""Calls of a loaded network: results, memory, threads, states, and what is refused."""

import threading
import time

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import tilescribe as ts
from conftest import BF16, FLOAT, INT64, TensorProto, WEIGHT, counting, deep, product, running_total, two_outputs, typed


def array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def relu_product(x):
    return np.maximum(x @ WEIGHT, 0)


def test_results_are_those_of_onnxruntime(compiled):
    model = two_outputs()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    net = compiled("two_outputs", model)
    for batch in (1, 5, 64):
        x = array(batch, 16, seed=batch)
        outputs = net(x)
        for ours, theirs, name in zip(outputs, session.run(None, {"x": x}), outputs.names, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
            assert outputs[name] is ours and ours.shape == theirs.shape
        assert list(dict(outputs)) == ["y", "total"] == list(net.run({"x": x}))


def test_inputs_come_in_any_way(compiled):
    net = compiled("product", product(3))
    x = array(3, 16)
    for y in (net(x), net(x=x), net({"x": x}), net(x.tolist()), net.run([x])["y"], net(np.asfortranarray(x))):
        np.testing.assert_allclose(y, relu_product(x), rtol=1e-4, atol=1e-4)
        assert y.dtype == np.float32 and y.shape == (3, 16)


def test_dense_inputs_are_read_where_they_are(compiled):
    net = compiled("two_outputs", two_outputs())
    x = array(64, 16)
    assert net._addresses(x) == [x.ctypes.data]
    assert net._addresses(x[3:40]) == [x.ctypes.data + 3 * 64], "rows of an array are dense"
    assert net._addresses(x[::2]) != [x.ctypes.data], "every other row is not"
    unaligned = np.zeros(64 * 16 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(64, 16)
    assert net._addresses(unaligned) != [unaligned.ctypes.data]
    read_only = array(8, 16)
    read_only.flags.writeable = False
    assert net._addresses(read_only) == [read_only.ctypes.data]


class Lender:
    """A tensor of another library."""

    def __init__(self, lent):
        self.lent = lent

    def __dlpack__(self):
        return self.lent.__dlpack__()


def test_tensors_of_other_libraries_are_read_where_they_are(compiled):
    net = compiled("two_outputs", two_outputs())
    x = array(6, 16)
    assert net._addresses(Lender(x)) == [x.ctypes.data]
    every_other = x[::2]
    np.testing.assert_array_equal(net(Lender(every_other))["y"], net(every_other.copy())["y"])
    assert net._addresses(Lender(every_other)) != [x.ctypes.data]
    with pytest.raises(ts.DTypeError, match="f64 was given"):
        net(Lender(x.astype(np.float64)))
    with pytest.raises(ts.ShapeError):
        net(Lender(array(6, 4, 4)))


def test_results_go_where_the_caller_says(compiled):
    net = compiled("product", product(3))
    x, out = array(3, 16), np.full((3, 16), np.nan, np.float32)
    assert net(x, out=out) is out
    np.testing.assert_allclose(out, relu_product(x), rtol=1e-4, atol=1e-4)
    pair = compiled("two_outputs", two_outputs())
    y = np.empty((3, 16), np.float32)
    outputs = pair(x, out={"y": y})
    assert outputs["y"] is y and outputs["total"].shape == ()
    lender = Lender(np.zeros((3, 16), np.float32))
    net(x, out=lender)
    np.testing.assert_array_equal(lender.lent, out)
    for wrong, kind in [
        (np.empty((2, 16), np.float32), ts.ShapeError),
        (np.empty((3, 16)), ts.DTypeError),
        (np.empty((16, 3), np.float32).T, ts.InputError),
        ([out, out], ts.InputError),
        ({"z": out}, ts.InputError),
    ]:
        with pytest.raises(kind):
            net(x, out=wrong)


ELEMENTS = [
    (FLOAT, np.float32), (TensorProto.FLOAT16, np.float16), (BF16, ml_dtypes.bfloat16), (TensorProto.DOUBLE, np.float64),
    (TensorProto.INT8, np.int8), (TensorProto.UINT8, np.uint8), (TensorProto.INT16, np.int16), (TensorProto.UINT16, np.uint16),
    (TensorProto.INT32, np.int32), (TensorProto.UINT32, np.uint32), (INT64, np.int64), (TensorProto.UINT64, np.uint64),
]  # fmt: skip


@pytest.mark.parametrize(("element", "dtype"), ELEMENTS, ids=lambda it: getattr(it, "__name__", ""))
def test_every_type_comes_and_goes(compiled, element, dtype):
    net = compiled(f"typed_{np.dtype(dtype).name}", typed(element))
    a = np.arange(32).reshape(4, 8).astype(dtype)
    y = net(a, a)
    assert y.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(y, a + a)


def test_results_are_as_many_as_there_are(compiled):
    net = compiled("counting", counting())
    for share in (0.0, 0.3, 1.0):
        x = (np.random.default_rng(3).random((4, 8)) < share).astype(np.float32)
        np.testing.assert_array_equal(net(x), np.nonzero(x))
    assert net.outputs[0].max_shape == (2, 32) and net.output_shapes([[4, 8]]) == [(2, 32)]


def test_what_a_network_takes_is_told(compiled):
    net = compiled("two_outputs", two_outputs())
    (x,), (y, total) = net.inputs, net.outputs
    assert (x.name, x.dtype, x.shape, x.min_shape, x.max_shape) == ("x", np.float32, ("batch", 16), (1, 16), (64, 16))
    assert y.shape == ("batch", 16) and total.shape == ()
    assert net.output_shapes([[7, 16]]) == [(7, 16), ()]
    assert "x: f32[batch, 16]" in repr(net) and repr(x) == "<TensorSpec x: f32[batch, 16]>"


def test_wrong_inputs_are_refused_by_name(compiled):
    net = compiled("two_outputs", two_outputs())
    x = array(3, 16)
    for call, kind, message in [
        (lambda: net(), ts.InputError, "input `x` is missing"),
        (lambda: net(z=x), ts.InputError, "no input `z`; it takes `x`"),
        (lambda: net(x, x), ts.InputError, "2 inputs were given"),
        (lambda: net(x, x=x), ts.InputError, "given twice"),
        (lambda: net({}), ts.InputError, "input `x` is missing"),
        (lambda: net({"x": x, "z": x}), ts.InputError, "no input `z`"),
        (lambda: net("text"), ts.InputError, "`x` is given by no array but str"),
        (lambda: net(x.astype(np.float64)), ts.DTypeError, 'f32, float64 was given: .*astype."float32"'),
        (lambda: net(x.astype(">f4")), ts.DTypeError, "f32"),
        (lambda: net(x[:0]), ts.ShapeError, "axis 0 of input x, batch, is 0; the network takes 1 to 64"),
        (lambda: net(array(65, 16)), ts.ShapeError, "is 65; the network takes 1 to 64"),
        (lambda: net(array(3, 15)), ts.ShapeError, "15"),
        (lambda: net(array(3, 4, 4)), ts.ShapeError, r"f32\[batch, 16\], f32\[3, 4, 4\] was given"),
        (lambda: net.reset(), ts.InputError, "keeps no states"),
        (lambda: net.state("past"), KeyError, "past"),
    ]:
        with pytest.raises(kind, match=message):
            call()


def test_a_view_that_no_memory_holds_is_not_copied(compiled):
    net = compiled("two_outputs", two_outputs())
    endless = np.lib.stride_tricks.as_strided(array(1, 16), (1 << 50, 16), (0, 4))
    for given in (endless, Lender(endless)):
        with pytest.raises(ts.ShapeError, match=r"takes \[1, 16\] to \[64, 16\]"):
            net(given)


def test_exceptions_are_also_the_built_in_ones():
    assert issubclass(ts.DTypeError, TypeError) and issubclass(ts.ShapeError, ValueError)
    assert issubclass(ts.ArtifactError, ValueError) and issubclass(ts.TargetError, RuntimeError)
    names = [name for name in ts.__all__ if name.endswith("Error") and name != "Error"]
    assert len(names) >= 9 and all(issubclass(getattr(ts, name), ts.Error) for name in names)


def test_folders_that_are_no_artifacts_are_refused(compiled, tmp_path):
    with pytest.raises(ts.ArtifactError, match="no manifest.json"):
        ts.load(tmp_path)
    with pytest.raises(ts.ArtifactError):
        ts.load(tmp_path / "nowhere")
    import shutil

    path = compiled("product", product(3)).path
    damaged = tmp_path / "damaged"
    shutil.copytree(path, damaged)
    weights = (damaged / "weights.safetensors").read_bytes()
    (damaged / "weights.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(ts.ArtifactError, match="SHA-256"):
        ts.load(damaged)
    for options in ({"threads": 0}, {"concurrent": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            ts.load(path, **options)
    with pytest.raises(ts.InputError, match="compiled for CPUs"):
        ts.load(path, device=0)


def test_an_input_can_be_a_constant(compiled):
    net = compiled("constant_total", running_total(), constants={"total": 2})
    assert [spec.name for spec in net.inputs] == ["x"]
    for result in net(np.ones(8, np.float32)):
        np.testing.assert_array_equal(result, 3 * np.ones(8, np.float32))
    with pytest.raises(ts.ShapeError, match="no input totl; it has total, x"):
        ts.describe(running_total(), constants={"totl": 2})


def test_states_go_on_from_call_to_call(compiled):
    net = compiled("running_total", running_total(), states={"total": "next"})
    assert [spec.name for spec in net.states] == ["total"] and [spec.name for spec in net.inputs] == ["x"]
    ones = np.ones(8, np.float32)
    assert [net(ones)[0] for _ in range(3)] == [1, 2, 3]
    np.testing.assert_array_equal(net.state("total"), 3 * ones)
    net.set_state("total", 10 * ones)
    assert net(ones)[0] == 11
    net.reset()
    assert net(ones)[0] == 1
    with pytest.raises(ts.ShapeError):
        net.set_state("total", np.ones(7, np.float32))
    with pytest.raises(ts.DTypeError):
        net.set_state("total", np.ones(8))
    assert net.concurrent == 1, "calls go on from one another"


def test_eight_threads_call_one_model(compiled):
    net = compiled("two_outputs", two_outputs(), threads=1, concurrent=3)
    wrong = []

    def calls(number):
        rng = np.random.default_rng(number)
        for _ in range(200):
            x = rng.standard_normal((rng.integers(1, 65), 16)).astype(np.float32)
            outputs = net(x)
            same = np.allclose(outputs["y"], relu_product(x), rtol=1e-4, atol=1e-4)
            if not same or outputs["y"].shape != x.shape:
                wrong.append(number)

    threads = [threading.Thread(target=calls, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_calls_release_the_interpreters_lock(compiled):
    net = compiled("deep", deep(384, 24), threads=1)
    x = array(384, 384)
    net(x)
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)

    counter = threading.Thread(target=count)
    counter.start()
    try:
        before = counted[0]
        net(x)
        during = counted[0] - before
    finally:
        stop.set()
        counter.join()
    assert during > 10, "another thread ran meanwhile"


def test_a_profile_tells_the_time_of_every_task(compiled):
    net = compiled("two_outputs", two_outputs())
    profile = net.profile({"x": array(64, 16)}, runs=20)
    assert profile.runs == 20 and len(profile.tasks) == 2
    assert abs(sum(task.share for task in profile.tasks) - 1) < 1e-6
    assert all(task.calls == 1 and task.seconds > 0 for task in profile.tasks)
    assert "all tasks" in str(profile) and str(profile) == str(profile)
    assert net.profile(runs=1).seconds > 0
    with pytest.raises(ValueError, match="at least 1"):
        net.profile(runs=0)
