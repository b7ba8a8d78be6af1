#!/usr/bin/env python3
"""How much one server carries: simulated workers against a PostgreSQL server that is made for it.

usage: fleet_load.py [--workers 1,4,50] [--program-ms 10] [--plan 32] [--seconds 20] [--programs N] [--json FILE]

For each number of workers, plans of made-up programs are sent, as many as take so many seconds (or so many programs as
--programs says), and workers of `tools/simulated_worker.rs` measure them: a program takes a set time, everything else is
what `tilescribe worker` does. Then a line: programs, leases and reports a second, the share of the workers' time that
they did not measure in, the longest wait for a lock in the server (its log names each of more than 20 ms), and what
the server and a worker take of memory, at the beginning and at the end.

Needs PostgreSQL (`.ci/setup fleet`) and `cargo build --release --examples`. Run by root, it runs the server as
`postgres`.
"""
import argparse
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILT = ROOT / "target" / "release"
SERVERS = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
# a wait for a lock that is longer is named in the server's log
LOCK_MS = 20
# workers start in so many seconds, and are not counted before
START = 1.0


class Server:
    """A cluster of its own, which goes with the folder that it lies in."""

    def __init__(self, folder):
        found = shutil.which("initdb")
        self.programs = pathlib.Path(found).resolve().parent if found else SERVERS[0]
        self.folder, self.socket = folder / "data", folder / "socket"
        self.user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        for path in (self.folder, self.socket):
            path.mkdir()
        for path in (folder, self.folder, self.socket):
            if self.user:
                os.chown(path, self.user.pw_uid, self.user.pw_gid)
        self.run("initdb", "-D", self.folder, "-U", "postgres", "--auth=trust", "--no-sync", stdout=subprocess.DEVNULL)
        self.log = folder / "log"
        options = ["-c", "listen_addresses=", "-c", "max_connections=600", "-c", "log_lock_waits=on"]
        options += ["-c", f"deadlock_timeout={LOCK_MS}ms", "-k", self.socket]
        self.process = subprocess.Popen(
            [self.programs / "postgres", "-D", self.folder, *options], stderr=open(self.log, "w"), **self.identity())
        while subprocess.run([self.programs / "pg_isready", "-q", "-h", self.socket]).returncode:
            time.sleep(0.05)
        self.address = f"postgres://postgres@/fleet?host={self.socket}"
        self.sql("CREATE DATABASE fleet", "postgres")

    def identity(self):
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []} if self.user else {}

    def run(self, program, *arguments, **how):
        subprocess.run([self.programs / program, *arguments], check=True, **self.identity(), **how)

    def sql(self, statement, database="fleet"):
        command = [self.programs / "psql", "-h", self.socket, "-U", "postgres", "-d", database, "-XAtqc", statement]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def memory_mib(self):
        """Of all its processes, what they share counted once."""
        ids = [self.process.pid] + children(self.process.pid)
        return sum(proportional_mib(number) for number in ids)

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()


def children(parent):
    tasks = pathlib.Path(f"/proc/{parent}/task/{parent}/children")
    return [int(number) for number in tasks.read_text().split()]


