#!/usr/bin/env python3
"""Measures the memory of compiling, running and tuning, and compares it with limits.

usage: memory.py [--parts compile,run,tune] [--method M] [--trials-per-task N] [--threads N]
                 [--trials N,N] [--task TASK] MODEL.onnx

compile  The peak resident memory of `tilescribe compile MODEL`, its worker included: the largest sum over the process and its
         children at any moment. Limit: three times the size of the ONNX file plus 1 GB.
run      The resident memory of `tilescribe bench` with the artifact, against ONNX Runtime's session for the same model in a process of its
         own; each after five runs at least, with as many threads, inputs of equal shapes. Of ours all is counted: the program, buffers, and
         the pages of the weights that were read; they are mapped, so rows of an embedding that no input names never become resident.
         Of theirs: what the process holds, less what Python and NumPy held before onnxruntime was imported; the library, the
         session and its outputs count. Both baselines are printed. Limit: 1.3 times.
tune     The resident memory of `tilescribe tune TASK` and of its worker at the first and at the last number of trials (1000,5000): the
         largest during the tenth of the trials before. Limit: a tenth more plus 32 MB, room for what the
         parent keeps of the records, 16 bytes and a time each. TASK is a file with the text of a task, or MODEL.onnx#TASK; without one it is a matrix product.

Memory is read from /proc (VmRSS, in MB of 10^6 bytes); file-backed pages, shared ones too, count in every process. Prints one
table. Exit code: 0, or 1 where a limit is exceeded. Needs `cargo build --release` first, and for `run` numpy and onnxruntime.
"""
import argparse
import json
import pathlib
import sqlite3
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = ROOT / "target" / "release" / "tilescribe"
PRODUCT = "input t0 128 768\nconst t1 768 768\nout t2 128 768 sum 768 mul t0 a c t1 c b\n"
MB = 1e6
# Between two looks at a process, in seconds.
INTERVAL = 0.01
RUNS = 5
WARM_UP_RUNS = 2  # of `tilescribe bench`, before those that it counts
LIMIT_RATIO = 1.3
LIMIT_GROWTH, GROWTH_ROOM = 1.1, 32 * MB

