"""A disk that loses power: it records what a program does to real files, and says what a cut may leave of them.

What was synced is there after every cut. The rest may be there, or in part, or in another order:

- bytes and the length of a file, until an fsync or fdatasync of the file;
- names (new files, links, renames, removed files), until an fsync of the directory. A rename is whole or not at all.

Only `os` is watched, so files are written by `os.pwrite`. What a file object writes is taken at its fsync.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

__all__ = ["Cut", "Disk", "Left", "lay_out"]

_SECTOR: Final = 512

Left: TypeAlias = "dict[str, bytes | None]"
"""What is on the disk: the content of each file, None for a directory, by the path below the root."""


class Names(Enum):
    """What becomes of the names that were not synced."""

    lost = 0
    kept = 1
    in_order = 2
    """The first ones are kept, as by a file system with a journal."""
    any = 3
    """Each is kept or lost."""


class Bytes(Enum):
    """What becomes of the bytes that were not synced."""

    lost = 0
    kept = 1
    first = 2
    """The first ones of each file are kept, up to any byte."""
    any = 3
    """Each sector is kept or lost. Where the file is longer than before, a lost one is zeros."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a loss of power leaves."""

    names: Names
    content: Bytes

    @classmethod
    def any(cls, random: Random) -> Cut:
        return cls(random.choice(list(Names)), random.choice(list(Bytes)))