def proportional_mib(number):
    try:
        text = pathlib.Path(f"/proc/{number}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(int(kib) for kib in re.findall(r"^Pss:\s+(\d+) kB", text, re.M)) / 1024


def send(server, target, space, plans, programs, first):
    """Plans of made-up programs: 16 tasks in turn, each program another."""
    server.sql(f"""
        SELECT fleet.know_target('{target["fingerprint"]}', $t${target["text"]}$t$);
        INSERT INTO fleet.tasks (hash, workload) SELECT * FROM (VALUES {target["tasks"]}) AS t ON CONFLICT DO NOTHING;
        INSERT INTO fleet.plans (key, run, proposer, seed, kind, task, target, space, traces, created, state)
        SELECT gen_random_uuid(), 'load', 'load', 0, 'each', 1 + plan % (SELECT count(*) FROM fleet.tasks),
            '{target["fingerprint"]}', '{space}',
            ARRAY(SELECT format(E'tile a = %s\\n', {first} + plan * {programs} + n) FROM generate_series(1, {programs}) n),
            clock_timestamp(), 'waiting'
        FROM generate_series(0, {plans} - 1) plan""")


def describe():
    """This machine as a target, and some tasks as workers know them."""
    text = subprocess.run([BUILT / "tilescribe", "doctor"], check=True, capture_output=True, text=True).stdout
    about = json.loads(subprocess.run(
        [BUILT / "tilescribe", "doctor", "--json"], check=True, capture_output=True, text=True).stdout)
    return text, about["fingerprint"], about["space"]


def canonical(folder, server):
    """The target's own text and 16 tasks, by way of a command that sends them."""
    text, fingerprint, space = describe()
    (folder / "target.toml").write_text(text)
    workloads = [f"# t{n}\ninput t0 {n}\nout t1 {n} exp t0 a\n" for n in range(8, 24)]
    (folder / "workloads.txt").write_text("\n".join(workloads))
    subprocess.run([
        BUILT / "tilescribe", "plan", "--workloads", folder / "workloads.txt", "--fleet", server.address, "--programs", "1",
        "--target", folder / "target.toml"], check=True, stdout=subprocess.DEVNULL)
    tasks = server.sql("SELECT string_agg(format('(%L, %L)', hash, workload), ', ' ORDER BY id) FROM fleet.tasks")
    own = server.sql("SELECT target FROM fleet.targets")
    server.sql("DELETE FROM fleet.plans")
    return {"fingerprint": fingerprint, "text": own + "\n" if not own.endswith("\n") else own, "tasks": tasks}, space


def trial(server, folder, target, space, count, options, first):
    programs = options.programs or int(count * options.seconds * 1000 / max(options.program_ms, 1.0))
    plans = max(1, programs // options.plan)
    server.sql("TRUNCATE fleet.plans, fleet.leases, fleet.records, fleet.workers")
    send(server, target, space, plans, options.plan, first)
    (folder / "target-own.toml").write_text(target["text"])
    workers = []
    for number in range(count):
        command = [BUILT / "examples" / "simulated_worker", "--fleet", server.address, "--name", f"w{number}"]
        command += ["--store", folder / f"{count}-{number}.db", "--target", folder / "target-own.toml"]
        command += ["--program-ms", str(options.program_ms), "--patience", "1"]
        workers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    samples, waits, started = [], 0, time.monotonic()
    before = server.log.stat().st_size
    while any(worker.poll() is None for worker in workers):
        time.sleep(0.5)
        done, connections = server.sql(
            "SELECT (SELECT count(*) FROM fleet.records), (SELECT count(*) FROM pg_stat_activity "
            "WHERE application_name LIKE 'tilescribe%')").split("|")
        samples.append((time.monotonic() - started, int(done), int(connections), server.memory_mib(),
                        proportional_mib(workers[0].pid)))
        print(f"\r{count} workers: {done} of {plans * options.plan}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    log = server.log.read_text()[before:]
    waits = [float(ms) for ms in re.findall(r"(?:still waiting|acquired) .* after ([\d.]+) ms", log)]
    taken, busy, idle = map(float, server.sql(
        "SELECT extract(epoch FROM max(r.received) - min(l.taken)), (SELECT sum(busy_s) FROM fleet.workers), "
        "(SELECT sum(idle_s) FROM fleet.workers) FROM fleet.records r JOIN fleet.leases l USING (plan, fence)").split("|"))
    leases = int(server.sql("SELECT count(*) FROM fleet.leases"))
    known = int(server.sql("SELECT count(*) FROM fleet.records"))
    ideal = plans * options.plan * options.program_ms / 1e3 / count
    assert known == plans * options.plan, f"{known} records of {plans * options.plan}"
    middle = [sample for sample in samples if 0 < sample[1] < known]
    early, late = (middle[len(middle) // 10], middle[-1]) if middle else (samples[0], samples[-1])
    return {
        "workers": count, "programs": known, "seconds": round(taken, 2), "programs_per_s": round(known / taken, 1),
        "leases_per_s": round(leases / taken, 1), "not_measuring": round(1 - ideal / taken, 3),
        "longest_lock_ms": max(waits, default=0.0), "locks_over_20_ms": len(waits),
        "connections": [early[2], late[2]], "server_mib": [round(early[3]), round(late[3])],
        "worker_mib": [round(early[4], 1), round(late[4], 1)],
        "database_mib": int(server.sql("SELECT pg_database_size('fleet')")) >> 20,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,4,50", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--program-ms", type=float, default=10.0)
    parser.add_argument("--plan", type=int, default=32, help="programs of a plan")
    parser.add_argument("--seconds", type=float, default=20.0, help="work for each worker")
    parser.add_argument("--programs", type=int, help="programs of a trial, instead")
    parser.add_argument("--json", type=pathlib.Path, help="file for the results")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        server = Server(folder)
        try:
            subprocess.run([BUILT / "tilescribe", "fleet", "init", "--fleet", server.address], check=True,
                           stdout=subprocess.DEVNULL)
            target, space = canonical(folder, server)
            for count in options.workers:
                results.append(trial(server, folder, target, space, count, options, 10_000_000 * len(results)))
                print(json.dumps(results[-1]))
        finally:
            server.stop()
    single = next((result for result in results if result["workers"] == 1), None)
    for result in results:
        if single and result is not single:
            result["speed_up"] = round(result["programs_per_s"] / single["programs_per_s"], 2)
            print(f"{result['workers']} workers: {result['speed_up']} times one")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
