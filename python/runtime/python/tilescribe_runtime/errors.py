"""What can go wrong, by blame.

Every exception of Tilescribe is a :class:`Error`, and also the built-in exception that a caller would expect
(``ValueError``, ``TypeError``, ``RuntimeError``).
"""

from __future__ import annotations

__all__ = ["ArtifactError", "DTypeError", "Error", "InputError", "MachineError", "ShapeError", "TargetError"]


class Error(Exception):
    """What all exceptions of Tilescribe have in common."""


class ArtifactError(Error, ValueError):
    """A folder is no artifact, or was damaged or changed since it was written."""


class InputError(Error, ValueError):
    """An input is missing, unknown or no tensor, or an output array cannot be written to."""


class DTypeError(InputError, TypeError):
    """A tensor has another element type than the network's."""


class ShapeError(InputError):
    """A tensor has a shape that the network does not take; the message names the axis and its range."""


class TargetError(Error, RuntimeError):
    """This machine lacks what the network was compiled for; the message names the processor's feature."""


class MachineError(Error, RuntimeError):
    """Memory, threads or a driver did not suffice."""
