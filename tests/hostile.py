#!/usr/bin/env python3
"""Feeds the program files that were damaged at random: stores, artifacts, checkpoints and models.

usage: hostile.py [--stores N] [--artifacts N] [--checkpoints N] [--models N] [--seed S] [--jobs J] [--keep DIR]

Each damaged file is given to one command, within 4 GB of address space and 10 s of processor time. The command
may succeed or refuse the file: exit codes 0, 2, 3 and 4. Exit code 1 is a bug of ours, and so is a signal (an
abort, a segmentation fault, a limit that was hit) and a panic.

Damage is done to bytes (bits flipped, bytes set, parts cut out, doubled, exchanged, or taken from another file
of the kind), to numbers and words in JSON and, in stores, to values of columns. The good files are made with
the program itself, but for the models, which are those of tests/files/graph. What is done to file K of a kind
depends on the seed and K alone.

Prints a line for each failure and one for each kind. Exit code: 0 if nothing failed, 1 otherwise; files that
failed are kept in DIR. Needs `cargo build --release` first, and nothing but Python's standard library.
"""
import argparse
import concurrent.futures
import json
import pathlib
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = ROOT / "target" / "release" / "tilescribe"
GRAPHS = ROOT / "tests" / "files" / "graph"
TASK = "input t0 8 16\nconst t1 16 24\nout t2 8 24 sum 16 mul t0 a c t1 c b\n"
MEMORY_BYTES = 4 << 30
PROCESSOR_SECONDS = 10
# Wall clock: other work may have the cores. What waits for ever is caught.
PATIENCE = 120
ALLOWED = {0, 2, 3, 4}
# What often is a limit somewhere.
NUMBERS = [0, 1, -1, 2, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 1e308, -0.5]
WORDS = ["", "0", "-1", "null", "../x", "/", "a" * 5000, "\u0000", "é", "f32", "sum", "tile a = 4\n", "((((((((", "9" * 30]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR", help="where files that failed are kept")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        good = Good(scratch / "good")
        for kind, damage in KINDS.items():
            count = getattr(options, kind)
            codes = {}
            with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
                trials = [pool.submit(trial, damage, kind, good, scratch, number, options) for number in range(count)]
                for done in concurrent.futures.as_completed(trials):
                    code = done.result()
                    codes[code] = codes.get(code, 0) + 1
            bad = sum(n for code, n in codes.items() if code not in ALLOWED)
            told = ", ".join(f"{n} with exit code {code}" for code, n in sorted(codes.items()))
            print(f"{kind}: {count} damaged, {told or 'none run'}; {bad} failed", flush=True)
            failed += bad
    sys.exit(1 if failed else 0)


