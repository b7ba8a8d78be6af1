"""What an ONNX file says about itself, read without the onnx package.

A file is a message of protobuf: fields, each with a number, a kind and a value
(<https://protobuf.dev/programming-guides/encoding>). The graph, which is most of it, is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["metadata"]

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_METADATA = 14
"""`ModelProto.metadata_props`"""
_KEY, _VALUE = 1, 2
"""`StringStringEntryProto`"""


def metadata(network: str | os.PathLike[str] | bytes) -> dict[str, str]:
    """The texts that an exporter has left in a network, by name; those of a file that is cut off end there."""
    content = memoryview(network if isinstance(network, bytes) else Path(network).read_bytes())
    found = {}
    for field, value in _fields(content):
        if field == _METADATA:
            entry = {key: bytes(text).decode("utf-8", "replace") for key, text in _fields(value)}
            found[entry.get(_KEY, "")] = entry.get(_VALUE, "")
    return found


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message that hold bytes."""
    at = 0
    while at < len(message):
        head, at = _varint(message, at)
        kind = head & 7
        length = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind, 0)
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            length, at = _varint(message, at)
            yield head >> 3, message[at : at + length]
        elif length == 0:
            return
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    number = 0
    for place, byte in enumerate(message[at : at + 10]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    return 0, len(message)
