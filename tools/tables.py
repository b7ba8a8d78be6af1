#!/usr/bin/env python3
"""Tables of a comparison, as Markdown: quality by number of measured programs, and what each method needs to
come as far as `lm`.

    python3 tools/tables.py OUT/results.json [--of lm] [--at 10]

`OUT` is what `tilescribe compare -o OUT` wrote. Needs nothing but Python.
"""

import argparse
import json
import math

TIMES = [2, 20, 60]


def quality(task, run, trials):
    """Of a run's winner after so many trials: the reference's time divided by its own. None where it was not asked then."""
    if str(trials) not in run["checked_ms"]:
        return None
    time = run["checked_ms"][str(trials)]
    return task["reference_ms"] / time if time else 0.01


def mean(values):
    """Geometric."""
    return math.exp(sum(map(math.log, values)) / len(values))


def by_trials(task, method):
    """The method's qualities on a task, by trials: the mean over its seeds."""
    runs = [run for run in task["runs"] if run["method"] == method]
    points = sorted({int(trials) for run in runs for trials in run["checked_ms"]})
    every = {trials: [quality(task, run, trials) for run in runs] for trials in points}
    return {trials: mean(values) for trials, values in every.items() if None not in values}


def print_qualities(results):
    columns = sorted({int(trials) for row in results["summary"].values() for trials in row})
    print("| method | seeds | " + " | ".join(map(str, columns)) + " |")
    print("| --- |" + " ---: |" * (len(columns) + 1))
    for method, row in sorted(results["summary"].items(), key=lambda item: -max(item[1].values())):
        runs = [run for task in results["tasks"] for run in task["runs"] if run["method"] == method]
        seeds = len({run["seed"] for run in runs})
        # behind its last program a method stays where it is, which is nothing that it did
        measured = max(len(run["best_ms"]) for run in runs)
        cells = [f"{row[str(c)]:.3f}" if str(c) in row and c <= measured else "" for c in columns]
        print(f"| {method} | {seeds} | " + " | ".join(cells) + " |")
    print(f"\nUntuned: {results['untuned']:.3f}. {len(results['tasks'])} tasks.\n")


def print_controls(results):
    """What methods do better than their controls, and its 95 % interval over tasks and seeds."""
    pairs = results.get("controls", [])
    if not pairs:
        return
    columns = sorted({int(trials) for pair in pairs for trials in pair["by_trials"]})
    print("| method - control | " + " | ".join(map(str, columns)) + " |")
    print("| --- |" + " ---: |" * len(columns))
    for pair in pairs:
        cells = []
        for column in columns:
            found = pair["by_trials"].get(str(column))
            interval = found and found["interval"]
            bounds = f" ({interval[0]:+.3f} to {interval[1]:+.3f})" if interval else ""
            cells.append(f"{found['difference']:+.3f}{bounds}" if found else "")
        print(f"| {pair['method']} - {pair['control']} | " + " | ".join(cells) + " |")
    print()


def bounds(values, goal):
    """Between which numbers of trials a goal is reached: at the lower one it was not yet, at the upper one it was (None: never)."""
    points = sorted(values)
    first = next((index for index, trials in enumerate(points) if values[trials] >= goal), len(points))
    return (points[first - 1] if first else 0), (points[first] if first < len(points) else None)


def print_needed(results, of, at):
    """How many trials other methods need for what `of` has after `at`: of the mean over all tasks, and of one task after the other."""
    goal = results["summary"][of][str(at)]
    print(f"To reach what {of} has after {at} ({goal:.3f} in the mean):\n")
    head = [f"more than {times} times as many" for times in TIMES] + ["does not get there"]
    print("| method | trials, in the mean | " + " | ".join(f"tasks where it needs {h}" for h in head[:-1]) + f" | {head[-1]} |")
    print("| --- |" + " ---: |" * (len(head) + 1))
    for method, row in results["summary"].items():
        if method == of:
            continue
        needed = []
        for task in results["tasks"]:
            own, other = by_trials(task, of).get(at), by_trials(task, method)
            if own is not None and other:
                needed.append(bounds(other, own))
        # what a method would have done had it gone on is not known, nor when between two checkpoints it got
        # there: only what is certain counts
        most = max(map(int, row))
        counts = [sum(low >= times * at for low, _ in needed) if times * at <= most else None for times in TIMES]
        counts.append(sum(high is None for _, high in needed))
        low, high = bounds({int(trials): value for trials, value in row.items()}, goal)
        first = f"more than {low}" if high is None else f"{low + 1} to {high}"
        cells = ["" if count is None else f"{count} of {len(needed)}" for count in counts]
        print(f"| {method} | {first} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--of", default="lm", help="method that the others are held against")
    parser.add_argument("--at", type=int, default=10, help="after so many trials")
    options = parser.parse_args()
    with open(options.results, encoding="utf-8") as file:
        results = json.load(file)
    print_qualities(results)
    print_controls(results)
    print_needed(results, options.of, options.at)


if __name__ == "__main__":
    main()
