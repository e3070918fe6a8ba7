"""Facts that a `Log` is told, and commands that it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from ingestd.daemon.source import End, Loss
    from ingestd.tail.file_id import FileId
    from ingestd.tail.generation import Generation
    from ingestd.tail.known import Known, Witness

__all__ = [
    "CONCLUDED",
    "DAMAGED",
    "DELETED",
    "GONE",
    "LOSS_REASONS",
    "TAKEN",
    "TRUNCATED",
    "VANISHED",
    "Alone",
    "Answered",
    "Arrived",
    "Await",
    "Bury",
    "Command",
    "Conclude",
    "Copy",
    "Deleted",
    "Doubtful",
    "Empty",
    "Ended",
    "Examine",
    "Examined",
    "Fact",
    "Forget",
    "Gone",
    "Keep",
    "Listed",
    "Look",
    "Lose",
    "Missed",
    "Occupied",
    "Old",
    "Place",
    "Plain",
    "Read",
    "Refuse",
    "Refused",
    "Repeat",
    "Repeated",
    "Seek",
    "Seen",
    "Sought",
    "Taken",
    "Unreadable",
    "Untold",
    "Verdict",
]

TAKEN: Final = "taken"
CONCLUDED: Final = "concluded"
DELETED: Final = "deleted"
TRUNCATED: Final = "truncated"
GONE: Final = "gone"
DAMAGED: Final = "damaged"
"""Kinds of `End`: at `until`; nothing more expected; no link left; content gone; file not found; file not readable."""

VANISHED: Final = "vanished"
"""A file came and went before it could be opened."""

LOSS_REASONS: Final = (VANISHED, DELETED, TRUNCATED, DAMAGED)


class Place(NamedTuple):
    """A file, a path of it without links, its size and modification time (ns) when looked at, how it is compressed."""

    path: str
    file: FileId
    size: int
    modified: int
    links: int = 1
    codec: str = ""


# Results of the examination of an unknown file.


@dataclass(frozen=True, slots=True)
class Plain:
    """Text to be read from `start`. `witness`: its last bytes, as they were when it was examined.

    `goes_on`: what it had when it repeated another file is still in it.
    """

    start: int
    witness: Witness | None = None
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Empty:
    """Nothing is in it yet."""


@dataclass(frozen=True, slots=True)
class Old:
    """Compressed, and not to be read unless it is written to: it was there before the tail, as `start` leaves out."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Not to be read."""

    reason: str


class Unreadable(Refused):
    """It can not be opened now. That may change without a modification, and after it was rotated."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a generation's content, up to `length` bytes. Not `sure`: the original has changed since.

    modified, original_modified: when the file, and the original, had been modified last (ns), as they were compared; 0
    where the original was not there. later: the file was made after that. unfinished: and the original has more.
    """

    of: str
    length: int
    witness: Witness | None = None
    sure: bool = True
    modified: int = 0
    original_modified: int = 0
    later: bool = False
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class Doubtful:
    """Begins like a generation. Its reader may have read more than it told, so this may be a copy.

    Or just compressed, and not called so: it may be given its name in a moment.
    """


Verdict: TypeAlias = Plain | Empty | Old | Refused | Copy | Doubtful


# Facts.


@dataclass(frozen=True, slots=True)
class Seen:
    """A file was seen: at the log's own path (`here`), or where one of its generations went."""

    place: Place
    here: bool


@dataclass(frozen=True, slots=True)
class Occupied:
    """At the log's path stands a generation of another log."""

    file: FileId


@dataclass(frozen=True, slots=True)
class Examined:
    """The result for an unknown file. A `Copy` is told to the log of its original. `asked`: the log that met it."""

    place: Place
    verdict: Verdict
    asked: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    """A file that this log wanted to be examined was; what it is was told before, to whom it concerns."""

    file: FileId


