#!/usr/bin/env python3
"""How many times as fast what one build's search finds is as what another's does, as Markdown: for builds that
cannot run in one comparison.

    python3 tools/across.py BEFORE AFTER [--methods lm,lm] [--at 1,3,5,10]

`BEFORE` and `AFTER` are the `results.json` that `tilescribe compare -o OUT` wrote of the same tasks, or such
files compressed by zstd. Each winner's time is relative to that of the untuned program of its own run, so that
a machine that was slower meanwhile does not count. Geometric means over tasks, intervals of 95 % over tasks.
Needs nothing but Python; the program `zstd` for compressed files.
"""

import argparse
import json
import math
import subprocess


def read(path):
    if path.endswith(".zst"):
        return json.loads(subprocess.run(["zstd", "-dc", path], check=True, capture_output=True).stdout)
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def logarithms(results, method, trials):
    """By task: of the winner's time after so many trials over the untuned program's, mean over seeds."""
    found = {}
    for task in results["tasks"]:
        times = [run["checked_ms"].get(trials) for run in task["runs"] if run["method"] == method]
        ratios = [math.log(time / task["untuned_ms"]) for time in times if time]
        if ratios:
            found[task["hash"]] = sum(ratios) / len(ratios)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--methods", default="lm,lm", help="of the one and of the other")
    parser.add_argument("--at", default="1,3,5,10")
    options = parser.parse_args()
    before, after = read(options.before), read(options.after)
    old, new = options.methods.split(",")
    print("| programs | times as fast | tasks |\n| ---: | ---: | ---: |")
    for trials in options.at.split(","):
        old_times, new_times = logarithms(before, old, trials), logarithms(after, new, trials)
        gains = [old_times[task] - new_times[task] for task in old_times if task in new_times]
        mean = sum(gains) / len(gains)
        deviation = math.sqrt(sum((gain - mean) ** 2 for gain in gains)) / len(gains)
        low, middle, high = (math.exp(mean + side * 1.96 * deviation) for side in (-1, 0, 1))
        print(f"| {trials} | {middle:.3f} ({low:.3f} to {high:.3f}) | {len(gains)} |")


if __name__ == "__main__":
    main()
