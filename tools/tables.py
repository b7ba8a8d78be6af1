#!/usr/bin/env python3
"""Tables of a comparison, as Markdown: quality by number of measured programs, and what each method needs to
come as far as `lm`.

    python3 tools/tables.py OUT/results.json [--of lm] [--at 10] [--seconds 1,2,5] [--svg PICTURE.svg]

`OUT` is what `tilescribe compare -o OUT` wrote; with `--seconds`, its `runs.jsonl` is read, too. The picture
has a curve for each method, named where it ends. Needs nothing but Python.
"""

import argparse
import json
import math
import pathlib

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
    if str(at) not in results["summary"].get(of, {}):
        print(f"{of} has no figure after {at} programs to hold the others against.")
        return
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


def print_by_seconds(results, path, seconds):
    """Quality after so many seconds of a task's search, proposing included: of the fastest program measured by
    then, at the time that it was measured at. A method that has none by then counts as the untuned program."""
    tasks = {task["hash"]: task for task in results["tasks"]}
    # of a run that was continued with more trials, the last line holds all
    runs = {}
    with open(path, encoding="utf-8") as file:
        for run in map(json.loads, file):
            if run.get("task") in tasks and run["best_ms"]:
                runs[run["task"], run["method"], run["seed"]] = run
    by_method = {}
    for (hash, method, _), run in runs.items():
        task = tasks[hash]
        for limit in seconds:
            found = [best for best, at in zip(run["best_ms"], run["seconds"]) if at <= limit and best]
            best = min(found, default=task["untuned_ms"])
            by_method.setdefault(method, {}).setdefault(limit, []).append(min(task["reference_ms"] / best, 1.0))
    print("| method | " + " | ".join(f"{limit:g} s" for limit in seconds) + " |")
    print("| --- |" + " ---: |" * len(seconds))
    for method, found in sorted(by_method.items(), key=lambda item: -mean(item[1][seconds[-1]])):
        print(f"| {method} | " + " | ".join(f"{mean(found[limit]):.3f}" for limit in seconds) + " |")
    print()


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 50, 150, 16, 36


def spread(heights, gap):
    """Heights moved apart by at least `gap`, in their order."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    moved = list(heights)
    for before, after in zip(order, order[1:]):
        moved[after] = max(moved[after], moved[before] + gap)
    # what was pushed out below moves up again
    for after, before in zip(order[::-1], order[-2::-1]):
        moved[order[-1]] = min(moved[order[-1]], HEIGHT - BOTTOM)
        moved[before] = min(moved[before], moved[after] - gap)
    return moved


def picture(results):
    """Quality by the number of measured programs, which goes by its logarithm."""
    rows = results["summary"].items()
    curves = {method: sorted((int(trials), value) for trials, value in row.items()) for method, row in rows}
    curves = dict(sorted(curves.items(), key=lambda item: -item[1][-1][1]))
    most = max(trials for points in curves.values() for trials, _ in points)
    low = math.floor(min(value for points in curves.values() for _, value in points) * 10) / 10
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    x = lambda trials: LEFT + width * math.log(trials) / math.log(max(most, 2))
    y = lambda value: TOP + height * (1 - (value - low) / (1.0 - low))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui,sans-serif" font-size="11" role="img">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tenth in range(round(low * 10), 11):
        at = y(tenth / 10)
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e5e5e5"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tenth / 10:.1f}</text>')
    for trials in sorted({trials for points in curves.values() for trials, _ in points}):
        lines.append(f'<text x="{x(trials):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{trials}</text>')
    lines.append(f'<text x="{LEFT + width / 2}" y="{HEIGHT - 4}" text-anchor="middle">measured programs</text>')
    labels = spread([y(points[-1][1]) for points in curves.values()], 12)
    for number, ((method, points), label) in enumerate(zip(curves.items(), labels)):
        colour = f"hsl({number * 137.5 % 360:.0f} 65% 42%)"
        path = " ".join(f"{x(trials):.1f},{y(value):.1f}" for trials, value in points)
        thick = 3 if method == "lm" else 1.5
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{thick}"/>')
        end = x(points[-1][0])
        last = points[-1][1]
        lines.append(f'<line x1="{end:.1f}" x2="{end + 10:.1f}" y1="{y(last):.1f}" y2="{label:.1f}" stroke="{colour}"/>')
        lines.append(f'<text x="{end + 13:.1f}" y="{label + 4:.1f}" fill="{colour}">{method} {last:.3f}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--of", default="lm", help="method that the others are held against")
    parser.add_argument("--at", type=int, default=10, help="after so many trials")
    numbers = lambda text: [float(part) for part in text.split(",")]
    parser.add_argument("--seconds", type=numbers, help="also the qualities after so many seconds")
    parser.add_argument("--svg", type=pathlib.Path, help="file for a picture")
    options = parser.parse_args()
    with open(options.results, encoding="utf-8") as file:
        results = json.load(file)
    print_qualities(results)
    print_controls(results)
    if options.seconds:
        print_by_seconds(results, pathlib.Path(options.results).with_name("runs.jsonl"), options.seconds)
    if options.svg:
        options.svg.write_text(picture(results), encoding="utf-8")
    print_needed(results, options.of, options.at)


if __name__ == "__main__":
    main()
