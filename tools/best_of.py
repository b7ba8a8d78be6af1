#!/usr/bin/env python3
"""How good the best of N draws is, of samplers that were measured one after the other: of each file of pools,
relative to the best of all files, as Markdown; and how much better than the first file's.

    python3 tools/best_of.py BEFORE.jsonl.zst AFTER.jsonl.zst ...

The files are those of `tilescribe pools`, of the same tasks. Expectations over all ways to draw N of a
sampler's draws; intervals of 95 % over tasks, by the bootstrap. Needs the program `zstd` and nothing else.
"""

import argparse
import collections
import json
import math
import pathlib
import random
import subprocess

COUNTS = [1, 3, 10, 32]
RESAMPLED = 2000
# what a task counts of which nothing that was drawn is a program
NOTHING = 1e-3


def draws(path):
    """By task and sampler: the times of all draws, in nanoseconds; infinite where there is none."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    lines = subprocess.run(["zstd", "-dc", path], check=True, capture_output=True, text=True).stdout.splitlines()
    for line in map(json.loads, lines):
        timed = line["outcome"] == "timed"
        time = math.sqrt(line["first_ns"] * line["second_ns"]) if timed else math.inf
        for draw in line["draws"]:
            found[line["name"]][draw["sampler"]].append(time)
    return found


def expected(times, count, best):
    """The expected logarithm of the quality of the best of `count` of these, drawn without repetition."""
    qualities = sorted(math.log(max(best / time, NOTHING)) for time in times)
    whole = math.comb(len(qualities), count)
    # the best of them is at a place where all others stand below it
    ways = (math.comb(place, count - 1) * quality for place, quality in enumerate(qualities))
    return sum(ways) / whole


def interval(differences):
    """95 % of the means of tasks drawn anew."""
    drawn = random.Random(0)
    means = sorted(
        sum(drawn.choices(differences, k=len(differences))) / len(differences) for _ in range(RESAMPLED)
    )
    return means[RESAMPLED // 40], means[-RESAMPLED // 40]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pools", nargs="+", type=pathlib.Path)
    files = {path: draws(path) for path in parser.parse_args().pools}
    tasks = sorted(set.intersection(*(set(found) for found in files.values())))
    best = {task: min(min(min(times) for times in found[task].values()) for found in files.values()) for task in tasks}
    print(f"{len(tasks)} tasks; geometric means, and factors beside the first row\n")
    print("| file | sampler | " + " | ".join(f"best of {count}" for count in COUNTS) + " |")
    print("| --- | --- |" + " ---: |" * len(COUNTS))
    first = None
    for path, found in files.items():
        for sampler in sorted({sampler for task in tasks for sampler in found[task]}):
            cells, own = [], []
            for place, count in enumerate(COUNTS):
                values = [expected(found[task][sampler], min(count, len(found[task][sampler])), best[task]) for task in tasks]
                own.append(values)
                cells.append(f"{math.exp(sum(values) / len(values)):.3f}")
                if first is not None:
                    differences = [a - b for a, b in zip(values, first[place])]
                    low, high = (math.exp(bound) for bound in interval(differences))
                    ratio = math.exp(sum(differences) / len(differences))
                    cells[-1] += f", {ratio:.3f} ({low:.3f} to {high:.3f})"
            first = first or own
            print(f"| {path.name} | {sampler} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
