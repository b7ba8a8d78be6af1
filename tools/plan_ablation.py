#!/usr/bin/env python3
"""What each kind of decisions about a network as a whole is worth: networks compiled with all kinds, without
each of them, and without any, and timed in turn.

usage: plan_ablation.py [--store FILE] [--trials-per-task 10] [--threads N] [--rounds 5] [--seconds 1] [--only KIND,...]
                        [--compile-with "ARGUMENTS"] [--binary target/release/tilescribe] [--json OUT.json] NET.onnx ...

All artifacts of a network are compiled from one store, so that what plans share is measured once; without
--store it is a new one. A line of the table is a network and a kind: how many of its decisions the plan takes
otherwise than by default, of how many there are; what a run takes with all kinds and without this one; and
how many times as fast the first is. Each of the rounds times all artifacts of a network, in another order;
what counts is the median of the rounds' medians. Needs nothing but Python.
"""
import argparse
import collections
import json
import math
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile


def run(args, *words):
    done = subprocess.run([args.binary, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def last_line(text):
    return json.loads(text.strip().splitlines()[-1])


def kinds_of(decisions):
    """How many decisions there are of each kind, by what `show --plan` prints or a plan holds."""
    sites = [line.split(" = ")[0] for line in decisions.splitlines() if " = " in line and not line.startswith(" ")]
    return collections.Counter(site.split()[0] for site in sites)


def compiled(args, network, folder, store, without):
    words = ["compile", network, "-o", folder, "--store", store, "--trials-per-task", args.trials_per_task, "--json"]
    words += ["--threads", args.threads] if args.threads else []
    words += ["--without", ",".join(without)] if without else []
    return last_line(run(args, *words, *shlex.split(args.compile_with)))


def timed(args, folders):
    """The median of a run of each, in ms."""
    rounds = collections.defaultdict(list)
    for number in range(args.rounds):
        for name in sorted(folders, reverse=number % 2 == 1):
            words = ["bench", folders[name], "--seconds", args.seconds]
            words += ["--threads", args.threads] if args.threads else []
            rounds[name].append(last_line(run(args, *words))["median_ms"])
    return {name: statistics.median(times) for name, times in rounds.items()}


def ablated(args, network, scratch):
    """The lines of a network: one for each kind that it has, and one for all of them together."""
    store = args.store or scratch / "records.db"
    offered = kinds_of(run(args, "show", network, "--plan"))
    kinds = [kind for kind in offered if not args.only or kind in args.only]
    if not kinds:
        return []
    left_out = {kind: [kind] for kind in kinds}
    if len(kinds) > 1:
        left_out["all of them"] = kinds
    whole = compiled(args, network, scratch / "whole", store, [])
    plan = whole.get("plan", "")
    if plan:
        # decisions that others bring along
        offered |= kinds_of(run(args, "show", scratch / "whole", "--plan"))
    taken = kinds_of(plan)
    folders = {"whole": scratch / "whole"}
    for number, (name, without) in enumerate(left_out.items()):
        folders[name] = scratch / f"without{number}"
        compiled(args, network, folders[name], store, without)
    ms = timed(args, folders)
    count = lambda counts, without: sum(counts[kind] for kind in without)
    return [
        {
            "network": network.stem, "kind": name, "chosen": count(taken, without), "of": count(offered, without),
            "ms": ms["whole"], "without_ms": ms[name], "gain": ms[name] / ms["whole"],
        }
        for name, without in left_out.items()
    ]


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    parser.add_argument("networks", nargs="+", type=pathlib.Path)
    parser.add_argument("--store", type=pathlib.Path)
    parser.add_argument("--trials-per-task", type=int, default=10)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--compile-with", default="")
    parser.add_argument("--binary", default="target/release/tilescribe")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    lines = []
    print("| network | kind | chosen | with all, ms | without, ms | gain |\n| --- | --- | --- | --- | --- | --- |")
    for network in args.networks:
        with tempfile.TemporaryDirectory() as scratch:
            found = ablated(args, network, pathlib.Path(scratch))
        for line in found:
            chosen = f"{line['chosen']} of {line['of']}"
            times = f"{line['ms']:.3f} | {line['without_ms']:.3f} | {line['gain']:.3f}"
            print(f"| {line['network']} | {line['kind']} | {chosen} | {times} |", flush=True)
        if not found:
            print(f"| {network.stem} | nothing is decided | | | | |", flush=True)
        lines += found
    for kind in dict.fromkeys(line["kind"] for line in lines):
        gains = [line["gain"] for line in lines if line["kind"] == kind]
        mean = math.exp(statistics.fmean(map(math.log, gains)))
        used = sum(line["chosen"] > 0 for line in lines if line["kind"] == kind)
        print(f"{kind}: in {used} of {len(gains)} plans, gain {mean:.3f} (geometric mean)")
    if args.json:
        args.json.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
