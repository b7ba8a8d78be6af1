"""The back end of ``torch.compile(module, backend="tilescribe")``.

What PyTorch traces is exported as ONNX and compiled; what cannot be runs as it is, and one warning says which
part and why. Artifacts are kept in the user's cache folder, by graph, extents and target.

Options: those of :func:`tilescribe.compile` that say how to search and what to compute in (``trials``,
``time_budget``, ``threads``, ``method``, ``exact``, ``seed``, ``store``, ``target``, ``precision``), as
``torch.compile(..., options={"trials": 10})``.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tilescribe_runtime as runtime
import torch
from torch.export import Dim, ExportedProgram
from torch.multiprocessing.reductions import StorageWeakRef

from .compiling import compile
from .errors import Error, ShapeError, UnsupportedError
from .sources import first_cause, save

__all__ = ["Fallback", "backend", "fallbacks"]

_log = logging.getLogger("tilescribe")

Graph = Callable[..., Any]


@dataclass(frozen=True)
class Fallback:
    """A part of a module that PyTorch runs itself."""

    nodes: int
    """Operations of the part; 0 where PyTorch did not get as far as to tell: a graph break."""
    reason: str


_fallbacks: list[Fallback] = []
_breaks: set[str] = set()


def fallbacks() -> tuple[Fallback, ...]:
    """The parts that PyTorch has run itself in this process, in the order in which they came."""
    return tuple(_fallbacks)


class CannotCompile(Exception):
    """Why a part runs as it is."""


def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None) -> Graph:
    """Takes what PyTorch traced, to compile it when it is first called; or returns it as it is, with a warning.

    Not before that, since exporting must not meet the state of the trace that is under way.
    """
    _tell_breaks()
    try:
        return _Compiled(graph, _Signature.of(graph, inputs), dict(options or {}))
    except CannotCompile as error:
        return _fall_back(graph, error)


def _tell_breaks() -> None:
    """Says once why PyTorch has cut a module in parts, between which it runs what it could not trace."""
    found = [reason.strip().splitlines()[0] for reason in torch._dynamo.utils.counters["graph_break"]]
    new = [reason for reason in dict.fromkeys(found) if reason not in _breaks]
    if new:
        _breaks.update(new)
        _fallbacks.extend(Fallback(0, reason) for reason in new)
        warnings.warn(f"tilescribe: PyTorch cuts the module in parts: {'; '.join(new)}", stacklevel=3)


def _fall_back(graph: torch.fx.GraphModule, reason: Exception) -> Graph:
    nodes = sum(node.op.startswith("call") for node in graph.graph.nodes)
    problems = getattr(reason, "problems", ())
    text = "; ".join(dict.fromkeys(str(problem) for problem in problems)) or str(reason)
    known, found = {fallback.reason for fallback in _fallbacks}, Fallback(nodes, text)
    # a part that refuses many calls is listed once
    if found not in _fallbacks:
        _fallbacks.append(found)
    if text not in known:
        warnings.warn(f"tilescribe: PyTorch runs {nodes} operations itself: {text}", stacklevel=2)
    eager: Graph = graph.forward
    return eager


@dataclass(frozen=True)
class _Constant:
    """A weight, or a number that PyTorch passes as a tensor: part of the compiled network, as long as nobody
    changes it."""

    place: int
    tensor: torch.Tensor
    version: int
    is_number: bool

    def is_unchanged(self, arguments: tuple[Any, ...]) -> bool:
        if self.is_number:
            return bool(arguments[self.place] == self.tensor)
        return arguments[self.place] is self.tensor and self.tensor._version == self.version


@dataclass(frozen=True)
class _Extent:
    """An extent that PyTorch passes as a number: that of an input's axis."""

    place: int
    tensor: int
    axis: int