class Good:
    """Files that are as they should be."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder = folder
        self.task = folder / "task.txt"
        self.task.write_text(TASK)
        self.store = folder / "s.db"
        tune = ["tune", "task.txt", "--method", "random", "--trials-per-task", "12", "--store", "s.db"]
        self.made(tune)
        with sqlite3.connect(self.store) as connection:
            self.hash = connection.execute("SELECT hash FROM tasks").fetchone()[0]
        # mostly such as are understood: what is refused at once teaches little
        self.models = sorted(GRAPHS.glob("networks/*/model.onnx")) * 4 + sorted(GRAPHS.glob("refused/*.onnx"))
        small = min(GRAPHS.glob("networks/*/model.onnx"), key=lambda path: path.stat().st_size)
        self.made(["compile", small, "-o", "net", "--trials-per-task", "0"])
        self.artifact = folder / "net"
        self.made(["records", "export", "corpus.zst", "--store", "s.db"])
        # the transformer takes its time; one pass over a few programs is enough
        self.made(["pretrain", "--corpus", "corpus.zst", "-o", "checkpoint", "--epochs", "1", "--held-out", "0"])
        self.checkpoint = folder / "checkpoint"

    def made(self, arguments):
        environment = {"XDG_CACHE_HOME": str(self.folder / "cache"), "PATH": "/usr/bin:/bin"}
        command = [str(part) for part in [BINARY, *arguments]]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")


def trial(damage, kind, good, scratch, number, options):
    """Damages a file, runs the command, and returns its exit code: a negative one for a signal, 1 for a panic."""
    dice = random.Random(f"{options.seed} {kind} {number}")
    folder = scratch / f"{kind}-{number}"
    folder.mkdir()
    try:
        arguments = damage(good, folder, dice)
        code, said = run(arguments, folder)
        if code not in ALLOWED:
            last = said.strip().splitlines()[-3:]
            print(f"{kind} {number}: {' '.join(arguments)}: {named(code)}: {' | '.join(last)[:500]}", flush=True)
            if options.keep:
                shutil.copytree(folder, options.keep / f"{options.seed}-{kind}-{number}", dirs_exist_ok=True)
        return code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def named(code):
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def run(arguments, folder):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    environment = {"XDG_CACHE_HOME": str(folder / "cache"), "PATH": "/usr/bin:/bin"}
    command = [str(BINARY), *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, preexec_fn=limit, timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return -int(signal.SIGALRM), f"not over after {PATIENCE} s"
    said = done.stderr.decode(errors="replace")
    return (1 if "panicked" in said else done.returncode), said


def stores(good, folder, dice):
    store = folder / "s.db"
    shutil.copyfile(good.store, store)
    if dice.random() < 0.5:
        change_columns(store, dice)
    else:
        store.write_bytes(damaged(store.read_bytes(), dice))
    commands = [
        ["records", "list"],
        ["records", "export", "out.zst"],
        ["records", "prune", "--keep", "3"],
        ["show", good.hash[:8]],
        ["show", str(good.task), "--figures"],
        ["show", str(good.task), "--nest"],
    ]
    return dice.choice(commands) + ["--store", "s.db"]


def change_columns(store, dice):
    """Changes values behind the back of the tables' types and constraints."""
    connection = sqlite3.connect(store)
    try:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for _ in range(dice.randint(1, 3)):
            table = dice.choice(["records", "records", "tasks", "targets"])
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            column = dice.choice(columns)
            values = connection.execute(f"SELECT {column} FROM {table} ORDER BY id").fetchall()
            value = dice.choice(values)[0] if values else None
            if isinstance(value, str) and dice.random() < 0.8:
                changed = damaged_text(value, dice)
            elif dice.random() < 0.5:
                changed = dice.choice([n for n in NUMBERS if isinstance(n, int) and -(2**63) <= n < 2**63])
            else:
                changed = dice.choice([*WORDS, None, b"\xff\x00"])
            try:
                some = "" if dice.random() < 0.5 else " WHERE id % 2 = 0"
                connection.execute(f"UPDATE {table} SET {column} = ?{some}", (changed,))
            except sqlite3.Error:
                # a type or constraint of the table
                continue
        connection.commit()
    finally:
        connection.close()


def artifacts(good, folder, dice):
    net = folder / "net"
    shutil.copytree(good.artifact, net)
    manifest = net / "manifest.json"
    damage_json(manifest, dice)
    commands = [["show", "net"], ["show", "net", "--nest"], ["show", "net", "--figures"], ["run", "net"], ["run", "net", "--output-dir", "out"]]
    return dice.choice(commands)


def checkpoints(good, folder, dice):
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    hurt = dice.choice(["config.json", "tokenizer.json", "estimator.safetensors", "model.safetensors", "README.md"])
    for path in good.checkpoint.iterdir():
        copy = checkpoint / path.name
        if path.name != hurt:
            copy.symlink_to(path)
            continue
        shutil.copyfile(path, copy)
        if hurt.endswith(".json"):
            damage_json(copy, dice)
        elif hurt.endswith(".safetensors") and dice.random() < 0.7:
            # the header tells where everything is
            whole = copy.read_bytes()
            length = 8 + int.from_bytes(whole[:8], "little")
            copy.write_bytes(damaged(whole[:length], dice) + whole[length:])
        else:
            copy.write_bytes(damaged(copy.read_bytes(), dice))
    return ["plan", "--workloads", str(good.task), "--programs", "1", "--method", "lm", "--checkpoint", "checkpoint", "-o", "plan.jsonl"]


