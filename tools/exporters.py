#!/usr/bin/env python3
"""Networks as other frameworks and PyTorch's scripts write them, held to ONNX Runtime.

usage: exporters.py keras OUT_DIR [NAME ...]        networks of Keras, by tf2onnx
       exporters.py tensorflow OUT_DIR [TEXT ...]   functions, layers and loops of `tensorflow_networks.py` (TEXT: in the name)
       exporters.py tflite OUT_DIR                  the networks inside MediaPipe's package, by tf2onnx
       exporters.py jax OUT_DIR [TEXT ...]          what jax2onnx tests itself with, some 1,700 small networks (TEXT: in the name)
       exporters.py scripted OUT_DIR [TEXT ...]     modules of `scripted_networks.py`, by torch.jit.script, two operator sets each
       exporters.py optimum OUT_DIR [NAME ...]      architectures of `optimum_networks.py`, by Optimum: decoders with caches, merged ones
       exporters.py optimized OUT_DIR FILE.onnx ... networks as ONNX Runtime's optimizers write them: `_extended` by the graph
                                                    optimizer, `_fused` by that for transformers, `_dynamic` with weights of 8 bits
       exporters.py check [--json OUT] FILE.onnx ...

`check` compiles every file by `target/release/tilescribe compile --trials-per-task 0`, without any other flag but the constants that
merged decoders need, has every task of the artifact read by `tilescribe show`, and runs it where its open extents are 2, and where
they are 3, or as near to that as the network takes: results have to agree with ONNX Runtime's within 1e-3 of each output's largest
magnitude. What ONNX Runtime cannot load or run is skipped, and what draws random
numbers or computes no numbers at all is not compared. Exit code: 1 if a network that compiles is wrong, else 0.

The exporters do not get on in one environment: keras, tensorflow and tflite need tensorflow-cpu 2.15 and tf2onnx 1.16, jax needs
jax2onnx, flax and equinox, scripted needs torch, optimum needs optimum-onnx, optimized and check need numpy, onnx and onnxruntime.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile

KERAS = {
    "Xception": 299, "MobileNet": 224, "MobileNetV3Small": 224, "NASNetMobile": 224, "InceptionResNetV2": 299, "InceptionV3": 299,
    "ResNet50V2": 224, "EfficientNetV2B0": 224, "DenseNet121": 224, "VGG16": 224,
}
MEDIAPIPE = "mediapipe==0.10.9"
OPSET = 17
CONSTANTS = {"use_cache_branch": "true"}
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Dropout"}


def keras(out, names):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow
    import tf2onnx

    for name in names or KERAS:
        tensorflow.keras.backend.clear_session()
        tensorflow.random.set_seed(0)
        side = KERAS[name]
        network = getattr(tensorflow.keras.applications, name)(weights=None, input_shape=(side, side, 3))
        signature = (tensorflow.TensorSpec((1, side, side, 3), tensorflow.float32, name="x"),)
        tf2onnx.convert.from_keras(network, input_signature=signature, opset=OPSET, output_path=str(out / f"keras_{name.lower()}.onnx"))
        print(name, flush=True)


def tensorflow(out, texts):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow
    import tensorflow_networks
    import tf2onnx

    for name, function, shapes in tensorflow_networks.networks():
        if texts and not any(text in name for text in texts):
            continue
        signature = tuple(tensorflow.TensorSpec(shape, tensorflow.float32, name=f"x{at}") for at, shape in enumerate(shapes))
        exported = tensorflow.function(function, input_signature=signature)
        tf2onnx.convert.from_function(exported, input_signature=signature, opset=OPSET, output_path=str(out / f"tf_{name}.onnx"))
        print(name, flush=True)


def scripted(out, texts):
    import scripted_networks
    import torch

    torch.manual_seed(0)
    for name, module, shape, dims in scripted_networks.networks():
        if texts and not any(text in name for text in texts):
            continue
        sample = (torch.randn(*shape),)
        for opset in (11, OPSET):
            dynamic = {"x": dims} if dims else None
            names = {"input_names": ["x"], "dynamic_axes": dynamic, "opset_version": opset, "dynamo": False}
            torch.onnx.export(torch.jit.script(module), sample, str(out / f"scripted_{name}_{opset}.onnx"), **names)
        print(name, flush=True)


def optimum(out, names):
    import optimum_networks
    import torch
    from optimum.exporters.onnx import onnx_export_from_model

    torch.manual_seed(0)
    for name, module, task in optimum_networks.networks():
        if names and name not in names:
            continue
        folder = out / name
        onnx_export_from_model(model=module.eval(), output=folder, task=task, monolith=False, do_validation=False)
        for file in folder.glob("*.onnx"):
            file.rename(out / (f"{name}.onnx" if file.stem == "model" else f"{name}_{file.stem}.onnx"))
        print(name, flush=True)


def optimized(out, files):
    import logging

    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model

    logging.disable(logging.WARNING)
    for file in map(pathlib.Path, files):
        extended, fused, dynamic = (out / f"{file.stem}_{kind}.onnx" for kind in ("extended", "fused", "dynamic"))
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(extended)
        try:
            onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
            optimize_model(str(file), model_type="bert", opt_level=0).save_model_to_file(str(fused))
            quantize_dynamic(fused, dynamic)
        # of ONNX Runtime
        except Exception as error:
            print(f"{file.stem}: {str(error).splitlines()[0][:160]}", flush=True)
        for written in (extended, fused, dynamic):
            # all that is in ONNX's own domain is as good as the file
            if written.exists() and written != dynamic and not foreign(written) - foreign(file):
                written.unlink()
        print(file.stem, flush=True)


def foreign(file):
    """Operators of other domains than ONNX's own."""
    import onnx

    nodes = onnx.load(file, load_external_data=False).graph.node
    return {(node.domain, node.op_type) for node in nodes if node.domain not in ("", "ai.onnx")}