@dataclass(frozen=True, slots=True)
class Repeated:
    """A file that was unknown or empty is a copy of a generation. That may be one of another log.

    `apart`: see `Known`. `log`: the path of the generation's log.
    """

    place: Place
    copy: Copy
    apart: bool = False
    log: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """A generation's content is gone from its file. So a file that repeats it is its copy, not one that begins alike.

    `after`: the source that goes on with the content, in another copy; or none. `log`: the path of the generation's
    log. `read`: up to where it was read. `buried`: its file was deleted; the content may be elsewhere.
    """

    source: str
    after: str = ""
    log: str = ""
    read: int = 0
    buried: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """Another log reads this file: the rest of one of its generations is there."""

    file: FileId


@dataclass(frozen=True, slots=True)
class Listed:
    """All directories were listed. A stored generation that was not seen is not where it was."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A file that repeats another one was not written to for long. The other one was not truncated."""

    file: FileId


@dataclass(frozen=True, slots=True)
class Missed:
    """Files may have come and gone unseen; `since`: they were modified later than this (ns); 0: than what is known."""

    since: int = 0


@dataclass(frozen=True, slots=True)
class Arrived:
    """A file was renamed to a rotation's name, from where nobody watches. It may hold what the log held, and more."""


@dataclass(frozen=True, slots=True)
class Sought:
    """The answer to a `Seek`: where a generation is now, and what came after it.

    at: where its file is; intact: with the content that was read. rest: another file with its content, a copy or a
    compressed one. between: files that came and were rotated away after it, oldest first. packed: compressed files
    that came since and hold what is known. copies: those of it that were made before its last lines came, which its
    file does not have any more; the witness of each says how much it has. unavailable: its file system or directory is
    not there now.
    """

    source: str
    at: Place | None = None
    intact: bool = False
    rest: Place | None = None
    between: tuple[Place, ...] = ()
    packed: tuple[Place, ...] = ()
    copies: tuple[tuple[Place, Witness], ...] = ()
    unavailable: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """A generation's reader ended; `known` is what it knew of the file last."""

    source: str
    end: End
    known: Known


@dataclass(frozen=True, slots=True)
class Deleted:
    """The last name of a finished generation's file is gone. Of a buried generation: it is to be forgotten."""

    source: str


Fact: TypeAlias = (
    Alone
    | Answered
    | Arrived
    | Seen
    | Occupied
    | Examined
    | Repeated
    | Gone
    | Taken
    | Listed
    | Missed
    | Sought
    | Ended
    | Deleted
)


# Commands.


@dataclass(frozen=True, slots=True)
class Examine:
    """Say what this file is: `Examined`."""

    place: Place


@dataclass(frozen=True, slots=True)
class Look:
    """Look at what stands at a path: `Seen`. `asked`: by the log of that path, if it has one of its own, or by this."""

    path: str
    asked: str = ""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Tell the log of this file that it repeats a generation: `Repeated`. `asked`: the log that met it."""

    place: Place
    copy: Copy
    asked: str = ""


@dataclass(frozen=True, slots=True)
class Seek:
    """Find this generation's file, and its content: `Sought`."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Read:
    """Store it, then read it. Older ones of its log that are being read come first."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Conclude:
    """Nothing more is expected of it."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Keep:
    """Store it without reading it."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Bury:
    """Its file is gone. Store it for a while: its content may come back, compressed, or with the file."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Forget:
    """It is over: drop what is stored of it. `after`: see `Gone`."""

    generation: Generation
    after: str = ""


@dataclass(frozen=True, slots=True)
class Await:
    """Look at the file again when it is written to: it is empty, or a copy in the making."""

    place: Place


@dataclass(frozen=True, slots=True)
class Refuse:
    """Say that a file is not read, and why; ask again when it was modified."""

    place: Place
    reason: str


@dataclass(frozen=True, slots=True)
class Untold:
    """Say that its content is gone. All that was seen of it was read. Nobody knows whether more was written.

    `Generation.was_read_out`: that is not likely.
    """

    generation: Generation


@dataclass(frozen=True, slots=True)
class Lose:
    """Say that data is lost."""

    loss: Loss


Command: TypeAlias = (
    Examine | Look | Repeat | Seek | Read | Conclude | Keep | Bury | Forget | Await | Refuse | Untold | Lose
)
