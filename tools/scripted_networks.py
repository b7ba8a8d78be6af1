"""Modules as people script them for PyTorch, with the loops, branches and lists of Python. `exporters.py scripted` exports them."""
import torch
from torch import Tensor, nn
from typing import List


class Steps(nn.Module):
    """A recurrence over rows, of which the last state is left."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def step(self, row: Tensor, state: Tensor):
        return torch.tanh(self.linear(row) + state * 0.5)

    def forward(self, x):
        state = torch.zeros_like(x[0])
        for i in range(x.size(0)):
            state = self.step(x[i], state)
        return state


class AllSteps(Steps):
    def forward(self, x):
        state = torch.zeros_like(x[0])
        states: List[Tensor] = []
        for i in range(x.size(0)):
            state = self.step(x[i], state)
            states.append(state)
        return torch.stack(states)


class ChainedSteps(Steps):
    def forward(self, x):
        state = torch.zeros_like(x[0:1])
        states: List[Tensor] = []
        for i in range(x.size(0)):
            state = self.step(x[i : i + 1], state)
            states.append(state)
        return torch.cat(states, dim=0)


class WideSteps(Steps):
    def forward(self, x):
        state = torch.zeros_like(x[0])
        states: List[Tensor] = []
        for i in range(x.size(0)):
            state = self.step(x[i], state)
            states.append(state)
        return torch.cat(states, dim=1)


class StackedCells(nn.Module):
    """The states of several layers in lists."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LSTMCell(4, 6), nn.LSTMCell(6, 6)

    def forward(self, x):
        h = [torch.zeros(x.size(1), 6), torch.zeros(x.size(1), 6)]
        c = [torch.zeros(x.size(1), 6), torch.zeros(x.size(1), 6)]
        states: List[Tensor] = []
        for i in range(x.size(0)):
            h0, c0 = self.first(x[i], (h[0], c[0]))
            h1, c1 = self.second(h0, (h[1], c[1]))
            h = [h0, h1]
            c = [c0, c1]
            states.append(h1)
        return torch.stack(states, 1), h[0]


class Root(nn.Module):
    """Newton's method, until it has found the root."""

    def forward(self, x):
        y = torch.ones_like(x)
        n = 0
        while bool((y * y - x.abs()).abs().max() > 1e-3) and n < 50:
            y = 0.5 * (y + x.abs() / y)
            n += 1
        return y


