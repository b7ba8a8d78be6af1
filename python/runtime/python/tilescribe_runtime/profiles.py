"""Where the time of a run goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ._native import Model, TensorSpec

__all__ = ["Profile", "TaskTime", "random_inputs"]


@dataclass(frozen=True)
class TaskTime:
    """What one task takes of a run."""

    name: str
    calls: int
    """How often it is called in a run; iterations of loops count once."""
    seconds: float
    """Of one run, over all calls."""
    share: float
    """Of the time of all tasks, 0 to 1."""


@dataclass(frozen=True)
class Profile:
    """The tasks of a network, slowest first."""

    tasks: tuple[TaskTime, ...]
    runs: int

    @property
    def seconds(self) -> float:
        """Of one run, over all tasks."""
        return sum(task.seconds for task in self.tasks)

    def __str__(self) -> str:
        lines = [f"{'time':>11} {'share':>6} {'calls':>5}  task"]
        for task in self.tasks:
            lines.append(f"{task.seconds * 1e6:>8.1f} us {task.share:>6.1%} {task.calls:>5}  {task.name}")
        lines.append(f"{self.seconds * 1e6:>8.1f} us {1:>6.0%} {sum(t.calls for t in self.tasks):>5}  all tasks")
        return "\n".join(lines)


def profile(model: Model, inputs: Any, runs: int) -> Profile:
    """What `Model.profile` returns."""
    if runs < 1:
        raise ValueError("`runs` is at least 1")
    given = random_inputs(model.inputs) if inputs is None else inputs
    measured = model._profile(given, runs)
    total = max(sum(ns for _, _, ns in measured), 1)
    tasks = [TaskTime(name, calls, ns / runs / 1e9, ns / total) for name, calls, ns in measured]
    return Profile(tuple(sorted(tasks, key=lambda task: -task.seconds)), runs)


def random_inputs(specs: tuple[TensorSpec, ...], *, most: int = 16, seed: int = 0) -> dict[str, Any]:
    """Random inputs by name: floats from 0 to 1, integers 0 and 1; extents that are open are at most ``most``."""
    generator = np.random.default_rng(seed)
    inputs = {}
    for spec in specs:
        ends = zip(spec.min_shape, spec.max_shape, strict=True)
        shape = [high if low == high else max(low, min(high, most)) for low, high in ends]
        if spec.dtype.kind in "iub":
            inputs[spec.name] = generator.integers(0, 2, shape).astype(spec.dtype)
        else:
            inputs[spec.name] = generator.random(shape, np.float32).astype(spec.dtype)
    return inputs
