"""The Python code of the README pages runs, and its types hold."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import network, value
from onnx import helper

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "docs/python.md", "python/tilescribe/README.md", "python/runtime/README.md"]


def code(page):
    """The Python blocks of a page, as one script."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


@pytest.fixture
def folder(tmp_path):
    """Where `net.onnx` and `net/` are, and a module `x` of the pages."""
    weight = np.ones((16, 4), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    onnx.save(network(nodes, [value("x", ["batch", 16])], [value("y", ["batch", 4])], {"w": weight}), tmp_path / "net.onnx")
    import tilescribe as ts

    ts.compile(tmp_path / "net.onnx", tmp_path / "net", trials=0, progress=False)
    return tmp_path


# what the pages leave to the reader
GIVEN = "import numpy as np\nx = np.ones((2, 16), np.float32)\n"


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(folder, page):
    script = folder / "page.py"
    needs_torch = "import torch" in code(page)
    if needs_torch:
        pytest.importorskip("torch")
    script.write_text(GIVEN + code(page))
    subprocess.run([sys.executable, script], cwd=folder, check=True, env={**os.environ, "TQDM_DISABLE": "1"})


@pytest.mark.parametrize("page", PAGES)
def test_the_types_of_a_page_hold(folder, page):
    script = folder / "page.py"
    script.write_text(GIVEN + code(page))
    options = ["--strict", "--no-error-summary", "--disable-error-code=import-not-found"]
    subprocess.run([sys.executable, "-m", "mypy", *options, script], cwd=folder, check=True)


def test_the_packages_types_hold(tmp_path):
    options = ["--strict", "--no-error-summary", "--disable-error-code=import-not-found", "--cache-dir", str(tmp_path)]
    packages = [ROOT / "python/runtime/python/tilescribe_runtime", ROOT / "python/tilescribe/python/tilescribe"]
    for package in packages:
        subprocess.run([sys.executable, "-m", "mypy", *options, package], cwd=tmp_path, check=True)