class Switch(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        if x.sum() > 0:
            return torch.relu(self.linear(x))
        else:
            return self.linear(-x)


class Greedy(nn.Module):
    """Writes tokens, and keeps them in one tensor."""

    def __init__(self):
        super().__init__()
        self.embedding, self.logits = nn.Embedding(12, 6), nn.Linear(6, 12)

    def forward(self, x):
        token = torch.zeros(1, dtype=torch.long)
        tokens = torch.zeros(0, dtype=torch.long)
        for i in range(10):
            x = torch.tanh(x + self.embedding(token)[0])
            token = self.logits(x).argmax().view(1)
            tokens = torch.cat([tokens, token])
        return tokens


class GreedyUntilEnd(nn.Module):
    """Writes tokens until all rows have come to the end."""

    def __init__(self):
        super().__init__()
        self.embedding, self.logits, self.mix = nn.Embedding(12, 6), nn.Linear(6, 12), nn.Linear(6, 6)

    def forward(self, x):
        token = torch.zeros(x.size(0), dtype=torch.long)
        state, written = x, 0
        going = True
        logits: List[Tensor] = []
        while going and written < 20:
            state = torch.tanh(self.embedding(token) + self.mix(state))
            found = self.logits(state)
            logits.append(found)
            token = found.argmax(-1)
            written += 1
            going = bool((token != 3).any())
        return torch.stack(logits), state


class SignedSum(nn.Module):
    def forward(self, x):
        total = torch.zeros(x.size(1))
        for i in range(x.size(0)):
            row = x[i]
            if bool(row.max() > 1.0):
                total = total + row
            else:
                total = total - row * 0.1
        return total


class Rows(nn.Module):
    """Rows that are written in their places."""

    def forward(self, x):
        y = torch.zeros_like(x)
        for i in range(x.size(0)):
            y[i] = x[i].cumsum(0) * i
        return y


class Times(nn.Module):
    """As many iterations as data say."""

    def forward(self, x):
        for i in range(int(x.abs().sum().item()) % 7 + 1):
            x = x * 0.5 + 1
        return x


class Chunks(nn.Module):
    def forward(self, x):
        a, b = torch.chunk(x, 2, dim=-1)
        parts = torch.split(x, 2, dim=0)
        y = parts[0]
        for part in parts:
            y = y + part.sum()
        return a * torch.sigmoid(b), y


class Unbound(nn.Module):
    """All rows taken apart, and put together again."""

    def forward(self, x):
        rows: List[Tensor] = []
        for row in torch.unbind(x, 0):
            rows.append(row.cumsum(0))
        return torch.stack(rows)


class Grown(nn.Module):
    def forward(self, x):
        parts = [x]
        for i in range(x.size(0)):
            parts.append(x[i : i + 1].repeat(x.size(0), 1) * i)
        return torch.cat(parts, dim=0), torch.tensor(len(parts))


class Sizes(nn.Module):
    def forward(self, x):
        parts = x.split([1, 2, x.size(1) - 3], dim=1)
        return parts[2] * parts[0] + parts[1].sum()


class Columns(nn.Module):
    def forward(self, x):
        columns = torch.unbind(x, 1)
        total = torch.zeros_like(columns[0])
        for i in range(len(columns)):
            total = total * 0.5 + columns[i]
        return total


class Chosen(nn.Module):
    def forward(self, x):
        rows: List[Tensor] = []
        for i in range(x.size(0)):
            row = x[i]
            if bool(row.sum() > 0):
                row = row * 2
            else:
                row = row - 1
            rows.append(row)
        return torch.stack(rows)


class Nested(nn.Module):
    def forward(self, x):
        rows: List[Tensor] = []
        for i in range(x.size(0)):
            total = torch.zeros(x.size(2))
            for j in range(x.size(1)):
                total = total * 0.5 + x[i, j]
            rows.append(total)
        return torch.stack(rows)


class Pairs(nn.Module):
    """Two lists that grow in one loop, one of them from what was there."""

    def forward(self, x):
        sums: List[Tensor] = [x[0]]
        means: List[Tensor] = []
        total = x[0]
        for i in range(1, x.size(0)):
            total = total + x[i]
            sums.append(total)
            means.append(total / (i + 1))
        means.append(total)
        return torch.stack(sums), torch.stack(means), torch.tensor(len(means))


class Replaced(nn.Module):
    """A list whose elements are replaced."""

    def forward(self, x):
        states = [x[0], x[0] * 2, x[0] * 3]
        for i in range(x.size(0)):
            states[1] = states[0] * 0.5 + x[i]
            states[0] = states[2] - states[1]
        return states[0] + states[1] + states[2]


def networks():
    """Name, module, shape of its input, and its open dimensions."""
    return [
        ("steps", Steps(), (5, 4), {0: "t"}),
        ("all_steps", AllSteps(), (5, 4), {0: "t"}),
        ("chained_steps", ChainedSteps(), (5, 4), {0: "t"}),
        ("wide_steps", WideSteps(), (5, 3, 4), {0: "t"}),
        ("many_steps", AllSteps(), (2000, 4), {}),
        ("stacked_cells", StackedCells(), (5, 2, 4), {0: "t", 1: "b"}),
        ("many_stacked_cells", StackedCells(), (300, 2, 4), {}),
        ("root", Root(), (6,), {0: "n"}),
        ("switch", Switch(), (3, 4), {0: "n"}),
        ("greedy", Greedy(), (6,), {}),
        ("greedy_until_end", GreedyUntilEnd(), (3, 6), {0: "b"}),
        ("signed_sum", SignedSum(), (5, 4), {0: "t"}),
        ("rows", Rows(), (5, 4), {0: "t"}),
        ("times", Times(), (3, 4), {0: "n"}),
        ("chunks", Chunks(), (4, 6), {}),
        ("open_chunks", Chunks(), (4, 6), {0: "n"}),
        ("unbound", Unbound(), (4, 6), {0: "n"}),
        ("grown", Grown(), (3, 5), {1: "n"}),
        ("grown_rows", Grown(), (3, 5), {0: "n"}),
        ("sizes", Sizes(), (3, 8), {1: "n"}),
        ("columns", Columns(), (3, 7), {0: "n"}),
        ("open_columns", Columns(), (3, 7), {1: "n"}),
        ("many_columns", Columns(), (3, 700), {}),
        ("chosen", Chosen(), (5, 4), {0: "t"}),
        ("nested", Nested(), (4, 3, 2), {0: "n", 1: "m"}),
        ("long_nested", Nested(), (100, 80, 2), {}),
        ("pairs", Pairs(), (4, 3), {0: "t"}),
        ("replaced", Replaced(), (4, 3), {0: "t"}),
        ("many_replaced", Replaced(), (900, 3), {}),
    ]
