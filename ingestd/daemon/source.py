"""What a source is: one ordered stream of bytes with a position, owned by one worker. The daemon knows no more of it.

`tail` implements this for files. A route is one configured `[tails.NAME]`; it finds sources in the supervisor,
opens them in their owner worker, and encodes what they read in any worker. A route is a frozen dataclass that pickles:
workers get it from the supervisor as it is.

The way of the bytes, with who calls what:

    supervisor   finder = route.finder(stored, …)      ── Found ──▶  stored, then given to one owner worker
    owner        source = opener.open(assignment)
    owner        source.read(raw slab) ──▶ Piece       sources of one lane may share a slab
    any worker   encoder.encode(raw, out, …) ──▶ Encoding: ready record batches in `out`
    owner        producer.send_batch(…)                the position moves once all before is acknowledged
    supervisor   finder.ended(found, end)              once the source is finished and all of it acknowledged
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "Assignment",
    "BatchSpan",
    "EncodedAgain",
    "Encoder",
    "Encoding",
    "End",
    "Finder",
    "Found",
    "Lane",
    "Loss",
    "Opener",
    "Piece",
    "Route",
    "Source",
    "Sources",
    "StoredPosition",
    "WrongDetail",
]

PER_RECORD = -1
"""`Lane.partition`: the encoder chooses a partition for each record."""


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """Where a source stands durably: all before `position` is acknowledged. `detail` is the route's own (JSON)."""

    source: str
    position: int
    detail: Mapping[str, Any] = field(default_factory=dict)


class WrongDetail(ValueError):
    """A route can not understand the stored detail of `source`. `problem` says what is wrong and what was expected."""

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(f"{source}: {problem}")
        self.source = source
        self.problem = problem


class Found(NamedTuple):
    """A source that a finder found: its name (unique within the route, for ever), where to start, how to open it.

    detail: what is stored with the position, so that a later finder knows the source again (pickles and is JSON).
    until: the position at which the source counts as finished (a run with `--once`), None to follow it for ever.
    label: what a person calls it (a log's path), as text that can be written as UTF-8; empty: the source's name.
    group: sources of one group go to one worker; empty: no group.
    after: a source of the same group that is read first: as far as it held when this one was opened.
    last: nothing more is expected: the source ends once it is read to its end and quiet (see `Source.conclude`).
    """

    source: str
    position: int
    detail: Mapping[str, Any]
    until: int | None = None
    label: str = ""
    group: str = ""
    after: str | None = None
    last: bool = False

    @property
    def display_name(self) -> str:
        """What a person calls it: its label, if it has one, else its name."""
        return self.label or self.source


class End(NamedTuple):
    """How a source ended. `kind` is the route's own word; `path` is where its bytes were last.

    All before `position` was read and is acknowledged. `size` is how many bytes it is known to have had: where that is
    more than `position`, the rest was not read.
    """

    kind: str
    path: str
    position: int
    size: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Data that nobody can read any more: `length` bytes of `thing` from `start` on; at least so many if not `exact`.

    reason: one of the route's `loss_reasons`.
    """

    thing: str
    reason: str
    start: int
    length: int
    exact: bool


class Assignment(NamedTuple):
    """A source given to a worker. Its generation fences: what an older generation reports is dropped."""

    route: str
    found: Found
    generation: int


@dataclass(frozen=True, slots=True)
class Lane:
    """Sources of equal lanes may share a record batch.

    partition: a fixed partition; None: the owner picks one per slab (sticky); PER_RECORD: the encoder picks per record.
    key: the key that every record gets, or None.
    """

    partition: int | None = None
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """What one read put into a slab: `length` bytes there stand for positions [start, end) of the source.

    The bytes are whole lines: each ends with the line delimiter, but the last line of a finished source, to which
    the source adds one. `length` may differ from `end - start` (a line shortened by the length limit).
    `lines_shortened` counts lines that the limit cut or split. `exhausted`: nothing more is there now; `ready` will be
    called when there is. Else the source is to be read again, to see.
    """

    length: int
    start: int
    end: int
    lines_shortened: int = 0
    exhausted: bool = False


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """One ready record batch in `out`: target partition, place, number of records, bytes before compression."""

    partition: int
    start: int
    length: int
    records: int
    uncompressed: int


@dataclass(frozen=True, slots=True)
class Encoding:
    """What a call of `encode` made. `consumed` < len(raw): `out` was full; call again with the rest and a new `out`."""

    consumed: int
    batches: Sequence[BatchSpan]


@dataclass(frozen=True, slots=True)
class EncodedAgain:
    """A record batch, made of another one's records in memory of its own; target partition, number of records."""

    partition: int
    records: int
    batch: memoryview


class Source(Protocol):
    """An open source. Its owner's event loop calls it, nobody else. No call blocks beyond a read of a local file."""

    assignment: Assignment

    def read(self, into: memoryview) -> Piece | None:
        """Fill `into` (at least 64 KiB) with whole lines from the present position on.

        None: nothing to read now; `ready` will be called when there is. Raises `OSError` when the source can not be
        read now; the owner reports it and tries again with backoff.
        """
        ...

    @property
    def unread(self) -> int:
        """Bytes known to be there and not yet read; a hint, cheap."""
        ...

    @property
    def finished(self) -> End | None:
        """The end, once nothing will come again (`until` reached, concluded and read to its end, truncated, …)."""
        ...

    def conclude(self) -> None:
        """Nothing more is expected (`Found.last`): be finished once read to the end and quiet. Safe to call twice."""
        ...

    def detail(self) -> Mapping[str, Any]:
        """What to store with the position now (the bytes before it, the present path)."""
        ...

    def close(self) -> None:
        """Release the descriptor and the watch. Safe to call twice."""
        ...