# What the other process runs: prints a line of JSON with its memory in bytes at each stage.
SESSION = """
import json, sys
model, threads, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def resident():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {key: int(status[key].split()[0]) * 1024 for key in ("VmRSS", "RssAnon", "RssFile")}

import numpy
python = resident()
import onnxruntime
library = resident()
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
loaded = resident()
types = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(bool)": "bool"}
inputs = {i.name: numpy.ones([d if isinstance(d, int) else 1 for d in i.shape], types[i.type]) for i in session.get_inputs()}
for _ in range(runs):
    outputs = session.run(None, inputs)
print(json.dumps({"python": python, "library": library, "loaded": loaded, "ran": resident()}))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, metavar="MODEL.onnx")
    parser.add_argument("--parts", default="compile,run,tune")
    parser.add_argument("--method", default="lm", help="of searching")
    parser.add_argument("--trials-per-task", type=int, default=2, help="when compiling")
    parser.add_argument("--threads", type=int, default=2, help="when running")
    parser.add_argument("--trials", default="1000,5000", help="when the tuning run is looked at")
    parser.add_argument("--task", help="of the tuning run")
    options = parser.parse_args()
    parts = options.parts.split(",")
    first, last = (int(number) for number in options.trials.split(","))
    table = Table()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        if "compile" in parts or "run" in parts:
            measure_compile(options, scratch, table, "compile" in parts)
        if "run" in parts:
            measure_run(options, scratch, table)
        if "tune" in parts:
            measure_tune(options, scratch, table, first, last)
    sys.exit(1 if table.exceeded else 0)


class Table:
    def __init__(self):
        self.exceeded = False
        print(f"{'what':<66} {'MB':>9} {'limit':>9}")

    def row(self, what, resident, limit=None):
        over = limit is not None and resident > limit
        self.exceeded |= over
        text = "" if limit is None else f"{limit / MB:.1f}"
        print(f"{what:<66} {resident / MB:>9.1f} {text:>9}{'  EXCEEDED' if over else ''}", flush=True)


def measure_compile(options, scratch, table, report):
    command = [BINARY, "compile", options.model, "-o", scratch / "artifact", "--store", scratch / "compile.db"]
    command += ["--method", options.method, "--trials-per-task", options.trials_per_task]
    highest = {"sum": 0, "parent": 0, "worker": 0}

    def look(process):
        parent, children = resident(process.pid), worker_memory(process.pid)
        if parent is None:
            return
        for name, value in [("sum", parent + children), ("parent", parent), ("worker", children)]:
            highest[name] = max(highest[name], value)

    watch(command, look)
    if report:
        size = options.model.stat().st_size
        name = options.model.name
        table.row(f"{name}: the ONNX file", size)
        table.row(f"{name}: peak of compiling, the program alone", highest["parent"])
        table.row(f"{name}: peak of compiling, its worker alone", highest["worker"])
        table.row(f"{name}: peak of compiling, both together", highest["sum"], 3 * size + 1000 * MB)


def measure_run(options, scratch, table):
    command = [BINARY, "bench", scratch / "artifact", "--threads", options.threads, "--seconds"]
    latest = {}

    def look(process):
        found = memory_of(process.pid)
        # the memory of a process that is ending is gone already
        if found is not None and found["VmRSS"] >= latest.get("VmRSS", 0):
            latest.update(found)

    seconds = 0.5
    while True:
        latest.clear()
        printed = watch([*command, seconds], look)
        if json.loads(printed.strip().splitlines()[-1])["runs"] + WARM_UP_RUNS >= RUNS:
            break
        seconds *= 4
    own = {}

    def look_at_program(process):
        found = memory_of(process.pid)
        if found is not None and found["VmRSS"] >= own.get("VmRSS", 0):
            own.update(found)

    watch([BINARY, "doctor"], look_at_program)
    arguments = [sys.executable, "-c", SESSION, options.model, options.threads, RUNS]
    stages = json.loads(run(arguments))
    name = options.model.name
    theirs = stages["ran"]["VmRSS"] - stages["python"]["VmRSS"]
    table.row(f"{name}: ONNX Runtime's process: Python and NumPy", stages["python"]["VmRSS"])
    table.row(f"{name}: ONNX Runtime's process: and the library", stages["library"]["VmRSS"])
    table.row(f"{name}: ONNX Runtime's process: and the session", stages["loaded"]["VmRSS"])
    table.row(f"{name}: ONNX Runtime's process: after {RUNS} runs", stages["ran"]["VmRSS"])
    table.row(f"{name}: ONNX Runtime: after {RUNS} runs, less Python and NumPy", theirs)
    table.row(f"{name}: our program without a network (tilescribe doctor)", own.get("VmRSS", 0))
    table.row(f"{name}: our process: anonymous memory", latest["RssAnon"])
    table.row(f"{name}: our process: mapped files, weights among them", latest["RssFile"])
    table.row(f"{name}: our process, after {RUNS} runs at least", latest["VmRSS"], LIMIT_RATIO * theirs)


def measure_tune(options, scratch, table, first, last):
    task = options.task or scratch / "product.txt"
    if options.task is None:
        task.write_text(PRODUCT)
    store = scratch / "tune.db"
    command = [BINARY, "tune", task, "--method", options.method, "--trials-per-task", last, "--store", store]
    highest = {}

    def look(process):
        time.sleep(0.1)
        trials = count(store)
        for moment in [first, last]:
            if moment * 0.9 <= trials <= moment:
                parent, worker = highest.get(moment, (0, 0))
                highest[moment] = (max(parent, resident(process.pid) or 0), max(worker, worker_memory(process.pid)))

    watch(command, look)
    trials = count(store)
    if trials != last or set(highest) != {first, last}:
        raise SystemExit(f"{trials} of {last} trials were measured, memory was read at {sorted(highest)}")
    for at, who in enumerate(["tuning", "its worker"]):
        before, after = highest[first][at], highest[last][at]
        table.row(f"{who}, up to {first} trials", before)
        table.row(f"{who}, up to {last} trials", after, LIMIT_GROWTH * before + GROWTH_ROOM)


def count(store):
    try:
        connection = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    except sqlite3.OperationalError:
        return 0
    try:
        return connection.execute("SELECT count(*) FROM records").fetchone()[0]
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


def watch(command, look):
    """Runs a command, calls `look` all the time, and returns what was printed."""
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as said:
        process = subprocess.Popen([str(part) for part in command], stdout=printed, stderr=said)
        try:
            while process.poll() is None:
                look(process)
                time.sleep(INTERVAL)
        finally:
            process.kill()
            process.wait()
        for stream in [printed, said]:
            stream.seek(0)
        if process.returncode != 0:
            raise SystemExit(f"{command[1]} ended with code {process.returncode}: {said.read().decode(errors='replace').strip()}")
        return printed.read().decode()


def run(command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{command[0]} ended with code {result.returncode}: {result.stderr.strip()}")
    return result.stdout


def memory_of(pid):
    """Bytes by kind; None where the process is gone."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    values = dict(line.split(":", 1) for line in lines)
    if "VmRSS" not in values:
        return None
    return {key: int(values[key].split()[0]) * 1024 for key in ["VmRSS", "RssAnon", "RssFile"]}


def resident(pid):
    found = memory_of(pid)
    return found and found["VmRSS"]


def worker_memory(pid):
    """Resident bytes of all descendants together."""
    children = []
    try:
        for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
            children += (thread / "children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        pass
    return sum((resident(child) or 0) + worker_memory(child) for child in children)


if __name__ == "__main__":
    main()
