"""Progress of what the program does, for people and for callers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

__all__ = ["Progress", "ProgressLike"]


@dataclass(frozen=True)
class Progress:
    """How far a command is."""

    what: str
    """``"measuring"``, ``"packing"``, ``"comparing"``, ..."""
    done: int
    total: int | None
    text: str
    elapsed_s: float
    left_s: float | None
    """Seconds that are left at the pace so far, where that is known."""


ProgressLike = bool | Callable[[Progress], Any]
"""``True``: a bar of tqdm where that is installed, plain lines else. ``False``: nothing. Or who is told."""


class Watcher(Protocol):
    def __call__(self, progress: Progress) -> None: ...
    def close(self) -> None: ...


class Watching:
    """Tells a watcher, and closes it at the end."""

    def __init__(self, progress: ProgressLike) -> None:
        self._watcher: Watcher
        if callable(progress):
            self._watcher = _Callback(progress)
        elif progress:
            self._watcher = _bar()
        else:
            self._watcher = _Callback(lambda _: None)

    def __enter__(self) -> Watching:
        return self

    def __call__(self, message: dict[str, Any]) -> None:
        fields: dict[str, Any] = {name: message.get(name) for name in Progress.__dataclass_fields__}
        self._watcher(Progress(**fields))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.close()


class _Callback:
    def __init__(self, function: Callable[[Progress], Any]) -> None:
        self._function = function

    def __call__(self, progress: Progress) -> None:
        self._function(progress)

    def close(self) -> None:
        pass


class _Lines:
    """One line every ten seconds: what is over sooner says nothing."""

    SECONDS = 10

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last < self.SECONDS:
            return
        self._last = now
        total = f"/{progress.total}" if progress.total else ""
        left = f", {progress.left_s:.0f} s left" if progress.left_s is not None else ""
        text = f"tilescribe: {progress.what} {progress.done}{total} {progress.text}{left}"
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class _Bar:
    """A bar of tqdm for each thing that is done."""

    def __init__(self, tqdm: Any) -> None:
        self._tqdm = tqdm
        self._bar: Any = None
        self._what = ""

    def __call__(self, progress: Progress) -> None:
        if self._bar is None or self._what != progress.what:
            self.close()
            self._what = progress.what
            self._bar = self._tqdm(total=progress.total, desc=progress.what, leave=False)
        self._bar.total = progress.total
        self._bar.n = progress.done
        self._bar.set_postfix_str(progress.text, refresh=False)
        self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _bar() -> Watcher:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Lines()
    return _Bar(tqdm)