class Opener(Protocol):
    """One per route and worker: opens sources, watches them (one inotify descriptor, not one timer a file)."""

    def open(self, assignment: Assignment) -> Source:
        """Open at `found.position`; concluded already if `found.last`.

        Raises `OSError`, which the owner reports, to try again with backoff.
        """
        ...

    def drain(self) -> None:
        """Nothing is read any more: call `changed` for each source whose detail is another one than it told last."""
        ...

    def close(self) -> None:
        """Release what is shared by the sources, after these are closed."""
        ...


class Encoder(Protocol):
    """Bytes of whole lines to record batches, in any worker.

    A call keeps scratch space, and what it learnt of how well lines compress, for the next: never any of the lines.
    """

    def encode(self, raw: memoryview, out: memoryview, *, lane: Lane, partitions: int, timestamp_ms: int) -> Encoding:
        """Encode lines from `raw` into record batches in `out`, in order.

        `lane.partition` is a partition here, or PER_RECORD; `partitions` is the topic's number of partitions.
        Makes progress whenever `out` is at least as large as `raw` plus 64 KiB.
        """
        ...

    def encode_again(
        self, batch: memoryview, *, lane: Lane, partitions: int, timestamp_ms: int
    ) -> Sequence[EncodedAgain]:
        """The records of a batch that `encode` made, which may be sealed by now, where `lane` sends them now.

        For a topic that was made again with fewer partitions. `lane` and `partitions` are as for `encode`. Raises
        `CorruptBatch`.
        """
        ...


class Sources(Protocol):
    """What a finder tells the supervisor, from the loop's thread.

    All that is said in one turn of the loop is stored in one transaction. Workers hear of it only when that is done, or
    was tried: a full disk holds nothing up.

    The first scan says of each stored row that is still good that it is, by `appeared` or by `store`. Where nothing has
    changed that costs no write. A row of which it says nothing is an absent source's: forgotten after a long absence.
    """

    def appeared(self, found: Found) -> None:
        """A source is there, to be read (once for each source name, until it has ended)."""
        ...

    def conclude(self, source: str) -> None:
        """Nothing more is expected of a source that appeared (see `Source.conclude`); one that has ended is let be."""
        ...

    def store(self, stored: StoredPosition) -> None:
        """Keep this of a source that is not read, or not any more."""
        ...

    def forget(self, source: str) -> None:
        """Drop what is stored of a source that is not read, or not any more."""
        ...

    def latest(self, source: str) -> Found | None:
        """A source that is read, as its owner last reported it; None when it is not."""
        ...

    def trouble(self, thing: str, reason: str) -> None:
        """Something is not taken (unreadable, a directory, claimed by another route): said once a state."""
        ...

    def trouble_over(self, thing: str) -> None:
        """What was not taken is gone, or stands no more in the way."""
        ...

    def lost(self, loss: Loss) -> None:
        """Data is lost: said once, an error in the log, counted and shown."""
        ...


class Finder(Protocol):
    """Finds the sources of one route; runs in the supervisor, touches no record bytes but those that prove identity."""

    async def scan(self, sources: Sources) -> None:
        """One complete pass; for `--once`, each source found has `until` set to its present end.

        The finders of all routes scan at the same time; one that hangs keeps only its own route from being ready.
        """
        ...

    async def run(self, sources: Sources) -> None:
        """A pass, then go on finding until cancelled."""
        ...

    def ended(self, found: Found, end: End) -> None:
        """A worker says that this source is finished; `found` is its newest position and detail, which are stored.

        The finder says what becomes of that row (`Sources.store`, `Sources.forget`), and what stands in its place.
        """
        ...


class Route(Protocol):
    """One configured route. Frozen, pickles; constructed from its configuration table."""

    @property
    def name(self) -> str:
        """Unique among all routes of the daemon."""
        ...

    @property
    def cluster(self) -> str:
        """Name of the target cluster."""
        ...

    @property
    def topic(self) -> str:
        """Target topic."""
        ...

    @property
    def linger(self) -> float:
        """Seconds that bytes may wait for company before they are read into a batch."""
        ...

    @property
    def batch_bytes(self) -> int:
        """Raw bytes that are read and encoded in one go where memory is scarce: more than the longest line."""
        ...

    @property
    def slab_bytes(self) -> int:
        """The same where memory is plenty: as many as one batch may gather."""
        ...

    @property
    def loss_reasons(self) -> tuple[str, ...]:
        """Every `Loss.reason` that its finder may give; their counters are at zero from the start."""
        ...

    def finder(self, stored: Sequence[StoredPosition] | None, *, once: bool, others: Sequence[Finder]) -> Finder:
        """The finder, which knows again what is stored. None: the route has never run before.

        `others` are the finders of the routes before this one in the configuration. Called in a thread, since there may
        be many rows: what needs a running loop waits for `scan` or `run`. Raises `WrongDetail`, or another `ValueError`
        that names the source, for a detail that it can not understand.
        """
        ...

    def opener(self, ready: Callable[[str], None], changed: Callable[[str], None]) -> Opener:
        """The opener. Needs a running loop.

        `ready(source)`: it may have something to read, or is finished. `changed(source)`: its detail is another one
        though nothing was read (it was renamed), and is to be stored.
        """
        ...

    def encoder(self) -> Encoder:
        """A new encoder with its own scratch space."""
        ...

    def lane(self, found: Found, partitions: int) -> Lane:
        """The lane of a source, given the topic's number of partitions."""
        ...
