#!/usr/bin/env python3
"""Compares operators of com.microsoft with ONNX Runtime: one small model for each choice of attributes.

usage: contrib.py [--compiled]

--compiled: through untuned artifacts, compiled for this machine and run, instead of the evaluator

Models, inputs and what ONNX Runtime makes of them are written as ONNX's own node tests are, and judged by the
same program. Exits with 1 if anything differs, with 3 if onnx or onnxruntime is not installed.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def cases(np):
    """Name, operator, inputs (None: left out; a pair: a constant), outputs, attributes."""
    random = np.random.default_rng(0)

    def f32(*shape):
        return random.standard_normal(shape, dtype=np.float32)

    x, bias = f32(2, 5, 16), f32(16)
    yield "gelu", "Gelu", [x], 1, {}
    yield "bias_gelu", "BiasGelu", [x, bias], 1, {}
    yield "fast_gelu", "FastGelu", [x], 1, {}
    yield "fast_gelu_bias", "FastGelu", [x, bias], 1, {}
    yield "quick_gelu", "QuickGelu", [x], 1, {"alpha": 1.25}
    yield "fused_matmul", "FusedMatMul", [f32(2, 3, 4), f32(2, 4, 5)], 1, {"alpha": 0.5}
    yield "fused_matmul_a", "FusedMatMul", [f32(2, 4, 3), f32(2, 4, 5)], 1, {"transA": 1}
    yield "fused_matmul_ab", "FusedMatMul", [f32(2, 4, 3), f32(2, 5, 4)], 1, {"transA": 1, "transB": 1, "alpha": 2.0}
    yield "skip_norm", "SkipLayerNormalization", [x, f32(2, 5, 16), f32(16), f32(16)], 1, {"epsilon": 1e-5}
    yield "skip_norm_sum", "SkipLayerNormalization", [x, f32(2, 5, 16), f32(16), f32(16), bias], 4, {}
    yield "skip_rms_sum", "SkipSimplifiedLayerNormalization", [x, f32(2, 5, 16), f32(16)], 4, {"epsilon": 1e-6}
    yield "skip_rms_bias", "SkipSimplifiedLayerNormalization", [x, f32(2, 5, 16), f32(16), bias], 1, {}

    cosine, sine = f32(8, 4), f32(8, 4)
    positions = np.array([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]], dtype=np.int64)
    yield "rotary", "RotaryEmbedding", [x, positions, cosine, sine], 1, {}
    yield "rotary_interleaved", "RotaryEmbedding", [x, positions, cosine, sine], 1, {"interleaved": 1}
    yield "rotary_offset", "RotaryEmbedding", [f32(2, 2, 5, 8), np.array([2], dtype=np.int64), cosine, sine], 1, {}
    partial = {"rotary_embedding_dim": 8, "num_heads": 1}
    yield "rotary_partial", "RotaryEmbedding", [x, positions, cosine, sine], 1, partial

    attention = [f32(2, 3, 16), f32(2, 5, 16), f32(2, 5, 16)]
    heads = {"num_heads": 4}
    yield "mha", "MultiHeadAttention", attention, 1, heads
    yield "mha_scale", "MultiHeadAttention", attention, 1, {**heads, "scale": 0.3}
    yield "mha_bias", "MultiHeadAttention", attention + [f32(48)], 1, heads
    mask = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], dtype=np.int32)
    yield "mha_padding", "MultiHeadAttention", attention + [None, mask], 1, heads
    yield "mha_added", "MultiHeadAttention", attention + [None, None, f32(1, 4, 3, 5)], 1, heads
    square = [f32(2, 5, 16) for _ in range(3)]
    yield "mha_causal", "MultiHeadAttention", square, 1, {**heads, "unidirectional": 1}
    past = [None, None, None, f32(2, 4, 6, 4), f32(2, 4, 6, 4)]
    yield "mha_past", "MultiHeadAttention", square + past, 3, heads

    for bits in [4, 8]:
        for depth in [64, 80]:
            blocks, packed = -(-depth // 32), 32 * bits // 8
            weight = random.integers(0, 256, (6, blocks, packed), dtype=np.uint8)
            zeros = random.integers(0, 256, 6 * -(-blocks * bits // 8), dtype=np.uint8)
            inputs = [f32(3, depth), (weight,), (f32(6 * blocks),)]
            attributes = {"K": depth, "N": 6, "bits": bits, "block_size": 32}
            yield f"matmul_{bits}_bits_{depth}", "MatMulNBits", inputs, 1, attributes
            yield f"matmul_{bits}_bits_{depth}_zeros", "MatMulNBits", inputs + [(zeros,)], 1, attributes


def write(case, folder, onnx, runtime):
    """One case in the form of ONNX's node tests, with what ONNX Runtime makes of it."""
    name, operator, inputs, outputs, attributes = case
    data = folder / f"test_{name}" / "test_data_set_0"
    data.mkdir(parents=True)
    names = ["" if value is None else f"i{at}" for at, value in enumerate(inputs)]
    # of the statistics of a normalisation, ONNX Runtime gives none on CPUs
    skipped = {1, 2} if operator.startswith("Skip") else set()
    results = ["" if at in skipped else f"o{at}" for at in range(outputs)]
    node = onnx.helper.make_node(operator, names, results, domain="com.microsoft", **attributes)
    constants = [onnx.numpy_helper.from_array(v[0], n) for n, v in zip(names, inputs) if isinstance(v, tuple)]
    fed = {n: v for n, v in zip(names, inputs) if v is not None and not isinstance(v, tuple)}
    value = onnx.helper.make_tensor_value_info
    given = [value(n, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in fed.items()]
    results = [result for result in results if result]
    found = [value(result, onnx.TensorProto.FLOAT, None) for result in results]
    graph = onnx.helper.make_graph([node], name, given, found, constants)
    sets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=sets, ir_version=8)
    onnx.save(model, data.parent / "model.onnx")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for kind, values in [("input", list(fed.items())), ("output", list(zip(results, session.run(None, fed))))]:
        for at, (label, array) in enumerate(values):
            tensor = onnx.numpy_helper.from_array(array, label)
            (data / f"{kind}_{at}.pb").write_bytes(tensor.SerializeToString())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    try:
        import numpy
        import onnx
        import onnxruntime
    except ImportError as missing:
        print(f"no operator was compared: {missing} (pip install onnx onnxruntime)", file=sys.stderr)
        return 3
    command = ["cargo", "run", "--release", "--quiet", "--example", "onnx_backend_tests", "--"]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(numpy):
            write(case, pathlib.Path(folder), onnx, onnxruntime)
        # none may be refused
        reasons = pathlib.Path(folder) / "reasons.txt"
        reasons.write_text("# none\n")
        command += [folder, "--reasons", str(reasons)] + ["--compiled"] * options.compiled
        return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
