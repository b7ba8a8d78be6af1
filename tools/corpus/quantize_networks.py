#!/usr/bin/env python3
"""Quantises the training networks, so that the corpus knows short numbers in every form that exporters write.

usage: quantize_networks.py IN_DIR OUT_DIR [--seed 1]

Each network of IN_DIR is written in a drawn static form (QuantizeLinear pairs with unsigned or signed
activations, by channel or by tensor; QLinear operators), in the dynamic form where it multiplies matrices,
and there also with weights alone of 4 or 8 bits in blocks. Ranges are calibrated with random inputs: tasks
depend on shapes and types, and hardly on scales. What ONNX Runtime's quantiser refuses is named and left
out. Needs onnx and onnxruntime.
"""
import argparse
import pathlib
import random
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process

PRODUCTS = {"MatMul", "Gemm"}


class Drawn(CalibrationDataReader):
    """Three sets of inputs, drawn from a normal distribution."""

    def __init__(self, path):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        rng = np.random.default_rng(0)

        def value(info):
            if "int" in info.type:
                return rng.integers(0, 100, info.shape)
            return rng.standard_normal(info.shape).astype(np.float32)

        self.sets = iter([{info.name: value(info) for info in session.get_inputs()} for _ in range(3)])

    def get_next(self):
        return next(self.sets, None)


def static(path, out, rng):
    activations = rng.choice([QuantType.QUInt8, QuantType.QUInt8, QuantType.QInt8])
    form = rng.choice([QuantFormat.QDQ, QuantFormat.QDQ, QuantFormat.QDQ, QuantFormat.QOperator])
    quantize_static(str(path), str(out), Drawn(path), quant_format=form, activation_type=activations,
                    weight_type=QuantType.QInt8, per_channel=rng.random() < 0.8)


def dynamic(path, out, rng):
    quantize_dynamic(str(path), str(out), weight_type=QuantType.QInt8, per_channel=rng.random() < 0.8)


def weights(path, out, rng):
    quantizer = MatMulNBitsQuantizer(onnx.load(path), bits=rng.choice([4, 4, 8]), block_size=rng.choice([16, 32, 32, 64, 128]),
                                     is_symmetric=rng.random() < 0.5)
    quantizer.process()
    quantizer.model.save_model_to_file(str(out))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    onnxruntime.set_default_logger_severity(3)
    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    for path in sorted(args.networks.glob("*.onnx")):
        with tempfile.TemporaryDirectory() as scratch:
            prepared = pathlib.Path(scratch) / "prepared.onnx"
            quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
            operators = {node.op_type for node in onnx.load(prepared, load_external_data=False).graph.node}
            forms = [static, dynamic, weights] if operators & PRODUCTS else [static]
            for form in forms:
                out = args.out / f"{path.stem}.{form.__name__}.onnx"
                try:
                    form(prepared, out, rng)
                    print(out, flush=True)
                except Exception as error:
                    print(f"{out}: refused: {error}", flush=True)


if __name__ == "__main__":
    main()
