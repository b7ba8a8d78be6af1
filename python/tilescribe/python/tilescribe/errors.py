"""What can go wrong, by blame; those of loading and running are :mod:`tilescribe_runtime.errors`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilescribe_runtime.errors import (
    ArtifactError,
    DTypeError,
    Error,
    InputError,
    MachineError,
    ShapeError,
    TargetError,
)

__all__ = [
    "ArtifactError",
    "ArgumentError",
    "BugError",
    "DTypeError",
    "Error",
    "InputError",
    "MachineError",
    "NetworkError",
    "Problem",
    "SearchError",
    "ShapeError",
    "TargetError",
    "UnsupportedError",
]


@dataclass(frozen=True)
class Problem:
    """Why a network cannot be compiled: one node of it, or the whole."""

    reason: str
    node: str | None = None
    """The node's name, or its first output's where it has none; ``None``: the network as a whole."""
    operator: str | None = None
    domain: str | None = None

    def __str__(self) -> str:
        return self.reason


class UnsupportedError(Error, ValueError):
    """The network has operators, types or attributes that Tilescribe does not compile."""

    problems: tuple[Problem, ...]
    """Every node with an operator that is not known; or the first thing else."""

    def __init__(self, message: str, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class NetworkError(Error, ValueError):
    """The file is no ONNX network, or a damaged one."""


class ArgumentError(Error, ValueError):
    """An argument makes no sense."""


class SearchError(Error, RuntimeError):
    """No correct program was found in the budget."""


class BugError(Error, RuntimeError):
    """A bug of Tilescribe: please report it, with the message and the network."""


def from_message(message: dict[str, Any]) -> Error:
    """The exception for the error that ended the program (`src/cli/messages.rs`)."""
    text, blame, cause = str(message["text"]), message["blame"], message["cause"]
    if cause == "target":
        return TargetError(text)
    if blame == "input":
        match cause:
            case "unsupported":
                nodes = message.get("nodes", [])
                found = [Problem(unsupported(node), node["node"], node["operator"], node["domain"]) for node in nodes]
                return UnsupportedError(text, tuple(found or [Problem(text)]))
            case "shape":
                return ShapeError(text)
            case "network":
                return NetworkError(text)
            case _:
                return ArgumentError(text)
    return {"environment": MachineError, "search": SearchError}.get(blame, BugError)(text)


def unsupported(node: dict[str, str]) -> str:
    """A node whose operator is not known, in words."""
    return f"unsupported operator {node['domain'] or 'ai.onnx'}.{node['operator']} in node {node['node']}"