def tflite(out, _):
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", out, MEDIAPIPE], check=True)
    wheel = next(out.glob("mediapipe-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.namelist():
            if not entry.endswith(".tflite"):
                continue
            # the name alone: no path of the archive decides where anything is written
            file = out / pathlib.PurePosixPath(entry).name
            file.write_bytes(archive.read(entry))
            command = ["--tflite", file, "--output", file.with_suffix(".onnx"), "--opset", OPSET]
            done = subprocess.run([sys.executable, "-m", "tf2onnx.convert", *map(str, command)], capture_output=True)
            print(file.stem, "" if done.returncode == 0 else "cannot be converted", flush=True)


def jax(out, texts):
    os.environ["JAX_PLATFORMS"] = "cpu"
    import onnx
    from jax2onnx import to_onnx
    from jax2onnx.plugins import plugin_system

    plugin_system.import_all_plugins()
    about = [getattr(plugin, "metadata", None) or {} for plugin in plugin_system.PLUGIN_REGISTRY.values()]
    for case in [case for held in about + list(plugin_system.EXAMPLE_REGISTRY.values()) for case in held.get("testcases") or []]:
        name = case["testcase"]
        if texts and not any(text in name for text in texts):
            continue
        try:
            model = to_onnx(*called(case), input_params=dict(case.get("input_params") or {}), model_name=name,
                            opset=case.get("opset_version", 23))
            onnx.save(model, out / f"{name}.onnx")
        except Exception as error:
            print(f"{name}: {repr(error)[:160]}", flush=True)


def called(case):
    """What is exported, and what it is given."""
    import jax
    import numpy

    function = case["callable"]
    if hasattr(function, "with_dtype"):
        function = function.with_dtype(jax.numpy.float32)
    if hasattr(function, "instantiate"):
        function = function.instantiate()
    if case.get("input_shapes") is None:
        narrow = {numpy.dtype("float64"): numpy.float32, numpy.dtype("int64"): numpy.int32}
        values = [numpy.asarray(value) for value in case.get("input_values") or []]
        return function, [jax.ShapeDtypeStruct(value.shape, narrow.get(value.dtype, value.dtype)) for value in values]
    shapes = [shape if isinstance(shape, (tuple, list)) else (shape,) for shape in case["input_shapes"]]
    types = case.get("input_dtypes") or [None] * len(shapes)
    is_fixed = lambda shape: all(isinstance(extent, int) for extent in shape)
    return function, [jax.ShapeDtypeStruct(tuple(shape), dtype) if dtype is not None and is_fixed(shape) else tuple(shape)
                      for shape, dtype in zip(shapes, types)]


def check(files, report):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = [row for found in pool.map(checked, files) for row in found]
    kinds = {kind: sum(row["is"] == kind for row in rows) for kind in ("right", "wrong", "refused", "skipped")}
    print(", ".join(f"{count} {kind}" for kind, count in kinds.items()))
    if report:
        report.write_text(json.dumps(rows, indent=1))
    return 1 if kinds["wrong"] else 0


def checked(file):
    import onnx
    import onnxruntime
    import published

    model = onnx.load(file, load_external_data=False)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    known = published.extents(model)
    constants = {name: value for name, value in CONSTANTS.items() if any(given.name == name for given in model.graph.input)}
    rows = []
    try:
        onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        sizes = [fitting(file, model, extent, constants) for extent in ((2, 3) if known else (1,))]
        for row in published.compared_at(file.stem, file, sizes, constants):
            kind = "refused" if "refused" in row else "right" if published.agrees(row) else "wrong"
            rows.append({**row, "is": "skipped" if kind == "wrong" and draws(model) else kind})
    # of ONNX Runtime, or of the reader of the file
    except Exception as error:
        rows.append({"network": file.stem, "is": "skipped", "why": str(error).splitlines()[0][:200]})
    for row in rows:
        told = row.get("refused") or row.get("why") or f"{row['difference']:.1e}"
        print(f"{row['network']:<56} {row['is']:<8} {' '.join(map(str, row.get('size', {}).values())):<6} {told}", flush=True)
    return rows


def fitting(file, model, wanted, constants):
    """Extents as near to the wanted one as the network takes, by the names that the file gives them."""
    import published

    flags = [part for name, value in constants.items() for part in ("--constant", f"{name}={value}")]
    known = dict.fromkeys(published.extents(model), wanted)
    try:
        said = json.loads(published.run([published.BINARY, "check", file, "--json", *flags]))
    # which says why when it is compiled
    except subprocess.CalledProcessError:
        return known
    round_up = lambda value, multiple: -(-value // multiple) * multiple
    taken = {dim["name"]: min(round_up(max(wanted, dim["low"]), dim["multiple"]), dim["high"]) for dim in said["dimensions"]}
    shapes = {given["name"]: given["shape"] for given in said["inputs"]}
    for value in published.given(model):
        for name, extent in zip(published.names(value), shapes.get(value.name, [])):
            if name:
                known[name] = extent if isinstance(extent, int) else sum_of(extent, taken)
    return known


def sum_of(formula, taken):
    """What the sum of dimensions comes to that `tilescribe check` spells."""
    total = 0
    for sign, term in re.findall(r"(?:^|([+-]) )((?:(?! [+-] ).)+)", formula):
        factor, _, name = term.rpartition("*")
        # a part of what is a multiple
        whole, _, parts = name.rpartition(" / ")
        value = taken[whole] // int(parts) if whole in taken else taken[name] if name in taken else int(name)
        total += (-1 if sign == "-" else 1) * int(factor or 1) * value
    return total


def draws(model):
    """Whether a network draws random numbers."""
    nodes = list(model.graph.node) + [node for function in model.functions for node in function.node]
    return any(node.op_type in RANDOM for node in nodes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["keras", "tensorflow", "tflite", "jax", "scripted", "optimum", "optimized", "check"])
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.what == "check":
        return check([pathlib.Path(path) for path in options.paths], options.json)
    out = pathlib.Path(options.paths[0])
    out.mkdir(parents=True, exist_ok=True)
    exporters = {
        "keras": keras, "tensorflow": tensorflow, "tflite": tflite, "jax": jax, "scripted": scripted, "optimum": optimum, "optimized": optimized,
    }
    exporters[options.what](out, options.paths[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
