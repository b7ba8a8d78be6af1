#!/usr/bin/env python3
"""Runs the node tests of the installed onnx package through our import and evaluator.

usage: onnx_nodes.py [TEXT]      (TEXT: only tests with this in their name)

Prints a table of what passed, what is unsupported and what is wrong, and exits
with 1 if anything is wrong, with 3 if the package is not installed.
"""
import pathlib
import subprocess
import sys


def main():
    try:
        import onnx
    except ImportError:
        print("the Python package onnx is not installed: no node test was run (pip install onnx)", file=sys.stderr)
        return 3
    folder = pathlib.Path(onnx.__file__).parent / "backend/test/data/node"
    command = ["cargo", "run", "--release", "--quiet", "--example", "onnx_backend_tests", "--", str(folder)]
    if len(sys.argv) > 1:
        command += ["--only", sys.argv[1]]
    print(f"onnx {onnx.__version__}", flush=True)
    return subprocess.run(command, cwd=pathlib.Path(__file__).resolve().parent.parent).returncode


if __name__ == "__main__":
    sys.exit(main())