@dataclass(frozen=True)
class _Signature:
    """What the arguments of a graph are, and its results."""

    examples: tuple[torch.Tensor, ...]
    """Of the tensors that every call is given."""
    tensors: tuple[int, ...]
    """Their places among the arguments."""
    dynamic: tuple[tuple[int, ...], ...]
    """Their axes whose extents change from call to call."""
    constants: tuple[_Constant, ...]
    extents: tuple[_Extent, ...]
    results: tuple[bool, ...]
    """By result: whether it is a tensor; else it is nothing."""

    @staticmethod
    def of(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> _Signature:
        if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
            raise CannotCompile("it may have to compute gradients: call it under torch.no_grad()")
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        tensors, constants, numbers = [], [], []
        for place, (node, given) in enumerate(zip(placeholders, inputs, strict=True)):
            if isinstance(given, torch.Tensor):
                if given.device.type != "cpu":
                    raise CannotCompile(f"a tensor on {given.device}: only those of the CPU are compiled")
                is_number = _is_wrapped_number(node)
                if is_number or _is_static(node, given):
                    constants.append(_Constant(place, given, given._version, is_number))
                else:
                    tensors.append((place, node, given))
            elif isinstance(given, (int, torch.SymInt)):
                numbers.append((place, node.meta["example_value"]))
            else:
                raise CannotCompile(f"an argument that is a {type(given).__name__}")
        shapes = [tuple(node.meta["example_value"].shape) for _, node, _ in tensors]
        return _Signature(
            examples=tuple(given for _, _, given in tensors),
            tensors=tuple(place for place, _, _ in tensors),
            dynamic=tuple(tuple(at for at, n in enumerate(shape) if _is_symbolic(n)) for shape in shapes),
            constants=tuple(constants),
            extents=tuple(_extent(place, number, shapes) for place, number in numbers),
            results=_results(graph),
        )

    def is_unchanged(self, arguments: tuple[Any, ...]) -> bool:
        """Whether constants are what they were."""
        return all(constant.is_unchanged(arguments) for constant in self.constants)


def _is_wrapped_number(node: torch.fx.Node) -> bool:
    return bool(getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False))


def _is_static(node: torch.fx.Node, given: torch.Tensor) -> bool:
    return isinstance(given, torch.nn.Parameter) or "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


def _is_symbolic(extent: Any) -> bool:
    return isinstance(extent, torch.SymInt) and not extent.node.expr.is_number


def _extent(place: int, number: Any, shapes: list[tuple[Any, ...]]) -> _Extent:
    for tensor, shape in enumerate(shapes):
        for axis, extent in enumerate(shape):
            if _is_symbolic(extent) and _is_symbolic(number) and extent.node.expr == number.node.expr:
                return _Extent(place, tensor, axis)
    raise CannotCompile("a number that changes from call to call and is no extent of an input")


def _results(graph: torch.fx.GraphModule) -> tuple[bool, ...]:
    output = next(node for node in graph.graph.nodes if node.op == "output")
    results = output.args[0]
    if not isinstance(results, (tuple, list)):
        raise CannotCompile("its results are no tuple")
    inputs = {_storage(node) for node in graph.graph.nodes if node.op == "placeholder"} - {None}
    for result in results:
        if isinstance(result, torch.fx.Node) and _storage(result) in inputs:
            raise CannotCompile("a result that is a view of an input")
        is_tensor = isinstance(result, torch.fx.Node) and isinstance(result.meta.get("example_value"), torch.Tensor)
        if result is not None and not is_tensor:
            raise CannotCompile("a result that is no tensor")
    return tuple(result is not None for result in results)


def _storage(node: torch.fx.Node) -> StorageWeakRef | None:
    """The memory of a traced tensor: that of another one, where the one is a view of it."""
    value = node.meta.get("example_value")
    return StorageWeakRef(value.untyped_storage()) if isinstance(value, torch.Tensor) else None


class _OfTensors(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """The graph as a function of the tensors that every call is given."""

    def __init__(self, graph: torch.fx.GraphModule, signature: _Signature) -> None:
        super().__init__()
        self.graph, self.signature = graph, signature
        for constant in signature.constants:
            if not constant.is_number:
                self.register_buffer(f"constant_{constant.place}", constant.tensor.detach())

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        signature = self.signature
        found: dict[int, Any] = dict(zip(signature.tensors, tensors, strict=True))
        for constant in signature.constants:
            is_number, place = constant.is_number, constant.place
            found[place] = constant.tensor if is_number else getattr(self, f"constant_{place}")
        for extent in signature.extents:
            found[extent.place] = tensors[extent.tensor].shape[extent.axis]
        results = self.graph(*(found[place] for place in range(len(found))))
        return tuple(result for result in results if result is not None)


def _export(graph: torch.fx.GraphModule, signature: _Signature, path: Path) -> None:
    module = _OfTensors(graph, signature).eval()
    axes = tuple({axis: Dim.AUTO for axis in dynamic} for dynamic in signature.dynamic)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            # exporting leaves marks on tensors, which PyTorch would take for changes of the caller's
            examples = tuple(example.detach().clone() for example in signature.examples)
            program = torch.export.export(module, examples, dynamic_shapes=(axes,), strict=False)
            # what is written in place shows only in a program of functions
            program = program.run_decompositions({})
            _refuse_mutation(program)
            exported = torch.onnx.export(program, dynamo=True, input_names=_names(signature), verbose=False)
    except CannotCompile:
        raise
    except Exception as error:
        raise UnsupportedError(f"PyTorch cannot export it: {first_cause(error)}") from error
    assert exported is not None
    save(exported, path)


def _refuse_mutation(program: ExportedProgram) -> None:
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *getattr(signature, "user_inputs_to_mutate", {}).values()]
    if changed:
        raise CannotCompile("it writes to its inputs or buffers")


