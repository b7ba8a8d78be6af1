#!/usr/bin/env python3
"""Exports random but plausible networks to ONNX, so that the corpus knows more shapes than those of well-known
networks.

usage: random_networks.py OUT_DIR [--images 70] [--sequences 45] [--seed 1]

Each is a chain of layers as people build them: convolutions of one to three dimensions with their
normalisation, activation and residual, depthwise and grouped ones, pooling, squeeze and excitation,
transposed convolutions; or a transformer block with attention, norms and a plain or gated feed-forward
part. Kinds of layers, channels, sizes, batches and lengths are drawn; channels and lengths are mostly the
round numbers that people choose, and now and then are not. Needs torch.
"""
import argparse
import pathlib
import random

import torch
from torch import nn
from torch.nn import functional as F

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
CONV_TRANSPOSE = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
MAX_POOL = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGE_POOL = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
ACTIVATIONS = [nn.ReLU, nn.ReLU, nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Hardswish, nn.LeakyReLU, nn.Sigmoid, nn.Tanh]
# multiplications and additions of one layer
LARGEST_FLOP = 7e8
LARGEST_ELEMENTS = 3e6


def channels(rng, low=8, high=1024):
    """Log-uniform; nine of ten are a multiple of 8 or 16."""
    drawn = low * (high / low) ** rng.random()
    if rng.random() < 0.1:
        return max(1, round(drawn))
    step = rng.choice([8, 8, 16, 32]) if drawn > 32 else 8
    return max(step, round(drawn / step) * step)


class Residual(nn.Module):
    def __init__(self, inner, after):
        super().__init__()
        self.inner, self.after = inner, after

    def forward(self, x):
        return self.after(x + self.inner(x))


