"""The results of a network with several outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

__all__ = ["Outputs"]

Array = npt.NDArray[Any]


class Outputs(tuple[Array, ...]):
    """A tuple of arrays in the network's order, which knows their names: ``out["logits"]`` or ``out[0]``."""

    names: tuple[str, ...]

    def __new__(cls, arrays: tuple[Array, ...], names: tuple[str, ...]) -> Outputs:
        outputs = super().__new__(cls, arrays)
        outputs.names = names
        return outputs

    @overload
    def __getitem__(self, key: str) -> Array: ...
    @overload
    def __getitem__(self, key: SupportsIndex) -> Array: ...
    @overload
    def __getitem__(self, key: slice[Any, Any, Any]) -> tuple[Array, ...]: ...
    def __getitem__(self, key: str | SupportsIndex | slice[Any, Any, Any]) -> Array | tuple[Array, ...]:
        if isinstance(key, str):
            try:
                key = self.names.index(key)
            except ValueError:
                raise KeyError(key) from None
        return super().__getitem__(key)

    def keys(self) -> tuple[str, ...]:
        """The outputs' names, as ONNX has them. ``dict(outputs)`` works, too."""
        return self.names

    def items(self) -> Iterator[tuple[str, Array]]:
        """Pairs of names and arrays."""
        return zip(self.names, self, strict=True)

    def __repr__(self) -> str:
        texts = (f"{name}: {array.dtype}{list(np.shape(array))}" for name, array in self.items())
        return f"Outputs({', '.join(texts)})"
