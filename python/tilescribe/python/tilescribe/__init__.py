"""Networks (ONNX, PyTorch, the Hugging Face hub) become fast compiled code, found by a language model.

>>> import tilescribe as ts
>>> net = ts.compile("net.onnx", "net/")   # doctest: +SKIP
>>> y = net(x)                             # doctest: +SKIP

``torch.compile(module, backend="tilescribe")`` works, too, and :class:`InferenceSession` looks like
onnxruntime's.
"""

from __future__ import annotations

from tilescribe_runtime import Model, Outputs, Profile, TaskTime, TensorSpec, __version__, load, random_inputs

from .compiling import Comparison, Described, TaskReport, TuneReport, check, compare, compile, describe, tune
from .errors import (
    ArgumentError,
    ArtifactError,
    BugError,
    DTypeError,
    Error,
    InputError,
    MachineError,
    NetworkError,
    Problem,
    SearchError,
    ShapeError,
    TargetError,
    UnsupportedError,
)
from .program import program
from .progress import Progress
from .session import InferenceSession, NodeArg

__all__ = [
    "ArgumentError",
    "ArtifactError",
    "BugError",
    "Comparison",
    "DTypeError",
    "Described",
    "Error",
    "InferenceSession",
    "InputError",
    "MachineError",
    "Model",
    "NetworkError",
    "NodeArg",
    "Outputs",
    "Problem",
    "Profile",
    "Progress",
    "SearchError",
    "ShapeError",
    "TargetError",
    "TaskReport",
    "TaskTime",
    "TensorSpec",
    "TuneReport",
    "UnsupportedError",
    "__version__",
    "check",
    "compare",
    "compile",
    "describe",
    "load",
    "program",
    "random_inputs",
    "tune",
]
