#!/usr/bin/env python3
"""Kills a tuning run at random moments, takes it up again, and looks for what was lost.

usage: kill.py [--kills N] [--trials N] [--method M] [--seconds S] [--seed S] [TASK]

TASK is what `tilescribe tune` takes: a file with the text of a task, or MODEL.onnx#TASK; without one it is a matrix product. The
command `tilescribe tune TASK --method M --trials-per-task N --store ...` is started again and again. After a random time, up to S seconds from
the first record of this start on (one time in four: from the start itself), all records are read through a connection that only
reads, and at once the whole process group, the worker with it, is killed with signal 9. Then a copy of what lies on the disk has
to pass SQLite's integrity check and to hold every record that was ever read, unchanged. At last the same command
runs to its end, and the store has to hold N records.

Prints a line for each kill. Exit code: 0 if nothing was lost, 1 if something was, 2 if the run was over before all kills. Needs
`cargo build --release` first, and nothing but Python's standard library.
"""
import argparse
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = ROOT / "target" / "release" / "tilescribe"
PRODUCT = "input t0 128 768\nconst t1 768 768\nout t2 128 768 sum 768 mul t0 a c t1 c b\n"
# One kill in so many counts from the start of the process: it may come while the store is made or opened.
EARLY = 4
# How long to wait for a first record, in seconds: the reference result of a large task takes its time.
PATIENCE = 600


class Lost(Exception):
    """A record that was committed is not what it was, or the store is damaged."""


class Over(Exception):
    """The run ended before it was killed."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", metavar="TASK")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--method", default="random")
    parser.add_argument("--seconds", type=float, default=2.0, help="longest time before a kill")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        task = options.task or scratch / "product.txt"
        if options.task is None:
            task.write_text(PRODUCT)
        store = scratch / "records.db"
        command = [BINARY, "tune", task, "--method", options.method]
        command += ["--trials-per-task", options.trials, "--store", store]
        try:
            check([str(part) for part in command], store, options)
        except Lost as lost:
            print(f"LOST: {lost}")
            sys.exit(1)
        except Over as over:
            print(f"{over}; give more --trials or fewer --seconds", file=sys.stderr)
            sys.exit(2)


def check(command, store, options):
    moments = random.Random(options.seed)
    seen = {}
    print(f"{'kill':>4} {'after s':>8} {'read':>6} {'on disk':>8} {'lost':>5} {'changed':>8} integrity")
    for number in range(1, options.kills + 1):
        early = number % EARLY == 1
        after, read = run_and_kill(command, store, moments.uniform(0, options.seconds), early, len(seen))
        if read is not None:
            # what this run made of the log that the last kill left behind
            compare(seen, read, f"by the run before kill {number}")
            seen = read
        integrity, found = left_behind(store)
        lost = [record for record in seen if record not in found]
        changed = [record for record in seen if record in found and found[record] != seen[record]]
        print(f"{number:>4} {after:>8.2f} {len(seen):>6} {len(found):>8} {len(lost):>5} {len(changed):>8} {integrity}", flush=True)
        if integrity != "ok" or lost or changed:
            raise Lost(f"kill {number}: integrity {integrity}, lost {lost[:5]}, changed {changed[:5]}")
        seen = found
    finish(command, store, seen, options.trials)


def run_and_kill(command, store, seconds, early, before):
    """Starts the command and kills it. Returns how long it lived, and the records read just before; None if they could not be read yet."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    try:
        while not early and len(read_along(store) or {}) <= before:
            if process.poll() is not None:
                said = process.stderr.read().decode(errors="replace").strip()
                raise Over(f"the run ended with code {process.returncode} {said}".strip())
            if time.monotonic() - start > PATIENCE:
                raise Over(f"no record after {PATIENCE} s")
            time.sleep(0.005)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(min(0.005, max(0.0, deadline - time.monotonic())))
        read = read_along(store)
        if process.poll() is not None:
            raise Over(f"the run ended with code {process.returncode} before it was killed")
        os.killpg(process.pid, signal.SIGKILL)
        return time.monotonic() - start, read
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()


def read_along(store):
    """All records, through a connection that only reads; None where there is no store, or none that can be read without being changed."""
    try:
        connection = sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=5)
    except sqlite3.OperationalError:
        return None
    try:
        return records(connection)
    except sqlite3.OperationalError:
        return None
    finally:
        connection.close()


def records(connection):
    """Every column of every record, by its number."""
    cursor = connection.execute(
        "SELECT records.*, tasks.hash, tasks.workload, targets.fingerprint, targets.target FROM records"
        " JOIN tasks ON tasks.id = records.task JOIN targets ON targets.id = records.target"
    )
    number = [column[0] for column in cursor.description].index("id")
    return {row[number]: row for row in cursor}


def left_behind(store):
    """Integrity and records of a copy, so that the next run itself has to recover what the killed one left."""
    if not store.exists():
        return "ok", {}
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / store.name
        for suffix in ["", "-wal"]:
            there = store.with_name(store.name + suffix)
            if there.exists():
                shutil.copyfile(there, copy.with_name(store.name + suffix))
        connection = sqlite3.connect(copy)
        try:
            integrity = "; ".join(row[0] for row in connection.execute("PRAGMA integrity_check"))
            broken = connection.execute("PRAGMA foreign_key_check").fetchall()
            return (f"foreign keys {broken}" if broken else integrity), records(connection)
        except sqlite3.DatabaseError as error:
            return f"broken: {error}", {}
        finally:
            connection.close()


def compare(seen, found, when):
    differing = [record for record in seen if found.get(record) != seen[record]]
    if differing:
        raise Lost(f"{when}: records {differing[:5]}")


def finish(command, store, seen, trials):
    """Lets the run come to its end."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise Lost(f"the last run ended with code {result.returncode}: {result.stderr.strip()}")
    integrity, found = left_behind(store)
    if integrity != "ok":
        raise Lost(f"after the last run: integrity {integrity}")
    compare(seen, found, "by the last run")
    if len(found) != trials:
        raise Lost(f"the store holds {len(found)} records after the last run, not {trials}")
    print(result.stdout.strip())
    print(f"nothing lost: {len(found)} records, {len(seen)} of them from killed runs")


if __name__ == "__main__":
    main()
