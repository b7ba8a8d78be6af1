"""What the package does with its program: check, compile, tune, compare, and how it ends."""

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import tilescribe as ts
from conftest import FLOAT, WEIGHT, product, two_outputs, value
from onnx import helper
from tilescribe.metadata import metadata

X = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)


def test_squeezenet_is_compiled_and_right(squeezenet, tmp_path):
    net = ts.compile(squeezenet, tmp_path / "net", trials=1, progress=False)
    x = np.random.default_rng(0).standard_normal(net.inputs[0].max_shape).astype(np.float32)
    theirs = onnxruntime.InferenceSession(squeezenet).run(None, {net.inputs[0].name: x})[0]
    np.testing.assert_allclose(net(x), theirs, rtol=1e-3, atol=1e-5)


def test_networks_come_as_files_bytes_and_protos(tmp_path):
    model = product(3)
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    results = [
        ts.compile(network, tmp_path / f"net{number}", trials=0, progress=False)(X)
        for number, network in enumerate([path, str(path), model.SerializeToString(), model])
    ]
    for result in results:
        np.testing.assert_array_equal(result, results[0])
    with pytest.raises(FileNotFoundError):
        ts.compile(tmp_path / "missing.onnx", tmp_path / "out", progress=False)
    with pytest.raises(ts.ArgumentError, match="a dict is no network"):
        ts.compile({}, tmp_path / "out", progress=False)
    with pytest.raises(ts.ArgumentError, match="for modules"):
        ts.compile(path, tmp_path / "out", example_inputs=(X,), progress=False)


def test_products_in_bf16_round_what_they_read(tmp_path):
    bf16 = ml_dtypes.bfloat16
    exact, short = (ts.compile(product(3), tmp_path / it, precision=it, trials=0, progress=False) for it in ("f32", "bf16"))
    assert (exact.precision, short.precision) == ("f32", "bf16")
    x, weight = (it.astype(bf16).astype(np.float32) for it in (X, WEIGHT))
    np.testing.assert_allclose(short(X), np.maximum(x @ weight, 0), rtol=1e-5, atol=1e-5)
    assert np.abs(short(X) - exact(X)).max() > 1e-4
    # without a folder, too: each precision has an artifact of its own
    kept = [ts.compile(product(3), precision=it, trials=0, progress=False) for it in ("f32", "bf16", "f32")]
    assert [it.precision for it in kept] == ["f32", "bf16", "f32"] and kept[0].path == kept[2].path
    with pytest.raises(ts.ArgumentError, match="no precision"):
        ts.compile(product(3), precision="bf8", progress=False)


def test_what_goes_in_and_out_is_described():
    found = ts.describe(two_outputs(), dims={"batch": (2, 8)})
    assert found.inputs == (("x", "f32", ("batch", 16)),)
    assert found.outputs == (("y", "f32", ("batch", 16)), ("total", "f32", ()))
    assert found.dimensions == {"batch": (2, 8)} and found.tasks == 2 and found.flops > 0


def unsupported():
    nodes = [
        helper.make_node("Abacus", ["x"], ["a"], domain="tools", name="counting"),
        helper.make_node("Sundial", ["a"], ["y"], domain="tools"),
    ]
    graph = helper.make_graph(nodes, "net", [value("x", [2], FLOAT)], [value("y", [2], FLOAT)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("tools", 1)])


def test_everything_unsupported_is_told_at_once():
    assert ts.check(product(3)) == []
    problems = ts.check(unsupported())
    assert [(it.domain, it.operator, it.node) for it in problems] == [("tools", "Abacus", "counting"), ("tools", "Sundial", "y")]
    assert str(problems[0]) == "unsupported operator tools.Abacus in node counting"
    with pytest.raises(ts.UnsupportedError, match="Sundial") as raised:
        ts.compile(unsupported(), progress=False)
    assert list(raised.value.problems) == problems
    assert len(ts.check(b"no network at all")) == 1


def lacking(folder):
    """A description of this machine, and of a feature that no machine has beside the others."""
    text = subprocess.run([ts.program(), "doctor"], capture_output=True, text=True, check=True).stdout
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    path = folder / "lacking.toml"
    path.write_text(text.replace("features = [", 'features = ["+xop", "+avx512fp16", ', 1))
    return path


