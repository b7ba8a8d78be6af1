#!/usr/bin/env python3
"""Exports networks of kinds that the corpus holds no relative of, to see how far a pretrained model carries.

usage: unrelated_networks.py OUT_DIR [NAME ...]      (no name: all)

The corpus was made of convolutional image networks, transformers, and random chains of their layers. These
are other kinds: a radiance field (a narrow perceptron over waves of coordinates), a network over points
(shared perceptrons, maximum over all points), one over a graph (a dense adjacency matrix between layers), a
mixer (perceptrons over patches and over channels in turn), dilated gated convolutions over sound, pairwise
interactions of a recommender, and a bilinear tensor contraction. Needs torch and onnxscript; weights are
random, seed 0.
"""
import pathlib
import sys

import torch
from torch import nn
from torch.nn import functional as F


class RadianceField(nn.Module):
    """Rays x samples x 3 coordinates to colour and density (NeRF, 2020)."""

    example = (torch.rand(64, 48, 3),)

    def __init__(self):
        super().__init__()
        self.register_buffer("waves", 2.0 ** torch.arange(8))
        self.layers = nn.ModuleList(nn.Linear(width, 96) for width in [51, 96, 96, 147, 96])
        self.head = nn.Linear(96, 4)

    def forward(self, points):
        angles = (points.unsqueeze(-1) * self.waves).flatten(-2)
        encoded = torch.cat([points, angles.sin(), angles.cos()], -1)
        x = encoded
        for number, layer in enumerate(self.layers):
            x = F.relu(layer(torch.cat([x, encoded], -1) if number == 3 else x))
        return torch.sigmoid(self.head(x))


class Points(nn.Module):
    """Batch x 3 x points to classes (PointNet, 2017)."""

    example = (torch.rand(3, 3, 700),)

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Conv1d(3, 72, 1), nn.Conv1d(72, 136, 1), nn.Conv1d(208, 264, 1)
        self.head = nn.Linear(264, 40)

    def forward(self, x):
        near = F.relu(self.first(x))
        far = F.relu(self.second(near))
        x = self.third(torch.cat([near, far], 1)).amax(-1)
        return F.log_softmax(self.head(x), -1)


class Graph(nn.Module):
    """Nodes x features and a dense adjacency matrix to classes (GCN, 2017)."""

    example = (torch.rand(430, 90), torch.rand(430, 430))

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(90, 56), nn.Linear(56, 11)

    def forward(self, nodes, edges):
        degree = edges.sum(-1, keepdim=True).clamp(min=1.0)
        edges = edges / degree
        x = F.elu(edges @ self.first(nodes))
        return F.log_softmax(edges @ self.second(x), -1)


class Mixer(nn.Module):
    """Patches x channels (MLP-Mixer, 2021)."""

    example = (torch.rand(2, 121, 176),)

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(176) for _ in range(2))
        self.patches = nn.Sequential(nn.Linear(121, 200), nn.GELU(), nn.Linear(200, 121))
        self.channels = nn.Sequential(nn.Linear(176, 360), nn.GELU(), nn.Linear(360, 176))

    def forward(self, x):
        x = x + self.patches(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


class Waves(nn.Module):
    """Batch x channels x samples (WaveNet, 2016)."""

    example = (torch.rand(1, 40, 900),)

    def __init__(self):
        super().__init__()
        self.filters = nn.ModuleList(nn.Conv1d(40, 40, 2, dilation=2**k) for k in range(3))
        self.gates = nn.ModuleList(nn.Conv1d(40, 40, 2, dilation=2**k) for k in range(3))
        self.out = nn.Conv1d(40, 80, 1)

    def forward(self, x):
        for filter, gate in zip(self.filters, self.gates):
            step = torch.tanh(filter(x)) * torch.sigmoid(gate(x))
            x = x[..., -step.shape[-1]:] + step
        return self.out(F.relu(x))


class Recommender(nn.Module):
    """Dense features and embedded categories, with their pairwise products (DLRM, 2019)."""

    example = (torch.rand(190, 13), torch.rand(190, 26, 48))

    def __init__(self):
        super().__init__()
        self.bottom = nn.Linear(13, 48)
        self.top = nn.Sequential(nn.Linear(48 + 27 * 27, 150), nn.ReLU(), nn.Linear(150, 1))

    def forward(self, dense, categories):
        x = F.relu(self.bottom(dense))
        all_features = torch.cat([x.unsqueeze(1), categories], 1)
        products = all_features @ all_features.transpose(1, 2)
        return torch.sigmoid(self.top(torch.cat([x, products.flatten(1)], -1)))


class Bilinear(nn.Module):
    """Two vectors and a tensor between them, as in relation models (Neural Tensor Network, 2013)."""

    example = (torch.rand(60, 70), torch.rand(60, 70))

    def __init__(self):
        super().__init__()
        self.between = nn.Parameter(torch.randn(12, 70, 70) / 70)

    def forward(self, left, right):
        return torch.tanh(torch.einsum("bi,kij,bj->bk", left, self.between, right))


NETWORKS = {
    "radiance_field": RadianceField, "points": Points, "graph": Graph, "mixer": Mixer, "waves": Waves, "recommender": Recommender,
    "bilinear": Bilinear,
}


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or NETWORKS:
        torch.manual_seed(0)
        network = NETWORKS[name]
        path = out / f"{name}.onnx"
        with torch.no_grad():
            torch.onnx.export(network().eval(), network.example, str(path), opset_version=18, dynamo=True, external_data=False)
        print(path, flush=True)


if __name__ == "__main__":
    main()
