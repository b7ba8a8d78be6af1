"""The look of onnxruntime: a script is switched by its import."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import tilescribe_runtime as runtime

from .compiling import compile
from .errors import InputError
from .metadata import metadata
from .progress import ProgressLike

__all__ = ["InferenceSession", "ModelMetadata", "NodeArg"]

_TYPES = {
    "float32": "float", "float64": "double", "float16": "float16", "bfloat16": "bfloat16", "bool": "bool",
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
    "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
}  # fmt: skip


@dataclass(frozen=True)
class NodeArg:
    """An input or output, as onnxruntime describes it."""

    name: str
    shape: list[int | str]
    type: str
    """``"tensor(float)"``, ..."""


@dataclass(frozen=True)
class ModelMetadata:
    """What an exporter has left in a network's file."""

    custom_metadata_map: dict[str, str]


class InferenceSession:
    """Runs a network as ``onnxruntime.InferenceSession`` does.

    ``path_or_bytes`` is an ONNX file, its bytes, or a folder that Tilescribe compiled. A network is compiled
    when the session is made, and kept in the user's cache folder: the next session takes it from there.
    ``sess_options.intra_op_num_threads`` counts; ``providers`` are accepted and not used: a network runs on the
    CPU, or on the GPU that its artifact is for. Further arguments are those of :func:`tilescribe.compile`.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        progress: ProgressLike = True,
        **options: Any,
    ) -> None:
        threads = getattr(sess_options, "intra_op_num_threads", 0) or None
        if isinstance(path_or_bytes, (str, os.PathLike)) and Path(path_or_bytes).is_dir():
            self.model = runtime.load(path_or_bytes, threads=threads)
            self._metadata = ModelMetadata({})
        else:
            self._metadata = ModelMetadata(metadata(path_or_bytes))
            self.model = compile(path_or_bytes, threads=threads, progress=progress, **options)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[npt.NDArray[Any]]:
        """Computes outputs: all in the network's order, or those that are named."""
        results = self.model.run(input_feed)
        if output_names is None:
            return list(results.values())
        unknown = [name for name in output_names if name not in results]
        if unknown:
            raise InputError(f"the network has no output {', '.join(unknown)}; it has {', '.join(results)}")
        return [results[name] for name in output_names]

    def get_modelmeta(self) -> ModelMetadata:
        """What the exporter has left in the file; nothing for a folder that Tilescribe compiled."""
        return self._metadata

    def get_inputs(self) -> list[NodeArg]:
        """What `run` takes."""
        return [_node_arg(spec) for spec in self.model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """What `run` gives."""
        return [_node_arg(spec) for spec in self.model.outputs]

    def get_providers(self) -> list[str]:
        """Where the network runs, as onnxruntime would call it."""
        on_gpu = any("GPU" in target for target in self.model.targets)
        return ["CUDAExecutionProvider" if on_gpu else "CPUExecutionProvider"]


def _node_arg(spec: runtime.TensorSpec) -> NodeArg:
    name = spec.dtype.name if spec.dtype.name in _TYPES else "bfloat16"
    return NodeArg(spec.name, list(spec.shape), f"tensor({_TYPES[name]})")