class SqueezeExcite(nn.Module):
    def __init__(self, rng, rank, count):
        super().__init__()
        middle = max(4, count // rng.choice([4, 8, 16]))
        self.rank = rank
        self.down, self.up = CONV[rank](count, middle, 1), CONV[rank](middle, count, 1)
        self.inner, self.gate = rng.choice([nn.ReLU, nn.SiLU])(), rng.choice([nn.Sigmoid, nn.Hardsigmoid])()

    def forward(self, x):
        pooled = x.mean(dim=tuple(range(2, 2 + self.rank)), keepdim=True)
        return x * self.gate(self.up(self.inner(self.down(pooled))))


class Branches(nn.Module):
    def __init__(self, *branches):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class ChannelNorm(nn.Module):
    """Layer norm over the channels of an image, with channels last in between."""

    def __init__(self, count):
        super().__init__()
        self.norm = nn.LayerNorm(count)

    def forward(self, x):
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


def convolution(rng, rank, of, to, size, stride=1, windows=(1, 1, 1, 1, 3, 3, 3, 3, 5, 2, 7)):
    window = rng.choice(windows) if min(size) >= 7 else rng.choice([1, 1, 3])
    dilation = 2 if window == 3 and min(size) >= 9 and rng.random() < 0.1 else 1
    divisors = [g for g in (2, 4, 8, 16, 32) if of % g == 0 and to % g == 0]
    groups = rng.choice(divisors) if divisors and rng.random() < 0.15 else 1
    padding = (window - 1) // 2 * dilation
    normalised = rng.random() < 0.6
    return conv_layers(rng, rank, CONV[rank](of, to, window, stride, padding, dilation, groups, not normalised), to, normalised)


def conv_layers(rng, rank, conv, to, normalised):
    layers = [conv]
    if normalised:
        layers.append(BATCH_NORM[rank](to))
    if rng.random() < 0.8:
        layers.append(rng.choice(ACTIVATIONS)())
    return nn.Sequential(*layers)


def image_layer(rng, rank, of, size):
    """A layer for `of` channels of an image of `size`."""
    kind = rng.choices(
        ["conv", "residual", "depthwise", "pool", "excite", "transposed", "branches", "norm"],
        [10, 3, 4, 1.5, 1, 0.7, 1, 0.5])[0]
    small = min(size) < 4
    if kind == "residual":
        inner = convolution(rng, rank, of, of, size, windows=(1, 3, 3, 5))
        return Residual(inner, rng.choice([nn.Identity, nn.ReLU])())
    if kind == "depthwise" and not small:
        window, stride = rng.choice([3, 3, 3, 5, 5, 7]), rng.choice([1, 1, 2])
        to = of * (2 if rng.random() < 0.05 else 1)
        return conv_layers(rng, rank, CONV[rank](of, to, window, stride, window // 2, 1, of), to, rng.random() < 0.6)
    if kind == "pool" and not small:
        window, stride = rng.choice([(2, 2), (3, 2), (3, 1)])
        pool = rng.choice([MAX_POOL, AVERAGE_POOL])[rank]
        return pool(window, stride, 1 if window == 3 and rng.random() < 0.5 else 0)
    if kind == "excite":
        return SqueezeExcite(rng, rank, of)
    if kind == "transposed":
        window = rng.choice([2, 3, 4])
        to = channels(rng, 8, 256)
        return conv_layers(rng, rank, CONV_TRANSPOSE[rank](of, to, window, 2, (window - 1) // 2), to, rng.random() < 0.4)
    if kind == "branches":
        return Branches(*(conv_layers(rng, rank, CONV[rank](of, channels(rng, 8, 256), w, 1, w // 2), 0, False) for w in (1, 3)))
    if kind == "norm":
        return ChannelNorm(of)
    stride = 2 if not small and rng.random() < 0.2 else 1
    return convolution(rng, rank, of, channels(rng), size, stride)


def cost(layer, x, y):
    """Twice the multiplications of a layer's convolutions, at most."""
    convs = [m for m in layer.modules() if hasattr(m, "kernel_size") and hasattr(m, "weight")]
    points = max(x[0, 0].numel(), y[0, 0].numel()) * x.shape[0]
    return sum(2 * m.weight.numel() * points for m in convs)


class ImageNetwork(nn.Module):
    def __init__(self, rng, layers):
        super().__init__()
        rank = rng.choices([1, 2, 3], [1, 10, 1])[0]
        batch = rng.choice([1, 1, 1, 1, 2, 3, 4, 8])
        count = rng.choice([1, 3, 3, 3, 4])
        side = {1: (128, 4000), 2: (28, 320), 3: (12, 40)}[rank]
        side = round(side[0] * (side[1] / side[0]) ** rng.random())
        side = side if rng.random() < 0.2 else max(8, side // 8 * 8)
        shape = [side] * rank if rng.random() < 0.8 else [max(8, side // rng.choice([1, 2])) for _ in range(rank)]
        self.example = torch.randn(batch, count, *shape)
        window = rng.choice([3, 3, 5, 7])
        to = channels(rng, 16, 128)
        stem = conv_layers(rng, rank, CONV[rank](count, to, window, rng.choice([1, 2, 2]), window // 2), to, True)
        self.layers = nn.ModuleList()
        x = self.example
        while len(self.layers) < layers:
            layer = stem if not self.layers else image_layer(rng, rank, x.shape[1], x.shape[2:])
            with torch.no_grad():
                y = layer.eval()(x)
            if self.layers and (cost(layer, x, y) > LARGEST_FLOP or y.numel() > LARGEST_ELEMENTS or y.shape[1] > 2048):
                continue
            self.layers.append(layer)
            x = y
            # as networks do, smaller images with more channels
            if min(x.shape[2:]) > 7 and rng.random() < 0.15:
                pool = MAX_POOL[rank](2)
                self.layers.append(pool)
                x = pool(x)
        self.rank = rank
        self.head = nn.Linear(x.shape[1], rng.choice([10, 100, 365, 1000]))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return F.softmax(self.head(x.mean(dim=tuple(range(2, 2 + self.rank)))), dim=-1)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class SequenceNetwork(nn.Module):
    """One transformer block, and a head over a few classes."""

    def __init__(self, rng):
        super().__init__()
        size, self.heads = rng.choice([16, 32, 32, 48, 64, 64, 64, 80, 96, 128]), rng.choice([1, 2, 3, 4, 6, 8, 8, 12, 16])
        self.heads = min(self.heads, 1536 // size)
        width = size * self.heads
        batch = rng.choice([1, 1, 1, 1, 2, 3, 4, 8])
        length = rng.choice([1, 1, 2, 7, 16, 25, 32, 49, 64, 77, 100, 128, 144, 160, 196, 225, 256, 300, 384])
        while batch * length > 1 and (batch * length * width * width * 8 > LARGEST_FLOP * 2 or batch * length * length * width * 4 > LARGEST_FLOP):
            batch, length = (batch // 2, length) if batch > 1 else (batch, length // 2)
        self.example = torch.randn(max(1, batch), max(1, length), width)
        norm = rng.choice([nn.LayerNorm, nn.LayerNorm, RmsNorm])
        self.first, self.second = norm(width), norm(width)
        bias = norm is nn.LayerNorm
        self.fused = rng.random() < 0.5
        self.before = rng.random() < 0.6
        self.causal = rng.random() < 0.4
        self.scale = size ** -0.5
        self.queries = nn.Linear(width, 3 * width if self.fused else width, bias)
        if not self.fused:
            self.keys, self.values = nn.Linear(width, width, bias), nn.Linear(width, width, bias)
        self.out = nn.Linear(width, width, bias)
        inner = round(width * rng.choice([2, 2.6875, 3, 4, 4]) / 8) * 8
        self.gated = rng.random() < 0.35
        self.up = nn.Linear(width, inner, bias)
        self.gate = nn.Linear(width, inner, bias) if self.gated else nn.Identity()
        self.activation = rng.choice([nn.GELU, nn.GELU, nn.SiLU, nn.ReLU, lambda: nn.GELU(approximate="tanh")])()
        self.down = nn.Linear(inner, width, bias)
        self.head = nn.Linear(width, rng.choice([2, 10, 128, 1000]))

    def attention(self, x):
        if self.fused:
            q, k, v = self.queries(x).chunk(3, dim=-1)
        else:
            q, k, v = self.queries(x), self.keys(x), self.values(x)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-1, -2) * self.scale
        if self.causal:
            length = x.shape[1]
            scores = scores + torch.full((length, length), -1e4).triu(1)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def feed_forward(self, x):
        up = self.activation(self.up(x))
        return self.down(up * self.gate(x) if self.gated else up)

    def forward(self, x):
        if self.before:
            x = x + self.attention(self.first(x))
            x = x + self.feed_forward(self.second(x))
        else:
            x = self.first(x + self.attention(x))
            x = self.second(x + self.feed_forward(x))
        return F.log_softmax(self.head(x[:, -1]), dim=-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--images", type=int, default=70)
    parser.add_argument("--sequences", type=int, default=45)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    made = [(f"image_{n}", n) for n in range(args.images)] + [(f"sequence_{n}", n) for n in range(args.sequences)]
    for name, number in made:
        rng = random.Random(f"{args.seed} {name}")
        torch.manual_seed(number)
        network = (ImageNetwork(rng, 14) if name.startswith("image") else SequenceNetwork(rng)).eval()
        path = args.out / f"{name}.onnx"
        with torch.no_grad():
            torch.onnx.export(network, (network.example,), str(path), input_names=["x"], output_names=["output"],
                              opset_version=17, dynamo=False)
        print(f"{path}  {list(network.example.shape)}  {path.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