def models(good, folder, dice):
    source = dice.choice(good.models)
    bytes_ = damaged(source.read_bytes(), dice, dice.choice(good.models).read_bytes())
    (folder / "net.onnx").write_bytes(bytes_)
    dims = re.findall(rb"\x12[\x01-\x08]([a-z]{1,8})", bytes_)
    chosen = [f"{name.decode()}=3" for name in dims[:1] if dice.random() < 0.2]
    return ["tasks", "net.onnx", *[part for dim in chosen for part in ("--dim", dim)]]


def damage_json(path, dice):
    """Damages bytes, or values of a JSON file with its form left as it is."""
    if dice.random() < 0.3:
        path.write_bytes(damaged(path.read_bytes(), dice))
        return
    value = json.loads(path.read_text())
    for _ in range(dice.randint(1, 3)):
        parent, key = dice.choice(list(places(value)))
        old = parent[key]
        choice = dice.random()
        if choice < 0.15 and isinstance(parent, dict):
            del parent[key]
        elif choice < 0.25 and isinstance(parent, list):
            parent.append(old)
        elif isinstance(old, str) and choice < 0.8:
            parent[key] = damaged_text(old, dice)
        else:
            parent[key] = dice.choice([*NUMBERS, *WORDS, None, [], {}, True])
        if not list(places(value)):
            break
    path.write_text(json.dumps(value))


def places(value):
    """Every place in a JSON value: what it is in, and its key there. Of long lists, the first few."""
    if isinstance(value, dict):
        pairs = list(value.items())[:200]
    elif isinstance(value, list):
        pairs = list(enumerate(value[:20]))
    else:
        return
    for key, inner in pairs:
        yield value, key
        yield from places(inner)


def damaged_text(text, dice):
    tokens = re.findall(r"-?\d+|\w+|\s+|[^\w\s]", text)
    if not tokens or dice.random() < 0.2:
        return dice.choice(WORDS)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(tokens))
        choice = dice.random()
        if choice < 0.3:
            tokens[at] = str(dice.choice(NUMBERS))
        elif choice < 0.5:
            tokens[at] = dice.choice(tokens)
        elif choice < 0.7:
            tokens[at] = dice.choice(WORDS)
        elif choice < 0.85:
            tokens[at : at + 1] = tokens[at : at + 3] * dice.choice([2, 2, 50])
        else:
            del tokens[at : at + dice.randint(1, 4)]
        tokens = tokens or [""]
    return "".join(tokens)


def damaged(whole, dice, other=b""):
    bytes_ = bytearray(whole)
    for _ in range(dice.choice([1, 1, 1, 2, 4, 16])):
        if not bytes_:
            break
        at, length = dice.randrange(len(bytes_)), dice.choice([1, 1, 2, 4, 8, 64, 1024])
        choice = dice.randrange(8)
        if choice == 0:
            bytes_[at] ^= 1 << dice.randrange(8)
        elif choice == 1:
            bytes_[at] = dice.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF])
        elif choice == 2:
            bytes_[at : at + length] = dice.randbytes(length)
        elif choice == 3:
            del bytes_[at : at + length]
        elif choice == 4:
            bytes_[at:at] = bytes_[at : at + length]
        elif choice == 5:
            there = dice.randrange(len(bytes_))
            bytes_[at : at + length] = bytes_[there : there + length]
        elif choice == 6 and other:
            there = dice.randrange(len(other))
            bytes_[at : at + length] = other[there : there + length]
        elif choice == 7 and dice.random() < 0.3:
            del bytes_[at:]
        else:
            # a number of variable length, as ONNX has them
            bytes_[at : at + 1] = bytes([0xFF] * dice.randint(1, 9) + [dice.randrange(128)])
    return bytes(bytes_)


KINDS = {"stores": stores, "artifacts": artifacts, "checkpoints": checkpoints, "models": models}

if __name__ == "__main__":
    main()