@dataclass(eq=False, slots=True)
class _File:
    durable: bytes = b""
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(position, bytes), or (length, None) where the file was cut to that length."""

    def now(self, count: int | None = None) -> bytearray:
        content = bytearray(self.durable)
        for position, written in self.unsynced[:count]:
            _apply(content, position, written)
        return content

    def sync(self, content: bytes) -> None:
        self.durable = content
        self.unsynced.clear()

    def left(self, kind: Bytes, random: Random) -> bytes:
        if not self.unsynced or kind is Bytes.lost:
            return self.durable
        if kind is Bytes.kept:
            return bytes(self.now())
        if kind is Bytes.first:
            count = random.randint(0, len(self.unsynced))
            content = self.now(count)
            if count < len(self.unsynced):
                position, written = self.unsynced[count]
                if written is not None:
                    _apply(content, position, written[: random.randint(0, len(written))])
            return bytes(content)
        whole = self.now()
        size = random.choice((len(self.durable), len(whole), random.randint(0, max(len(whole), len(self.durable)))))
        size = max(size, min(len(self.durable), len(whole)))
        content = bytearray(self.durable[:size]) + bytes(max(0, size - len(self.durable)))
        for start in range(0, size, _SECTOR):
            if random.random() < 0.5:
                piece = whole[start : min(start + _SECTOR, size)]
                content[start : start + len(piece)] = piece
        return bytes(content)


def _apply(content: bytearray, position: int, written: bytes | None) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    if written is None:
        del content[position:]
    else:
        content[position : position + len(written)] = written


@dataclass(eq=False, slots=True)
class _Directory:
    durable: dict[str, _Node] = field(default_factory=dict)


_Node: TypeAlias = "_File | _Directory"


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """A name that is gone, a name that is new, or both at once. `text` is for people."""

    gone: tuple[_Directory, str] | None
    new: tuple[_Directory, str, _Node] | None
    text: str

    @property
    def directories(self) -> list[_Directory]:
        return [one[0] for one in (self.gone, self.new) if one is not None]

    def apply(self, entries: Callable[[_Directory], dict[str, _Node]]) -> None:
        if self.gone is not None:
            entries(self.gone[0]).pop(self.gone[1], None)
        if self.new is not None:
            directory, name, node = self.new
            entries(directory)[name] = node


@dataclass(frozen=True, slots=True)
class _Step:
    """One operation. `do` brings the state of the disk behind it."""

    text: str
    do: Callable[[], None]


class Disk:
    """What happens below `root` while it is `watched`. Then `cuts` goes through it again, step by step.

    `note` hangs something on a place, the present one if none is named. A cut is behind what was noted at its place.
    """

    def __init__(self, root: Path, left: Left | None = None) -> None:
        self._root = root
        self._top = _Directory()
        self._nodes: dict[tuple[int, int], _Node] = {}
        self._names: list[_Change] = []
        self._steps: list[_Step] = []
        self._real: dict[str, Any] = {}
        self._notes: list[tuple[int, int, Callable[[Any], None]]] = []
        self._know(root, self._top)
        for path, content in (left or {}).items():
            node: _Node = _Directory() if content is None else _File(content)
            above, _, name = path.rpartition("/")
            parent = self._node(root / above)
            assert isinstance(parent, _Directory)
            parent.durable[name] = node
            self._know(root / path, node)

    @property
    def place(self) -> int:
        """How many operations there were."""
        return len(self._steps)

    def note(self, happened: Callable[[Any], None], place: int | None = None) -> None:
        self._notes.append((self.place if place is None else place, len(self._notes), happened))

    def last_steps(self, place: int, count: int = 12) -> str:
        first = max(0, place - count)
        return "\n".join(f"  {at}: {self._steps[at].text}" for at in range(first, place))

    def cuts(self, told: object) -> Iterator[int]:
        """Each place, where the disk is as it was there, and `told` was told what was noted until there. Once."""
        notes = deque(sorted(self._notes, key=lambda one: one[:2]))
        for place in range(self.place + 1):
            while notes and notes[0][0] <= place:
                notes.popleft()[2](told)
            yield place
            if place < self.place:
                self._steps[place].do()

    def left(self, cut: Cut, random: Random) -> tuple[Left, str]:
        """What a cut here leaves, and in words what it took."""
        changed: dict[int, dict[str, _Node]] = {}

        def entries(directory: _Directory) -> dict[str, _Node]:
            return changed.setdefault(id(directory), dict(directory.durable))

        kept = self._kept(cut.names, random)
        for change in kept:
            change.apply(entries)
        lost = [change.text for change in self._names if change not in kept]
        found: Left = {}
        contents: dict[int, bytes] = {}

        def walk(directory: _Directory, path: str) -> None:
            for name, node in changed.get(id(directory), directory.durable).items():
                if isinstance(node, _Directory):
                    found[path + name] = None
                    walk(node, f"{path}{name}/")
                else:
                    if id(node) not in contents:
                        contents[id(node)] = node.left(cut.content, random)
                    found[path + name] = contents[id(node)]
                    if node.unsynced:
                        lost.append(f"{path}{name}: {len(contents[id(node)])} of {len(node.now())} bytes")

        walk(self._top, "")
        return found, f"{cut}\n" + "\n".join(f"  {text}" for text in lost)

    def _kept(self, names: Names, random: Random) -> list[_Change]:
        if names is Names.lost:
            return []
        if names is Names.kept:
            return list(self._names)
        if names is Names.in_order:
            return self._names[: random.randint(0, len(self._names))]
        return [change for change in self._names if random.random() < 0.5]

    # What is watched.

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Take part in what `os` does. What is synced is not: that takes time, and no power is cut."""
        watching: dict[str, Any] = {
            "open": self._open, "pwrite": self._pwrite, "fsync": self._fsync, "fdatasync": self._fsync,
            "ftruncate": self._truncate, "truncate": self._truncate, "rename": self._rename, "replace": self._rename,
            "unlink": self._unlink, "remove": self._unlink, "link": self._link, "mkdir": self._mkdir,
            "rmdir": self._rmdir,
        }  # fmt: skip
        self._real = {name: getattr(os, name) for name in watching}
        with mock.patch.multiple(os, **watching):
            yield

    def _know(self, path: Any, node: _Node) -> None:
        found = os.fstat(path) if isinstance(path, int) else Path(path).stat()
        self._nodes[found.st_dev, found.st_ino] = node

    def _node(self, path: Any) -> _Node | None:
        found = os.fstat(path) if isinstance(path, int) else Path(path).stat()
        return self._nodes.get((found.st_dev, found.st_ino))

    def _entry(self, path: Any, dir_fd: int | None = None) -> tuple[_Directory, str] | None:
        """The directory and the name; None for a path that is not below the root."""
        path = Path(path)
        if dir_fd is not None:
            directory = self._node(dir_fd)
        else:
            known = path.is_relative_to(self._root) and path.parent.is_dir()
            directory = self._node(path.parent) if known else None
        return (directory, path.name) if isinstance(directory, _Directory) else None

    def _step(self, text: str, do: Callable[[], None]) -> None:
        self._steps.append(_Step(text, do))

    def _change(
        self, text: str, gone: tuple[_Directory, str] | None, new: tuple[_Directory, str, _Node] | None
    ) -> None:
        change = _Change(gone, new, text)
        self._step(text, lambda: self._names.append(change))

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        entry = self._entry(path, dir_fd) if flags & (os.O_CREAT | os.O_TRUNC) else None
        is_new = entry is not None and not os.path.lexists(path)
        descriptor: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        if entry is None:
            return descriptor
        if is_new:
            made = _File()
            self._know(descriptor, made)
            self._change(f"create {path}", None, (*entry, made))
        elif flags & os.O_TRUNC:
            self._truncated(self._node(descriptor), 0, str(path))
        return descriptor

    def _pwrite(self, descriptor: int, content: Any, position: int) -> int:
        size: int = self._real["pwrite"](descriptor, content, position)
        node = self._node(descriptor)
        if isinstance(node, _File):
            written = bytes(content[:size])
            self._step(f"write {size} at {position}", lambda: node.unsynced.append((position, written)))
        return size

    def _fsync(self, descriptor: int) -> None:
        node = self._node(descriptor)
        if isinstance(node, _Directory):
            self._step("sync directory", lambda: self._sync_names(node))
        elif node is not None:
            content = Path(f"/proc/self/fd/{descriptor}").read_bytes()
            self._step("sync", lambda: node.sync(content))

    def _sync_names(self, directory: _Directory) -> None:
        together = [directory]
        for change in self._names:
            if any(one in together for one in change.directories):
                together += change.directories
        for change in self._names:
            if any(one in together for one in change.directories):
                change.apply(lambda one: one.durable)
        self._names = [one for one in self._names if not any(where in together for where in one.directories)]

    def _truncate(self, path: Any, length: int) -> None:
        node = self._node(path)
        self._real["ftruncate" if isinstance(path, int) else "truncate"](path, length)
        self._truncated(node, length, str(path))

    def _truncated(self, node: _Node | None, length: int, path: str) -> None:
        if isinstance(node, _File):
            self._step(f"truncate {path} to {length}", lambda: node.unsynced.append((length, None)))

    def _rename(self, old: Any, new: Any) -> None:
        node = self._node(old)
        gone, entry = self._entry(old), self._entry(new)
        self._real["rename"](old, new)
        if gone is not None and entry is not None and node is not None:
            self._change(f"rename {old} to {new}", gone, (*entry, node))

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        entry = self._entry(path, dir_fd)
        self._real["unlink"](path, dir_fd=dir_fd)
        if entry is not None:
            self._change(f"unlink {path}", entry, None)

    def _link(self, old: Any, new: Any) -> None:
        node, entry = self._node(old), self._entry(new)
        self._real["link"](old, new)
        if entry is not None and node is not None:
            self._change(f"link {old} as {new}", None, (*entry, node))

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        entry = self._entry(path, dir_fd)
        self._real["mkdir"](path, mode, dir_fd=dir_fd)
        if entry is not None:
            made = _Directory()
            self._know(path, made)
            self._change(f"mkdir {path}", None, (*entry, made))

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        entry = self._entry(path, dir_fd)
        self._real["rmdir"](path, dir_fd=dir_fd)
        if entry is not None:
            self._change(f"rmdir {path}", entry, None)


def lay_out(left: Left, root: Path) -> None:
    """Make these files below a new directory."""
    root.mkdir(parents=True)
    for path, content in left.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
