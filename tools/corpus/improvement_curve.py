#!/usr/bin/env python3
"""Fits how much a search improves a task's best program with each one that it measures, from corpus files.

usage: zstd -dc RECORDS... | improvement_curve.py [METHOD]

Takes the runs of METHOD (lm) that begin a task on a machine. For each number of programs measured it prints
the mean natural logarithm of the factor by which the next one was faster than the best before, then the
power of that number that fits (least squares of logarithms, weighed by runs), and how well the next
improvement is told where the last ones of the same task count: the root of the mean square of what was
missed, in units of what the curve says. `src/tune/improvement.rs` holds what came of it.
"""
import collections
import json
import math
import sys

# fewer runs than this say nothing of a number of programs
ENOUGH = 300
# improvements count up to this: beyond, the first program was hopeless
MOST = 1.0
FADES = [0.5, 0.7, 0.9, 1.0]
WEIGHTS = [2, 5, 10, 20, 50, math.inf]


def runs(lines, method):
    """By task and machine, the best times of the first run, in the order of the file."""
    first, found = {}, collections.OrderedDict()
    for line in lines:
        record = json.loads(line)
        key = record["task"], record["target"]
        run = record["seed"], record["proposer"]
        if first.setdefault(key, run) == run and record["proposer"] == method:
            found.setdefault(key, []).append(min(record["times_ns"]) if record["times_ns"] else None)
    return found.values()


def improvements(times):
    """Of each program behind the first."""
    best, found = times[0], []
    for time in times[1:]:
        found.append(min(MOST, math.log(best / time)) if time and time < best else 0.0)
        best = min(best, time or best)
    return found


def fitted(means):
    """Scale and exponent of (number, mean, runs)."""
    whole = sum(count for _, _, count in means)
    x0 = sum(count * math.log(number) for number, _, count in means) / whole
    y0 = sum(count * math.log(mean) for _, mean, count in means) / whole
    above = sum(count * (math.log(number) - x0) * (math.log(mean) - y0) for number, mean, count in means)
    below = sum(count * (math.log(number) - x0) ** 2 for number, _, count in means)
    return math.exp(y0 - above / below * x0), -above / below


def missed(sequences, curve, fade, weight):
    """What is not told of the improvements from the third on."""
    total, count = 0.0, 0
    for sequence in sequences:
        gained = expected = 0.0
        for number, improvement in enumerate(sequence, 1):
            prior = curve(number)
            if number > 2:
                rate = 1.0 if weight == math.inf else (weight * prior + gained) / (weight * prior + expected)
                total += ((improvement - rate * prior) / prior) ** 2
                count += 1
            gained, expected = gained * fade + improvement, expected * fade + prior
    return math.sqrt(total / count)


def main():
    method = sys.argv[1] if len(sys.argv) > 1 else "lm"
    sequences = [improvements(times) for times in runs(sys.stdin, method) if len(times) >= 8 and times[0]]
    means = []
    for number in range(1, max(map(len, sequences)) + 1):
        values = [sequence[number - 1] for sequence in sequences if len(sequence) >= number]
        mean = sum(values) / len(values)
        if len(values) >= ENOUGH and mean > 0:
            means.append((number, mean, len(values)))
            print(f"behind {number}: {mean:.4f} ({len(values)} runs)")
    scale, exponent = fitted(means)
    print(f"{scale:.4f} / n^{exponent:.3f}, {len(sequences)} runs")
    curve = lambda number: scale * number**-exponent
    for fade in FADES:
        row = ", ".join(f"{weight}: {missed(sequences, curve, fade, weight):.4f}" for weight in WEIGHTS)
        print(f"fade {fade}, missed by weight of the curve in programs: {row}")


if __name__ == "__main__":
    main()
