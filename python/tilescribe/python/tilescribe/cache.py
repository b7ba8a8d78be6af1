"""Artifacts of networks that no folder was named for."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import tilescribe_runtime as runtime

from .program import program

__all__ = ["digest", "folder"]


def root() -> Path:
    """Where artifacts are kept: ``artifacts`` in the program's own cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "tilescribe" / "artifacts"


# how protobuf writes an entry of external data: a key, and behind it the length of a file's name
_LOCATION = re.compile(rb"\n\x08location\x12([\x80-\xff]*[\x00-\x7f])")


def digest(onnx: Path) -> str:
    """Of an ONNX file and the files beside it that hold its weights."""
    content = onnx.read_bytes()
    total = hashlib.sha256(content)
    for name in sorted({_text(content, found) for found in _LOCATION.finditer(content)}):
        weights = onnx.parent / os.fsdecode(name)
        if weights.is_file():
            with weights.open("rb") as opened:
                while block := opened.read(1 << 20):
                    total.update(block)
    return total.hexdigest()


def _text(content: bytes, found: re.Match[bytes]) -> bytes:
    length = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(found[1]))
    return content[found.end() : found.end() + length]


def folder(onnx: Path, arguments: Sequence[str], store: str | os.PathLike[str] | None = None) -> Path:
    """The folder for an artifact of this network, made by this program with these arguments, on this machine; and
    with what this store holds, where that alone says which programs are taken."""
    about = program().stat()
    key = [digest(onnx), list(arguments), runtime.__version__, about.st_size, about.st_mtime_ns, _processor()]
    key += _state(Path(store)) if store is not None else []
    return root() / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]


def default_store() -> Path:
    """The program's own, where none is named."""
    return root().parent / "records.db"


def _state(store: Path) -> list[int]:
    """What changes whenever something is measured."""
    files = [file.stat() for file in (store, Path(f"{store}-wal")) if file.exists()]
    return [number for about in files for number in (about.st_size, about.st_mtime_ns)]


def _processor() -> str:
    """What tells machines apart that share a home folder."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as about:
        lines = [line for line in about if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return "".join(sorted(set(lines)))