def test_errors_are_told_apart(tmp_path):
    net = product(3)
    for call, kind, message in [
        (lambda: ts.compile(b"text", tmp_path / "a", progress=False), ts.NetworkError, "no ONNX model"),
        (lambda: ts.compile(net, tmp_path / "a", dims={"batch": 3}, progress=False), ts.ArgumentError, "batch"),
        (lambda: ts.compile(net, tmp_path / "a", dims={"x": "many"}, progress=False), ts.ArgumentError, "many"),
        (lambda: ts.compile(net, tmp_path / "a", target="missing.toml", progress=False), ts.ArgumentError, "missing.toml"),
        (lambda: ts.compile(net, tmp_path / "a", method="guessing", progress=False), ts.ArgumentError, "guessing"),
    ]:
        with pytest.raises(kind, match=message):
            call()
    (tmp_path / "machine.toml").write_text("cpu = 3")
    with pytest.raises(ts.TargetError):
        ts.compile(net, tmp_path / "a", target=tmp_path / "machine.toml", progress=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("...")
    with pytest.raises(ts.ArgumentError, match="not an artifact"):
        ts.compile(net, tmp_path / "mine", trials=0, progress=False)
    assert (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the features are those of x86-64")
def test_a_machine_that_lacks_a_feature_is_told_so(tmp_path):
    with pytest.raises(ts.TargetError, match="this processor lacks `"):
        ts.compile(product(3), tmp_path / "net", target=lacking(tmp_path), trials=0, progress=False)
    with pytest.raises(ts.TargetError, match="this processor lacks `"):
        ts.load(tmp_path / "net")


def test_a_network_without_a_folder_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen = []
    first = ts.compile(product(3), trials=1, progress=seen.append)
    assert seen and all(isinstance(step, ts.Progress) for step in seen)
    seen.clear()
    again = ts.compile(product(3), trials=1, progress=seen.append)
    assert not seen, "nothing was compiled"
    assert first.path == again.path and str(first.path).startswith(str(tmp_path))
    other = ts.compile(product(3), trials=0, progress=False)
    assert other.path != first.path
    np.testing.assert_array_equal(first(X), again(X))


def test_tuning_tells_what_it_found(tmp_path):
    report = ts.tune(product(64), trials=4, method="random", store=tmp_path / "store.db", progress=False)
    (task,) = report.tasks
    assert report.trials == 4 == task.trials and report.seconds > 0
    assert task.best_s > 0 and task.untuned_s > 0 and task.trace
    again = ts.tune(product(64), trials=4, method="random", store=tmp_path / "store.db", progress=False)
    assert again.trials == 0, "what is known counts"


def test_what_was_tuned_since_is_taken(tmp_path):
    store = tmp_path / "store.db"
    before = ts.compile(product(48), trials=0, store=store, progress=False)
    assert ts.compile(product(48), trials=0, store=store, progress=False).path == before.path
    ts.tune(product(48), trials=2, method="random", store=store, progress=False)
    assert ts.compile(product(48), trials=0, store=store, progress=False).path != before.path


def test_methods_are_compared(tmp_path):
    found = ts.compare(product(64), methods=["random", "evolution"], output=tmp_path, trials=3, seeds=1, progress=False)
    assert set(found.summary) == {"random", "evolution"} and all(curve for curve in found.summary.values())
    assert found.report.read_text().startswith("<!doctype html>")
    with pytest.raises(ts.ArgumentError):
        ts.compare()


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    store = tmp_path / "store.db"
    script = (
        "import signal, sys, tilescribe as ts\n"
        "from conftest import product\n"
        # what a shell starts in the background is told to ignore it
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "tell = lambda step: print(step.what, step.done, flush=True)\n"
        "try: ts.tune(product(64), trials=100000, method='random', store=sys.argv[1], progress=tell)\n"
        "except KeyboardInterrupt as error: print('interrupted:', error)\n"
    )
    command = [sys.executable, "-c", script, str(store)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    lines = []
    for line in child.stdout:
        lines.append(line)
        if line.startswith("measuring ") and int(line.split()[1]) >= 3:
            break
    child.send_signal(signal.SIGINT)
    rest = child.communicate(timeout=120)[0]
    assert child.returncode == 0 and "interrupted: " in rest and "kept" in rest, (lines, rest)
    report = ts.tune(product(64), trials=1, method="random", store=store, progress=False)
    assert report.trials == 0, "the store holds what was measured"


def test_the_interpreter_is_free_while_the_program_runs(tmp_path):
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    ts.compile(product(48), tmp_path / "net", trials=4, store=tmp_path / "store.db", progress=False)
    stop.set()
    ticker.join()
    assert ticks[0] > 10


def test_a_session_looks_like_that_of_onnxruntime(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(two_outputs(), path)
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    ours = ts.InferenceSession(path, providers=["CPUExecutionProvider"], trials=0, progress=False)
    for listed in ("get_inputs", "get_outputs"):
        for one, other in zip(getattr(ours, listed)(), getattr(theirs, listed)(), strict=True):
            assert (one.name, one.type, one.shape) == (other.name, other.type, other.shape)
    for names in (None, ["total"], ["total", "y"]):
        for one, other in zip(ours.run(names, {"x": X}), theirs.run(names, {"x": X}), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert ours.get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(ts.InputError, match="no output z"):
        ours.run(["z"], {"x": X})
    folder = ts.InferenceSession(ours.model.path)
    np.testing.assert_array_equal(folder.run(["y"], {"x": X})[0], ours.run(["y"], {"x": X})[0])


def test_a_session_tells_what_the_exporter_left():
    model = product(3)
    helper.set_model_props(model, {"labels": "a\nb", "": "nothing"})
    session = ts.InferenceSession(model.SerializeToString(), trials=0, progress=False)
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    assert session.get_modelmeta().custom_metadata_map == theirs.get_modelmeta().custom_metadata_map
    cut_off = model.SerializeToString()[:-3]
    assert len(metadata(cut_off)) <= 2 and metadata(b"\xff" * 20) == {}


def public():
    import tilescribe_runtime

    for module in (ts, tilescribe_runtime):
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)


def test_every_public_name_is_documented():
    stub = (Path(inspect.getfile(__import__("tilescribe_runtime"))).parent / "_native.pyi").read_text()
    for name, found in public():
        if name.endswith("__version__"):
            continue
        if "_native" in getattr(found, "__module__", "") or found.__class__.__name__.startswith("builtin"):
            short = name.rpartition(".")[2]
            head = stub.split(f"def {short}(" if found.__class__.__name__.startswith("builtin") else f"class {short}", 1)[1]
            assert '"""' in head[:400], name
        else:
            assert (found.__doc__ or "").strip(), name
        if inspect.isclass(found) and "_native" not in found.__module__:
            members = [it for it in vars(found).values() if inspect.isfunction(it) and not it.__name__.startswith("_")]
            assert all(it.__doc__ for it in members), name
