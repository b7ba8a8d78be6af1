"""What a network may be given as, and the ONNX file that it becomes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    import onnx
    import torch

__all__ = ["Network", "export", "file"]

Network: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | torch.nn.Module"
"""A path of an ONNX file; its bytes; a ``onnx.ModelProto``; a ``torch.nn.Module``, with example inputs; or the
name of a model on the Hugging Face hub (``"owner/name"``), or a folder with its files, where ``transformers`` is
installed."""

Examples: TypeAlias = "Sequence[Any] | Mapping[str, Any] | None"

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# a message of protobuf has at most this many bytes; weights beyond go into a file of their own
_MESSAGE_LIMIT = 2**31 - 1


@contextlib.contextmanager
def file(network: Network, examples: Examples = None, dynamic_shapes: Any = None) -> Iterator[Path]:
    """The ONNX file of a network, as long as the context lasts.

    Raises ``FileNotFoundError`` for a path where nothing is, :class:`~tilescribe.UnsupportedError` for a module
    that PyTorch cannot export, :class:`~tilescribe.ArgumentError` for what is no network, or a module without
    example inputs.
    """
    if isinstance(network, (str, os.PathLike)):
        path = Path(network)
        is_name = isinstance(network, str) and _HUB_NAME.fullmatch(network) is not None
        is_model = (path / "config.json").exists() or (is_name and not path.exists())
        if examples is not None or dynamic_shapes is not None:
            raise ArgumentError("`example_inputs` and `dynamic_shapes` are for modules of PyTorch")
        if not is_model:
            if not path.exists():
                raise FileNotFoundError(f"there is no file {path}")
            yield path
            return
    with tempfile.TemporaryDirectory(prefix="tilescribe-") as folder:
        path = Path(folder) / "network.onnx"
        if isinstance(network, (str, os.PathLike)):
            _export_hub(os.fspath(network), path)
        elif isinstance(network, (bytes, bytearray, memoryview)):
            path.write_bytes(network)
        elif _is_module(network):
            export(network, path, examples, dynamic_shapes)
        elif hasattr(network, "SerializeToString") and hasattr(network, "graph"):
            _save(network, path)
        else:
            raise ArgumentError(f"a {type(network).__name__} is no network: give a path, bytes, a ModelProto or a Module")
        yield path


def _save(network: Any, path: Path) -> None:
    if network.ByteSize() <= _MESSAGE_LIMIT:
        path.write_bytes(network.SerializeToString())
        return
    import onnx

    onnx.save(network, path, save_as_external_data=True, location="weights.bin")


def _is_module(network: object) -> bool:
    torch = sys.modules.get("torch")  # without it, nothing is one of its modules
    return torch is not None and bool(isinstance(network, torch.nn.Module))


def export(
    module: torch.nn.Module,
    path: Path,
    examples: Examples,
    dynamic_shapes: Any = None,
) -> None:
    """Writes a module of PyTorch as ONNX. Raises as :func:`file` does."""
    import torch

    if examples is None:
        raise ArgumentError("a module of PyTorch needs `example_inputs`: a tuple of tensors, or a dict by name")
    if importlib.util.find_spec("onnxscript") is None:
        raise ArgumentError("exporting from PyTorch needs onnxscript: pip install 'tilescribe[torch]'")
    arguments, named = ((), dict(examples)) if isinstance(examples, Mapping) else (tuple(examples), {})
    try:
        with warnings.catch_warnings(), torch.no_grad(), _quiet():
            warnings.simplefilter("ignore")
            exported = torch.onnx.export(
                module, arguments, kwargs=named, dynamo=True, dynamic_shapes=dynamic_shapes, verbose=False
            )
    except Exception as error:
        raise UnsupportedError(f"PyTorch cannot export the module as ONNX: {first_cause(error)}") from error
    assert exported is not None
    save(exported, path)


def first_cause(error: BaseException) -> str:
    """What an exception of the exporter comes from: it wraps everything in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__


def save(exported: torch.onnx.ONNXProgram, path: Path) -> None:
    """Writes an exported program, without what its nodes remember of the source: equal programs are equal files."""
    model = exported.model
    for part in (model, model.graph, *model.graph.all_nodes(), *model.functions.values()):
        part.metadata_props.clear()
        part.doc_string = None
    size = sum(it.const_value.nbytes for it in model.graph.initializers.values() if it.const_value is not None)
    exported.save(str(path), external_data=size > _MESSAGE_LIMIT // 2)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter prints what it does, wanted or not."""
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        yield


def _export_hub(name: str, path: Path) -> None:
    if importlib.util.find_spec("transformers") is None:
        raise ArgumentError(
            f"there is no file {name}; to take it for a model on the Hugging Face hub, transformers has to be "
            "installed: pip install 'tilescribe[transformers]'"
        )
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    config = AutoConfig.from_pretrained(name)
    model = AutoModel.from_pretrained(name).eval()
    if getattr(config, "vocab_size", None) is None:
        raise ArgumentError(f"{name} reads no text: export it with example inputs of its own")
    tokens = dict(AutoTokenizer.from_pretrained(name)(["one text", "and another one"], padding=True, return_tensors="pt"))
    axes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=_longest(config))}
    model.config.return_dict = True
    export(model, path, tokens, {key: axes for key in tokens})


def _longest(config: Any) -> int:
    return min(int(getattr(config, "max_position_embeddings", 512)), 2048)