class _Compiled:
    """A graph that is compiled when it is first called."""

    def __init__(self, graph: torch.fx.GraphModule, signature: _Signature, options: dict[str, Any]) -> None:
        self._graph, self._signature, self._options = graph, signature, options
        self._lock = threading.Lock()
        self._model: runtime.Model | None = None
        self._given: list[int] = []
        """The places of the arguments that the network takes."""
        self._eager: Graph | None = None
        self._dims: dict[str, tuple[int, int]] = {}
        """Ranges of open extents that are wider than those by default."""

    def __call__(self, *arguments: Any) -> Any:
        signature = self._signature
        model = self._model or self._compile()
        if model is None or self._eager is not None:
            return self._graph(*arguments)
        if not signature.is_unchanged(arguments):
            self._eager = _fall_back(self._graph, CannotCompile("a weight was changed after it was compiled"))
            return self._eager(*arguments)
        given = [arguments[place] for place in self._given]
        try:
            results = model(*map(_lent, given))
        except ShapeError as error:
            wider = self._compile(_wider(model, given))
            if wider is None:
                return self._graph(*arguments)
            try:
                results = wider(*map(_lent, given))
            except ShapeError:
                return _fall_back(self._graph, error)(*arguments)
        tensors = iter([_tensor(results)] if isinstance(results, np.ndarray) else map(_tensor, results))
        return tuple(next(tensors) if is_tensor else None for is_tensor in signature.results)

    def _compile(self, dims: dict[str, tuple[int, int]] | None = None) -> runtime.Model | None:
        """Compiles, and again for wider ranges; ``None`` where that cannot be."""
        with self._lock:
            if (self._model is None or dims) and self._eager is None:
                self._dims.update(dims or {})
                try:
                    self._model = self._compiled()
                except (CannotCompile, Error) as error:
                    self._eager = _fall_back(self._graph, error)
        return self._model if self._eager is None else None

    def _compiled(self) -> runtime.Model:
        signature = self._signature
        if not any(signature.results):
            raise CannotCompile("it computes no tensor")
        with tempfile.TemporaryDirectory(prefix="tilescribe-") as folder:
            path = Path(folder) / "graph.onnx"
            _export(self._graph, signature, path)
            model = compile(path, dims=self._dims, **self._options)
        named = zip(signature.tensors, _names(signature), strict=True)
        self._given = [place for place, name in named if _takes(model, name)]
        return model


def _wider(model: runtime.Model, given: Sequence[torch.Tensor]) -> dict[str, tuple[int, int]]:
    """Ranges that hold the extents of these tensors, of those that exceed the network's."""
    wider: dict[str, tuple[int, int]] = {}
    for spec, tensor in zip(model.inputs, given, strict=True):
        ends = zip(spec.shape, spec.min_shape, spec.max_shape, tensor.shape, strict=True)
        for name, low, high, extent in ends:
            if isinstance(name, str) and not low <= extent <= high:
                most = max(high, 1 << (extent - 1).bit_length(), wider.get(name, (0, 0))[1])
                wider[name] = (min(low, extent), most)
    return wider


def _names(signature: _Signature) -> list[str]:
    return [f"input_{number}" for number in range(len(signature.tensors))]


def _takes(model: runtime.Model, name: str) -> bool:
    """Whether anything depends on an input: the exporter leaves out others."""
    return any(spec.name == name for spec in model.inputs)


def _lent(tensor: torch.Tensor) -> Any:
    return torch.utils.dlpack.to_dlpack(tensor.detach())


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype.name in ("bfloat16", "void16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
