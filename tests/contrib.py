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

    yield "mha_lengths", "MultiHeadAttention", attention + [None, np.array([5, 2], dtype=np.int32)], 1, heads

    packed = [f32(2, 5, 12), f32(12, 48), f32(48)]
    yield "attention", "Attention", packed, 1, heads
    yield "attention_causal", "Attention", packed, 1, {**heads, "unidirectional": 1, "scale": 0.4}
    rows = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], dtype=np.int32)
    yield "attention_masked", "Attention", packed + [rows], 1, heads
    yield "attention_added", "Attention", packed + [None, None, f32(2, 4, 5, 5)], 1, heads
    yield from grouped(np, f32)
    yield from embedded(np, random, f32)
    yield from quantised(np, random, f32)

    for bits in [4, 8]:
        for depth in [64, 80]:
            blocks, packed = -(-depth // 32), 32 * bits // 8
            weight = random.integers(0, 256, (6, blocks, packed), dtype=np.uint8)
            zeros = random.integers(0, 256, 6 * -(-blocks * bits // 8), dtype=np.uint8)
            inputs = [f32(3, depth), (weight,), (f32(6 * blocks),)]
            attributes = {"K": depth, "N": 6, "bits": bits, "block_size": 32}
            yield f"matmul_{bits}_bits_{depth}", "MatMulNBits", inputs, 1, attributes
            yield f"matmul_{bits}_bits_{depth}_zeros", "MatMulNBits", inputs + [(zeros,)], 1, attributes
    for rows in [1, 8]:
        for bits, block in [(4, 16), (4, 128), (8, 32)]:
            packed = random.integers(0, 256, (96, 256 // block, block * bits // 8), dtype=np.uint8)
            inputs = [f32(2, rows, 256), (packed,), (f32(96 * 256 // block),)]
            attributes = {"K": 256, "N": 96, "bits": bits, "block_size": block}
            yield f"matmul_{bits}_bits_of_{block}_{rows}_rows", "MatMulNBits", inputs, 1, attributes


def grouped(np, f32):
    """Prompts and steps of a decoder: four heads of 16 over two of keys and values."""
    heads = {"num_heads": 4, "kv_num_heads": 2}
    i32 = lambda *values: np.array(values, dtype=np.int32)
    total = lambda value: (np.array(value, dtype=np.int32),)
    angles = [f32(16, 8), f32(16, 8)]
    prompt = [f32(2, 5, 64), f32(2, 5, 32), f32(2, 5, 32), None, None, i32(4, 4), total(5)]
    yield "gqa_prompt", "GroupQueryAttention", prompt, 3, heads
    yield "gqa_prompt_rotary", "GroupQueryAttention", prompt + angles, 3, {**heads, "do_rotary": 1}
    yield "gqa_window", "GroupQueryAttention", prompt, 3, {**heads, "local_window_size": 2}
    yield "gqa_packed", "GroupQueryAttention", [f32(2, 5, 128), None, None, None, None, i32(4, 4), total(5)], 3, heads
    turned = {**heads, "do_rotary": 1, "rotary_interleaved": 1, "scale": 0.2}
    for name, rows, lengths, columns in [("step", 1, (6, 6), 7), ("more", 3, (8,), 9), ("ragged", 1, (6, 3), 7)]:
        batch = len(lengths)
        past = [f32(batch, 2, columns - rows, 16), f32(batch, 2, columns - rows, 16)]
        inputs = [f32(batch, rows, 64), f32(batch, rows, 32), f32(batch, rows, 32), *past, i32(*lengths), total(columns)]
        # what lies behind the shorter entry is left as it is by one, and is nothing to the other
        outputs = 1 if name == "ragged" else 3
        yield f"gqa_{name}", "GroupQueryAttention", inputs, outputs, {**heads, "softcap": 3.0}
        yield f"gqa_{name}_rotary", "GroupQueryAttention", inputs + angles, outputs, turned
        yield f"gqa_{name}_window", "GroupQueryAttention", inputs, outputs, {**heads, "local_window_size": 4}


    # a buffer with more room than is used
    room = [f32(2, 2, 12, 16), f32(2, 2, 12, 16)]
    inputs = [f32(2, 1, 64), f32(2, 1, 32), f32(2, 1, 32), *room, i32(6, 6), total(7)]
    yield "gqa_room", "GroupQueryAttention", inputs, 1, heads


def embedded(np, random, f32):
    """Words, positions and segments."""
    ids = lambda top: random.integers(0, top, (2, 5), dtype=np.int32)
    tables = [(f32(30, 16),), (f32(8, 16),)]
    norm = [(f32(16),), (f32(16),)]
    mask = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], dtype=np.int32)
    yield "embed", "EmbedLayerNormalization", [ids(30), None, *tables, None, *norm], 2, {"epsilon": 1e-5}
    whole = [ids(30), ids(2), *tables, (f32(2, 16),), *norm]
    yield "embed_segments", "EmbedLayerNormalization", whole, 3, {}
    yield "embed_mask", "EmbedLayerNormalization", whole + [mask], 3, {"mask_index_type": 1}
    yield "embed_positions", "EmbedLayerNormalization", whole + [None, ids(8)], 3, {}


def quantised(np, random, f32):
    """Scales are no round numbers, so that hardly anything lies half-way between two results."""
    scale, zero = lambda value: (np.array(value, np.float32),), lambda value, dtype: (np.array(value, dtype),)
    for dtype in [np.uint8, np.int8]:
        span = np.iinfo(dtype)
        draw = lambda *shape: random.integers(span.min, span.max + 1, shape, dtype=dtype)
        middle = int(span.max) // 3
        triple = lambda shape, value: [draw(*shape), scale(value), zero(middle, dtype)]
        result = lambda value: [scale(value), zero(middle + 5, dtype)]
        name, image = np.dtype(dtype).name, (2, 3, 6, 7)
        for operator in ["QLinearAdd", "QLinearMul"]:
            inputs = triple((2, 5, 16), 0.0137) + triple((16,), 0.0391) + result(0.0593)
            yield f"{operator}_{name}", operator, inputs, 1, {}
        for operator, attributes in [
            ("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.13}), ("QLinearGlobalAveragePool", {}),
            ("QLinearAveragePool", {"kernel_shape": [2, 3], "strides": [1, 2], "pads": [0, 1, 1, 1]}),
        ]:
            yield f"{operator}_{name}", operator, triple(image, 0.0371) + result(0.0131), 1, attributes
        yield f"QLinearConcat_{name}", "QLinearConcat", result(0.0173) + triple(image, 0.0217) + triple(image, 0.0093), 1, {"axis": 1}
        picked = random.integers(0, 2, (5, 1)).astype(bool)
        where = [picked, *triple((5, 4), 0.0217), *triple((4,), 0.0093), *result(0.0173)]
        yield f"QLinearWhere_{name}", "QLinearWhere", where, 1, {}
        left, right = triple((3, 8), 0.0137), triple((8, 6), 0.0211)
        right[0] = (right[0],)
        bias = (random.integers(-9999, 9999, 6, dtype=np.int32),)
        yield f"QGemm_{name}", "QGemm", left + right + [bias] + result(0.713), 1, {"alpha": 1.7}
        turned = triple((8, 3), 0.0137) + [(draw(6, 8),), scale(0.0211), zero(3, dtype)]
        yield f"QGemm_float_{name}", "QGemm", turned + [bias], 1, {"transA": 1, "transB": 1}
        weight = [(draw(8, 6),), (np.abs(f32(6)) * np.float32(0.01),)]
        to_float = [draw(3, 8), weight[0], scale(0.0137), weight[1], zero(7, dtype), (draw(6),), (f32(6),)]
        yield f"MatMulIntegerToFloat_{name}", "MatMulIntegerToFloat", to_float, 1, {}
        dynamic = [f32(2, 3, 8), *weight, (draw(6),), (f32(6),)]
        yield f"DynamicQuantizeMatMul_{name}", "DynamicQuantizeMatMul", dynamic, 1, {}
        # a batch of one: of more, ONNX Runtime may quantise the state of each thread's part by itself
        for directions, scales in ((1, (1,)), (2, (2, 12))):
            weights = [draw(directions, depth, 12) for depth in (5, 3)]
            factors = [(np.abs(f32(*scales)) * np.float32(0.01), np.full(scales, 3 if dtype == np.uint8 else 0, dtype)) for _ in weights]
            lstm = [f32(6, 1, 5), *((w,) for w in weights), (f32(directions, 24),), None, f32(directions, 1, 3), f32(directions, 1, 3), None]
            lstm += [(value,) for pair in factors for value in pair]
            way = {"hidden_size": 3, "direction": ["forward", "bidirectional"][directions - 1]}
            yield f"DynamicQuantizeLSTM_{directions}_{name}", "DynamicQuantizeLSTM", lstm, 3, way
        yield f"QuantizeLinear_{name}", "QuantizeLinear", [f32(3, 8), *result(0.0131)], 1, {}
        yield f"DequantizeLinear_{name}", "DequantizeLinear", triple((3, 8), 0.0131), 1, {}


def write(case, folder, onnx, runtime):
    """One case in the form of ONNX's node tests, with what ONNX Runtime makes of it."""
    name, operator, inputs, outputs, attributes = case
    data = folder / f"test_{name}" / "test_data_set_0"
    data.mkdir(parents=True)
    names = ["" if value is None else f"i{at}" for at, value in enumerate(inputs)]
    # of the statistics of a normalisation, ONNX Runtime gives none on CPUs
    skipped = {1, 2} if operator.startswith("Skip") else set()
    results = ["" if at in skipped else f"o{at}" for at in range(outputs)]
    # without the present, ONNX Runtime leaves out the past, too
    unread = ["key", "value"] if operator == "GroupQueryAttention" and outputs == 1 else []
    node = onnx.helper.make_node(operator, names, results + unread, domain="com.microsoft", **attributes)
    constants = [onnx.numpy_helper.from_array(v[0], n) for n, v in zip(names, inputs) if isinstance(v, tuple)]
    fed = {n: v for n, v in zip(names, inputs) if v is not None and not isinstance(v, tuple)}
    value = onnx.helper.make_tensor_value_info
    given = [value(n, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in fed.items()]
    results = [result for result in results if result]
    found = [onnx.helper.make_empty_tensor_value_info(result) for result in results]
    graph = onnx.helper.make_graph([node], name, given, found, constants)
    sets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=sets, ir_version=8)
    onnx.save(model, data.parent / "model.onnx")
    options = runtime.SessionOptions()
    if operator.startswith("Dynamic"):
        # without it, sums of 8-bit products saturate at 16 bits on processors without instructions for them
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
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
