from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt

from .outputs import Outputs
from .profiles import Profile

class SupportsDLPack(Protocol):
    """A tensor of another library, in the host's memory: torch, JAX, CuPy's pinned memory, ..."""

    def __dlpack__(self) -> Any: ...

Tensor = npt.ArrayLike | SupportsDLPack

@final
class TensorSpec:
    """An input, output or state of a network."""

    @property
    def name(self) -> str:
        """As the ONNX file has it."""
    @property
    def dtype(self) -> np.dtype[Any]:
        """bfloat16 is that of ``ml_dtypes`` where that is installed, and else two bytes without a meaning."""
    @property
    def shape(self) -> tuple[int | str, ...]:
        """An extent that is known only when the network runs is a name or a formula of names: ``"batch"``,
        ``"2*width + 1"``."""
    @property
    def min_shape(self) -> tuple[int, ...]:
        """The least extents that the network takes or gives."""
    @property
    def max_shape(self) -> tuple[int, ...]:
        """The greatest extents that the network takes or gives."""

@final
class Model:
    """A loaded network.

    Calls release the interpreter's lock and may come from any thread at any time: up to :attr:`concurrent` of
    them run side by side, each with memory of its own for intermediates, further ones wait.
    """

    def __call__(
        self, *inputs: Tensor | Mapping[str, Tensor], out: Any = None, **named: Tensor
    ) -> Any:
        """Computes all outputs.

        Inputs are given in the network's order, by name, or as one mapping: arrays of NumPy, tensors that know
        DLPack (``torch.Tensor``, ...), or numbers and lists. Those that are dense, row-major and aligned to
        their elements are read where they are; others are copied. Types have to be exact.

        ``out`` holds arrays or tensors that results are written to, without a copy: one for a network with one
        output, a sequence, or a mapping of some outputs' names.

        Returns the array of a network with one output, and :class:`Outputs`, a tuple with names, otherwise.

        Raises :class:`InputError` for missing or unknown inputs, :class:`DTypeError` and :class:`ShapeError`
        for those of other types or shapes, :class:`MachineError` without memory.
        """
    def run(
        self, inputs: Mapping[str, Tensor] | Sequence[Tensor], out: Any = None
    ) -> dict[str, npt.NDArray[Any]]:
        """As a call, with results by name. Takes inputs whose names are no Python names."""
    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What a call takes. A tensor of this type that is dense, row-major and aligned is not copied."""
    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What a call gives."""
    @property
    def states(self) -> tuple[TensorSpec, ...]:
        """What is kept from one call to the next."""
    @property
    def name(self) -> str:
        """The prefix of the artifact's C functions."""
    @property
    def path(self) -> PathLike[str]:
        """The folder that it was loaded from."""
    @property
    def threads(self) -> int:
        """Threads of one call, the caller's included."""
    @property
    def concurrent(self) -> int:
        """Calls that run side by side."""
    @property
    def targets(self) -> list[str]:
        """The machines that it was compiled for."""
    @property
    def precision(self) -> str:
        """What products by weights are computed in, where the network did not say so itself: ``"f32"`` or
        ``"bf16"``."""
    def output_shapes(self, shapes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """The shapes of all outputs for inputs of these shapes; of results that depend on data, the largest
        that they can be. Raises :class:`ShapeError`."""
    def reset(self) -> None:
        """Forgets all states: they are zero, and those that grow have no rows."""
    def rewind(self, rows: int) -> None:
        """Takes states that grow back to their first ``rows`` rows. Raises :class:`MachineError` where they have
        fewer, or are replaced by every call."""
    def state(self, name: str) -> npt.NDArray[Any]:
        """A copy of a state, as the next call finds it. Raises ``KeyError`` for other names."""
    def set_state(self, name: str, value: Tensor) -> None:
        """Makes a state what the next call finds. Of states that grow, all need as many rows before that."""
    def profile(self, inputs: Mapping[str, Tensor] | Sequence[Tensor] | None = None, *, runs: int = 100) -> Profile:
        """Runs the network and measures each of its calls. Without inputs, random ones of the greatest extents up
        to 16 are taken. States go on from run to run. Raises :class:`MachineError` where the artifact does not
        measure: one for GPUs, or one that an older version compiled."""
    def _addresses(self, *inputs: Tensor) -> list[int]: ...
    def _profile(self, inputs: Any, runs: int) -> list[tuple[str, int, int]]: ...

def load(
    path: str | PathLike[str],
    *,
    threads: int | None = None,
    device: int | None = None,
    concurrent: int | None = None,
    share_weights: bool = False,
) -> Model:
    """Loads a folder that Tilescribe compiled. That executes its code: load what you trust.

    ``threads`` are those of one call (all cores of this process, unless told otherwise; up to 256, whatever
    number the network was compiled for), ``device`` the number of a GPU, ``concurrent`` how many calls may run
    side by side (as many as cores allow, unless told otherwise; always one for networks that keep states). Weights are copied into large pages of the process;
    ``share_weights`` has those that run the same network hold them once, a mapping of the file.

    Raises :class:`ArtifactError` for what is no artifact, or damaged; :class:`TargetError` where this processor
    lacks a feature; ``OSError`` for files that cannot be read.
    """
