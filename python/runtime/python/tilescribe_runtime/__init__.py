"""Runs networks that Tilescribe compiled. Needs NumPy, and neither the compiler nor LLVM.

>>> import tilescribe_runtime as tsr
>>> net = tsr.load("net/")            # doctest: +SKIP
>>> y = net(x)                        # doctest: +SKIP
"""

from __future__ import annotations

from importlib.metadata import version as _version

from ._native import Model, TensorSpec, load
from .errors import ArtifactError, DTypeError, Error, InputError, MachineError, ShapeError, TargetError
from .outputs import Outputs
from .profiles import Profile, TaskTime, random_inputs

__version__ = _version("tilescribe-runtime")

__all__ = [
    "ArtifactError",
    "DTypeError",
    "Error",
    "InputError",
    "MachineError",
    "Model",
    "Outputs",
    "Profile",
    "ShapeError",
    "TargetError",
    "TaskTime",
    "TensorSpec",
    "load",
    "random_inputs",
]
