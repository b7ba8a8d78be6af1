"""A language model writes text, its cache kept and appended to in place.

usage: decoder.py [--steps N] [--train-seconds S] [--trials N] [--picture OUT.png] TEXT ...

A small transformer of bytes is trained for a minute on the files that are given (in the picture: the pages of this repository), and
exported with open lengths of prompt and past. `states={"past_*": "present_*"}` makes its cache part of the compiled network: a step is given
one byte, and moves nothing of the past. Prints what it writes and how long steps take, beside the same network in onnxruntime, which is
given the cache and gives it back. Draws the time of a step by the length of the past. Needs tilescribe, onnxruntime, torch and matplotlib.
"""

import argparse
import math
import pathlib
import tempfile
import time

import numpy as np
import onnxruntime
import tilescribe as ts
import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 128, 4, 3, 256, 8


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.joint, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, past):
        """`x` is `[batch, new, width]`, `past` `[batch, 2, heads, before, head width]`; the second result holds both."""
        batch, new, _ = x.shape
        q, k, v = self.joint(self.before(x)).view(batch, new, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        present = torch.cat([past, torch.stack([k, v], 1)], 3)
        k, v = present[:, 0], present[:, 1]
        before = past.shape[3]
        rows, columns = torch.arange(new)[:, None] + before, torch.arange(before + new)[None]
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        weights = torch.softmax(scores.masked_fill(columns > rows, float("-inf")), -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, new, WIDTH))
        return x + self.down(F.gelu(self.up(self.behind(x)))), present


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, ids, past_0, past_1, past_2):
        before = past_0.shape[3]
        x = self.bytes(ids) + self.places(torch.arange(ids.shape[1]) + before)
        presents = []
        for layer, past in zip(self.layers, (past_0, past_1, past_2), strict=True):
            x, present = layer(x, past)
            presents.append(present)
        return (self.last(x) @ self.bytes.weight.T, *presents)


def nothing(batch):
    return [torch.zeros(batch, 2, HEADS, 0, WIDTH // HEADS) for _ in range(LAYERS)]


def train(model, text, seconds):
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    end, loss = time.monotonic() + seconds, None
    while time.monotonic() < end:
        starts = torch.randint(0, len(data) - CONTEXT - 1, (BATCH,))
        rows = torch.stack([data[start : start + CONTEXT + 1] for start in starts])
        logits = model(rows[:, :-1], *nothing(BATCH))[0]
        loss = F.cross_entropy(logits.reshape(-1, 256), rows[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"trained for {seconds} s: {float(loss.detach()) / math.log(2):.2f} bits a byte")


def export(model, path):
    new, before = torch.export.Dim("new", min=1, max=CONTEXT), torch.export.Dim("before", min=0, max=CONTEXT - 1)
    examples = (torch.zeros(1, 5, dtype=torch.int64), *(past.new_zeros(1, 2, HEADS, 7, WIDTH // HEADS) for past in nothing(1)))
    names = [f"past_{number}" for number in range(LAYERS)]
    torch.onnx.export(
        model, examples, str(path), dynamo=True, verbose=False, external_data=False, input_names=["ids", *names],
        output_names=["logits", *(f"present_{number}" for number in range(LAYERS))],
        dynamic_shapes=({1: new}, *({3: before} for _ in names)),
    )  # fmt: skip


def write(step, prompt, count, rng):
    """The bytes that are drawn, one by one, and the seconds of each step."""
    logits = step(np.array([list(prompt)], np.int64))
    written, seconds = [], []
    for _ in range(count):
        scores = logits[0, -1].astype(np.float64) / 0.7
        chances = np.exp(scores - scores.max())
        written.append(int(rng.choice(256, p=chances / chances.sum())))
        start = time.perf_counter()
        logits = step(np.array([[written[-1]]], np.int64))
        seconds.append(time.perf_counter() - start)
    return bytes(written), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=230, help=f"bytes to write, less than {CONTEXT}")
    parser.add_argument("--train-seconds", type=int, default=60)
    parser.add_argument("--trials", type=int, default=10, help="measured programs of each task")
    parser.add_argument("--picture", help="draw the time of steps to this file")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = Writer()
    train(model, b"\n".join(path.read_bytes() for path in options.text), options.train_seconds)
    with tempfile.TemporaryDirectory() as scratch:
        onnx = pathlib.Path(scratch) / "writer.onnx"
        export(model.eval(), onnx)
        dims = {"new": (1, CONTEXT), "before": (0, CONTEXT - 1)}
        net = ts.compile(onnx, pathlib.Path(scratch) / "net", trials=options.trials, dims=dims, states={"past_*": "present_*"})
        print("states:", ", ".join(f"{state.name} {state.shape}" for state in net.states))
        session = onnxruntime.InferenceSession(onnx)
        past = [it.numpy() for it in nothing(1)]

        def by_onnxruntime(ids):
            nonlocal past
            logits, *past = session.run(None, {"ids": ids, **{f"past_{number}": it for number, it in enumerate(past)}})
            return logits

        prompt = b"The language model "
        text, ours_s = write(net, prompt, options.steps, np.random.default_rng(1))
        other, theirs_s = write(by_onnxruntime, prompt, options.steps, np.random.default_rng(1))
        assert text == other, "both write the same"
        print((prompt + text).decode("utf-8", "replace"))
        half = options.steps // 2
        means = [1e6 * float(np.median(seconds[half:])) for seconds in (ours_s, theirs_s)]
        print(f"a step behind {half} to {options.steps} bytes: tilescribe {means[0]:.0f} us, onnxruntime {means[1]:.0f} us")
        if options.picture:
            draw(ours_s, theirs_s, options.picture)


def draw(ours_s, theirs_s, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.2))
    for name, seconds in (("onnxruntime, cache in and out", theirs_s), ("tilescribe, cache in place", ours_s)):
        width = 9
        smooth = [1e6 * np.median(seconds[max(0, at - width) : at + width]) for at in range(len(seconds))]
        axes.plot(smooth, label=name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("bytes written before")
    axes.set_ylabel("microseconds a step")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
