"""Reads text from a picture with the networks of a published package, compiled: three networks, 60 lines.

usage: ocr.py [--trials N] [--rounds K] [--picture OUT.png]

rapidocr-onnxruntime finds lines of text, turns them upright and reads them, each with an ONNX network that it runs by onnxruntime. Here its
`InferenceSession` is Tilescribe's instead: nothing else changes. Each network is compiled once, for pages and lines of all sizes in a range.
Prints what was read and how long both take; draws it. Needs tilescribe, rapidocr-onnxruntime and matplotlib.
"""

import argparse
import pathlib
import statistics
import time

import numpy as np
import onnxruntime
import tilescribe as ts
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR
from rapidocr_onnxruntime.utils import infer_engine

# What the package gives its networks: one page, up to six lines at a time. Names are those of the ONNX files.
SIZES = {
    "det": {"p2o.DynamicDimension.0": 1},
    "cls": {"x[0]": (1, 6), "x[2]": 48, "x[3]": 192},
    "rec": {"p2o.DynamicDimension.0": (1, 6), "x[2]": 48},
}
# Where programs are measured: a page of this size, lines of this length.
MEASURED = {
    "det": [{"p2o.DynamicDimension.1": 736, "p2o.DynamicDimension.2": 1984}],
    "cls": [{"x[0]": 3}],
    "rec": [{"p2o.DynamicDimension.0": 3, "p2o.DynamicDimension.1": 640}],
}
TEXT = ["Every decision of a schedule is a word", "of a small tensor language.", "A transformer writes the next one."]


def page():
    """A page of text, as RGB: `[height, width, 3]`."""
    picture = Image.new("RGB", (640, 240), "white")
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(TEXT):
        draw.text((30, 30 + 65 * number), line, fill="black", font=ImageFont.load_default(size=30))
    return np.asarray(picture)


def read(session, image, rounds):
    """What is read, and the median of the seconds that it takes."""
    infer_engine.InferenceSession = session
    engine = RapidOCR()
    lines, _ = engine(image)
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        engine(image)
        seconds.append(time.perf_counter() - start)
    return lines, statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10, help="measured programs of each task")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--picture", help="draw what was read to this file")
    options = parser.parse_args()
    image = page()

    def compiled(path, **given):
        kind = next(kind for kind in SIZES if f"_{kind}_" in pathlib.Path(path).name)
        return ts.InferenceSession(path, trials=options.trials, dims=SIZES[kind], tune_at=MEASURED[kind], **given)

    ours, ours_s = read(compiled, image, options.rounds)
    theirs, theirs_s = read(onnxruntime.InferenceSession, image, options.rounds)
    for line, other in zip(ours, theirs, strict=True):
        assert line[1] == other[1], f"{line[1]!r} and {other[1]!r}"
        print(f"{float(line[2]):.3f}  {line[1]}")
    assert [line[1].replace(" ", "") for line in ours] == [line.replace(" ", "") for line in TEXT], "all of it was read"
    print(f"a page: tilescribe {1e3 * ours_s:.1f} ms, onnxruntime {1e3 * theirs_s:.1f} ms")
    if options.picture:
        draw(image, ours, options.picture)


def draw(image, lines, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3))
    axes.imshow(image)
    for corners, text, score in lines:
        corners = np.array([*corners, corners[0]])
        axes.plot(*corners.T, color="tab:blue")
        axes.text(corners[0][0], corners[0][1] - 6, f"{text}  ({float(score):.2f})", color="tab:blue", fontsize=7)
    axes.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
