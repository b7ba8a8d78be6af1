"""Who finds faster programs sooner: the language model, evolution, or chance, on the tasks of one network.

usage: curves.py [--trials N] [--seeds K] [--output DIR] [--picture OUT.png] NETWORK.onnx

Compares search methods with the same number of measured programs, and draws quality by their number: the best known time of a task divided
by the time of the method's best. The folder holds the page `report.html` with a curve for each task. Needs tilescribe and matplotlib.
"""

import argparse

import tilescribe as ts

METHODS = ["lm", "evolution", "random"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", help="folder for results and report [default: a temporary one]")
    parser.add_argument("--picture", help="draw the curves to this file")
    options = parser.parse_args()
    found = ts.compare(options.network, methods=METHODS, trials=options.trials, seeds=options.seeds, output=options.output)
    for method, curve in found.summary.items():
        print(f"{method:<10}", ", ".join(f"{trials}: {quality:.3f}" for trials, quality in sorted(curve.items())))
    print(found.report)
    if options.picture:
        draw(found.summary, options.picture)


def draw(summary, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.6))
    for method, curve in summary.items():
        trials, quality = zip(*sorted(curve.items()), strict=True)
        axes.plot(trials, quality, marker="o", label=method)
    axes.set(xscale="log", xlabel="measured programs of each task", ylabel="best known / best so far")
    axes.set_xticks(trials, [str(count) for count in trials])
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
