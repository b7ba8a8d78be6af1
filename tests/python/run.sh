#!/usr/bin/env bash
# Installs the packages as a user would, into an empty environment, and tests them there.
# usage: run.sh WHEELS
set -euo pipefail
wheels=$1
cd "$(dirname "$0")"
target=../../target

# megabytes of both packages together
limit=100
megabytes=$(($(cat "$wheels"/*.whl | wc -c) / 1000000))
if [ "$megabytes" -gt "$limit" ]; then
    echo "the packages have $megabytes MB, more than $limit" >&2
    exit 1
fi

rm -rf "$target/wheel_tests"
python3 -m venv "$target/wheel_tests"
python=$target/wheel_tests/bin/python
"$python" -m pip install -q --disable-pip-version-check "$wheels"/*.whl
"$python" -c 'import tilescribe; print("tilescribe", tilescribe.__version__, "at", tilescribe.program())'
"$python" -m pip install -q --disable-pip-version-check \
    onnx==1.22.0 onnxruntime==1.31.1 ml_dtypes==0.6.0 tqdm==4.70.1 types-tqdm==4.70.0.20261106 pytest==9.2.0 mypy==2.4.1
"$python" -m pytest -q -p no:cacheprovider --ignore test_torch.py --ignore test_gallery.py

if [ -e "$target/torch/complete" ]; then
    "$target/torch/bin/pip" install -q --disable-pip-version-check --force-reinstall --no-deps "$wheels"/*.whl
    "$target/torch/bin/python" -m pytest -q -p no:cacheprovider test_torch.py test_gallery.py
else
    echo "== not run: tests that need PyTorch, and the gallery; .ci/setup torch installs what they need"
fi
