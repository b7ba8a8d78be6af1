"""The program of this package, as a child process: LLVM never lives in the interpreter."""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import IO, Any

from .errors import BugError, MachineError, from_message
from .progress import ProgressLike, Watching

__all__ = ["execute", "program"]

_log = logging.getLogger("tilescribe")


@functools.cache
def program() -> Path:
    """Where the program is: the one of this package, or else one that the shell would find.

    Raises :class:`~tilescribe.MachineError` where there is none.
    """
    try:
        listed = [Path(str(file.locate())) for file in files("tilescribe") or [] if file.name == "tilescribe"]
    except PackageNotFoundError:
        listed = []
    # where a wheel holds libraries for the program, a script that starts it stands beside it
    installed = sorted((path for path in listed if path.is_file()), key=lambda path: path.stat().st_size)
    found = installed[-1] if installed else shutil.which("tilescribe")
    if found is None:
        raise MachineError("the program `tilescribe` is not there: install the package anew (pip install tilescribe)")
    return Path(found).resolve()


def execute(arguments: Sequence[str], *, progress: ProgressLike = False) -> str:
    """Runs a command, and returns what it printed.

    Ctrl-C reaches the program, which keeps what it has measured; ``KeyboardInterrupt`` says so then. A second
    one ends it at once.

    Raises the exceptions of :mod:`tilescribe.errors`.
    """
    command = [str(program()), "--message-format=json", *arguments]
    # a session of its own: Ctrl-C of a terminal reaches this process alone, which passes it on
    child = subprocess.Popen(
        command, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        encoding="utf-8", errors="replace", start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stderr is not None
    output: list[str] = []
    reader = threading.Thread(target=lambda pipe: output.append(pipe.read()), args=[child.stdout], daemon=True)
    reader.start()
    interrupted = False
    ending: dict[str, Any] | None = None
    with child, Watching(progress) as watching:
        while True:
            try:
                ending = _follow(child.stderr, watching) or ending
                reader.join()
                code = child.wait()
                break
            except KeyboardInterrupt:
                child.send_signal(signal.SIGKILL if interrupted else signal.SIGINT)
                interrupted = True
            except BaseException:
                child.kill()
                raise
    if interrupted:
        raise KeyboardInterrupt(ending["text"] if ending else "interrupted")
    if code == 0:
        return "".join(output)
    if ending is None:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise BugError(f"the program ended with {how}: {' '.join(command)}")
    raise from_message(ending)


def _environment() -> dict[str, str] | None:
    """Adds Zig's C compiler, where it is installed and there is no other: artifacts are linked by one."""
    zig = importlib.util.find_spec("ziglang")
    if zig is None or zig.origin is None or any(map(shutil.which, ("cc", "gcc", "clang", "zig"))):
        return None
    return {**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(zig.origin).parent)])}


def _follow(pipe: IO[str], watching: Watching) -> dict[str, Any] | None:
    """Reads messages to the end; the error among them."""
    ending = None
    for line in pipe:
        message = _message(line)
        match message.get("type"):
            case "progress":
                watching(message)
            case "error":
                ending = message
            case _:
                _log.warning("%s", line.rstrip())
    return ending


def _message(line: str) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
