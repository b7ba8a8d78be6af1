"""Checking, compiling, tuning and comparing: the program's commands, as functions."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import tilescribe_runtime as runtime

from . import cache, sources
from .errors import ArgumentError, NetworkError, Problem, ShapeError, UnsupportedError
from .program import execute
from .progress import ProgressLike
from .sources import Examples, Network

__all__ = ["Comparison", "Described", "TaskReport", "TuneReport", "check", "compare", "compile", "describe", "tune"]

Extent: TypeAlias = "int | tuple[int, int] | Sequence[int] | range"
"""Of an open dimension: one number; the ends of a range, both included; or several to tune for."""


Port: TypeAlias = "tuple[str, str, tuple[int | str, ...]]"
"""A name, a type (``"f32"``), and extents: numbers, or formulas of open dimensions."""


@dataclass(frozen=True)
class Described:
    """What goes into a network and comes out of it, and how much it computes."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    dimensions: Mapping[str, tuple[int, int]]
    """The dimensions that stay open, with the least and the greatest extent."""
    tasks: int
    calls: int
    flops: int
    """Of one run, at the greatest extents."""


@dataclass(frozen=True)
class TaskReport:
    """What became of a task."""

    name: str
    trials: int
    untuned_s: float | None
    best_s: float | None
    trace: str | None
    """The decisions of the fastest program."""


@dataclass(frozen=True)
class TuneReport:
    """What a search found."""

    tasks: tuple[TaskReport, ...]
    trials: int
    seconds: float
    failed: Mapping[str, int]
    """How many programs failed, by cause."""


@dataclass(frozen=True)
class Comparison:
    """Search methods on the same tasks."""

    summary: Mapping[str, Mapping[int, float]]
    """By method and number of measured programs: the best known time divided by the best of so many."""
    results: Any
    """`results.json`."""
    report: Path
    """A page with the curves."""


def describe(
    network: Network,
    *,
    example_inputs: Examples = None,
    dynamic_shapes: Any = None,
    dims: Mapping[str, Extent] | None = None,
    states: Mapping[str, str] | None = None,
    constants: Mapping[str, float] | None = None,
    precision: str = "f32",
    target: str | os.PathLike[str] = "host",
) -> Described:
    """What goes into a network and comes out of it. Takes seconds. Arguments and exceptions as of
    :func:`compile`."""
    arguments = [*_network_arguments(dims, states, constants, precision), f"--target={os.fspath(target)}", "--json"]
    with sources.file(network, example_inputs, dynamic_shapes) as path:
        found = json.loads(execute(["check", str(path), *arguments]))
    return Described(
        inputs=_ports(found["inputs"]),
        outputs=_ports(found["outputs"]),
        dimensions={it["name"]: (it["low"], it["high"]) for it in found["dimensions"]},
        tasks=found["tasks"],
        calls=found["calls"],
        flops=found["flops"],
    )


def check(
    network: Network,
    *,
    example_inputs: Examples = None,
    dynamic_shapes: Any = None,
    dims: Mapping[str, Extent] | None = None,
    states: Mapping[str, str] | None = None,
    constants: Mapping[str, float] | None = None,
    precision: str = "f32",
    target: str | os.PathLike[str] = "host",
) -> list[Problem]:
    """Everything about a network that cannot be compiled; nothing where it can.

    Lists all nodes with unsupported operators at once. Arguments as of :func:`compile`; raises what that raises
    for arguments and files that make no sense.
    """
    try:
        describe(
            network, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes, dims=dims, states=states,
            constants=constants, precision=precision, target=target,
        )  # fmt: skip
    except UnsupportedError as error:
        return list(error.problems) or [Problem(str(error))]
    except (NetworkError, ShapeError) as error:
        return [Problem(str(error))]
    return []


def compile(
    network: Network,
    output: str | os.PathLike[str] | None = None,
    *,
    trials: int | None = None,
    time_budget: float | None = None,
    example_inputs: Examples = None,
    dynamic_shapes: Any = None,
    dims: Mapping[str, Extent] | None = None,
    tune_at: Iterable[Mapping[str, int]] = (),
    states: Mapping[str, str] | None = None,
    constants: Mapping[str, float] | None = None,
    precision: str = "f32",
    target: str | os.PathLike[str] = "host",
    threads: int | None = None,
    method: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    exact: bool = False,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    progress: ProgressLike = True,
) -> runtime.Model:
    """Compiles a network, and loads what it became.

    ``output`` is the folder to write: an artifact that stands there is replaced, anything else is left alone.
    Without it the artifact is kept in the user's cache folder, and the same call takes it from there.

    ``trials`` programs of each task are measured (6, unless a time budget in seconds is given), those that are
    known from before counted; with 0 each task takes the best program that is known, or the untuned one.

    A module of PyTorch needs ``example_inputs`` (a tuple, or a mapping by name), and ``dynamic_shapes`` where
    extents shall stay open, as ``torch.export`` takes them.

    ``dims`` bounds open dimensions by name: ``{"batch": 4}`` fixes one, ``{"batch": (1, 16)}`` is a range,
    ``{"batch": [1, 8]}`` names extents to tune for. ``tune_at`` are points of several dimensions to tune for.
    ``states`` maps inputs to the outputs that the next run finds there (``{"past_*": "present_*"}``).
    ``constants`` are inputs that are one number in every run (``{"use_cache_branch": True}``): they are inputs
    no more, and a branch that such a one decides is read alone.

    ``precision`` is what products by weights, and those of attention, are computed in: with ``"bf16"`` they read
    operands rounded to 8 bits of significand, and sum in f32.

    ``target`` is ``"host"``, ``"cuda"``, or a file that describes a machine; ``threads`` how many cores kernels
    may use; ``exact`` leaves out what rounds otherwise (Winograd).

    Raises :class:`~tilescribe.UnsupportedError` with every unsupported operator, ``ShapeError`` for dimensions
    that do not fit, ``TargetError`` for machines that the network cannot be compiled for, ``NetworkError`` for
    a damaged file, ``ArgumentError``, ``SearchError`` and ``MachineError``. Ctrl-C keeps what was measured: the
    same call goes on from there.
    """
    arguments = [
        *_network_arguments(dims, states, constants, precision),
        *(f"--tune-at={_point(point)}" for point in tune_at),
        *_search_arguments(trials, time_budget, target, threads, method, checkpoint, exact, seed, store),
    ]
    own = runtime_resources(target, threads)
    with sources.file(network, example_inputs, dynamic_shapes) as path:
        if output is not None:
            execute(["compile", str(path), f"--output={os.fspath(output)}", *arguments], progress=progress)
            return runtime.load(output, **own)
        # with no trials at all, the artifact is that of what is known by now
        known = (cache.default_store() if store is None else store) if trials == 0 else None
        folder = cache.folder(path, arguments, known)
        if not (folder / "manifest.json").exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            execute(["compile", str(path), f"--output={folder}", "--name=net", *arguments], progress=progress)
    return runtime.load(folder, **own)


def runtime_resources(target: str | os.PathLike[str], threads: int | None) -> dict[str, Any]:
    """What `load` is given for a network that was compiled with these."""
    name = os.fspath(target)
    if name.startswith("cuda"):
        return {"device": int(name.partition(":")[2] or 0)}
    return {"threads": threads}


def tune(
    network: Network,
    *,
    trials: int | None = None,
    time_budget: float | None = None,
    example_inputs: Examples = None,
    dynamic_shapes: Any = None,
    dims: Mapping[str, Extent] | None = None,
    tune_at: Iterable[Mapping[str, int]] = (),
    states: Mapping[str, str] | None = None,
    constants: Mapping[str, float] | None = None,
    precision: str = "f32",
    target: str | os.PathLike[str] = "host",
    threads: int | None = None,
    method: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    exact: bool = False,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    progress: ProgressLike = True,
) -> TuneReport:
    """Searches for faster programs of a network's tasks (64 of each, unless a budget is given), and keeps
    everything that is measured: ``compile(..., trials=0)`` uses it. Arguments and exceptions as of
    :func:`compile`."""
    arguments = [
        *_network_arguments(dims, states, constants, precision),
        *(f"--tune-at={_point(point)}" for point in tune_at),
        *_search_arguments(trials, time_budget, target, threads, method, checkpoint, exact, seed, store),
        "--json",
    ]
    with sources.file(network, example_inputs, dynamic_shapes) as path:
        printed = execute(["tune", str(path), *arguments], progress=progress)
    found = json.loads(printed.splitlines()[-1])
    tasks = tuple(
        TaskReport(
            name=job["name"],
            trials=job["trials"],
            untuned_s=_seconds(job["untuned_ns"]),
            best_s=_seconds(job["best_ns"]),
            trace=job["trace"],
        )
        for job in found["jobs"]
    )
    return TuneReport(tasks, found["trials"], found["seconds"], dict(found["failed"]))


def compare(
    *networks: Network,
    methods: Sequence[str] = ("lm", "evolution", "random"),
    output: str | os.PathLike[str] | None = None,
    trials: int = 32,
    seeds: int = 3,
    dims: Mapping[str, Extent] | None = None,
    precision: str = "f32",
    target: str | os.PathLike[str] = "host",
    threads: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: ProgressLike = True,
) -> Comparison:
    """Compares search methods on the tasks of networks, with the same number of measured programs each.

    Finished runs are kept in the folder ``output``: stopped with Ctrl-C, the same call goes on. Without a folder
    one is made in the system's place for temporary files. Exceptions as of :func:`compile`.
    """
    if not networks:
        raise ArgumentError("`compare` needs networks")
    folder = Path(output) if output is not None else Path(tempfile.mkdtemp(prefix="tilescribe-compare-"))
    with contextlib.ExitStack() as stack:
        paths = [str(stack.enter_context(sources.file(network))) for network in networks]
        arguments = [
            f"--methods={','.join(methods)}", f"--output={folder}", f"--trials={trials}", f"--seeds={seeds}",
            *_network_arguments(dims, None, None, precision), *_target_arguments(target, threads),
            *([f"--checkpoint={os.fspath(checkpoint)}"] if checkpoint is not None else []),
            "--workloads", *paths,
        ]  # fmt: skip
        execute(["compare", *arguments], progress=progress)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    summary = {
        method: {int(count): value for count, value in curve.items()} for method, curve in results["summary"].items()
    }
    return Comparison(summary, results, folder / "report.html")


def _ports(listed: Iterable[Any]) -> tuple[Port, ...]:
    return tuple((port["name"], port["dtype"], tuple(port["shape"])) for port in listed)


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


def _network_arguments(
    dims: Mapping[str, Extent] | None,
    states: Mapping[str, str] | None,
    constants: Mapping[str, float] | None,
    precision: str,
) -> list[str]:
    arguments = [f"--dim={name}={_extent(name, extent)}" for name, extent in (dims or {}).items()]
    arguments += [f"--state={given}={left}" for given, left in (states or {}).items()]
    arguments += [f"--constant={name}={float(value)!r}" for name, value in (constants or {}).items()]
    return [*arguments, f"--precision={precision}"]


def _extent(name: str, extent: Extent) -> str:
    if isinstance(extent, int):
        return str(extent)
    if isinstance(extent, tuple) and len(extent) == 2:
        return f"{extent[0]}..{extent[1]}"
    if isinstance(extent, range) and extent.step == 1 and len(extent) > 0:
        return f"{extent[0]}..{extent[-1]}"
    if isinstance(extent, Sequence) and not isinstance(extent, str) and extent:
        return ",".join(str(number) for number in extent)
    raise ArgumentError(f"dimension {name}: a number, a pair of ends, or a list of numbers, not {extent!r}")


def _point(point: Mapping[str, int]) -> str:
    return ",".join(f"{name}={number}" for name, number in point.items())


def _target_arguments(target: str | os.PathLike[str], threads: int | None) -> list[str]:
    arguments = [f"--target={os.fspath(target)}"]
    if threads is not None:
        arguments.append(f"--threads={threads}")
    return arguments


def _search_arguments(
    trials: int | None,
    time_budget: float | None,
    target: str | os.PathLike[str],
    threads: int | None,
    method: str | None,
    checkpoint: str | os.PathLike[str] | None,
    exact: bool,
    seed: int,
    store: str | os.PathLike[str] | None,
) -> list[str]:
    given = {
        "trials-per-task": trials,
        "time-budget": time_budget,
        "method": method,
        "checkpoint": None if checkpoint is None else os.fspath(checkpoint),
        "store": None if store is None else os.fspath(store),
        "seed": seed,
    }
    arguments = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return [*_target_arguments(target, threads), *arguments, *(["--exact"] if exact else [])]
