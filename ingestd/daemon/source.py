"""What a source is: one ordered stream of bytes with a position, owned by one worker. That is all the daemon knows.

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
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence

    from ingestd.client.client import Client
    from ingestd.daemon.configuration import ClusterSettings
    from ingestd.daemon.runner import Runner, Workplace
    from ingestd.daemon.status import GroupStatus
    from ingestd.retry import Deadline

__all__ = [
    "Assignment",
    "BatchSpan",
    "Claim",
    "EncodedAgain",
    "Encoder",
    "Encoding",
    "End",
    "Finder",
    "Found",
    "Lane",
    "LineRoute",
    "Loss",
    "Opener",
    "Piece",
    "PositionKeeper",
    "Route",
    "Source",
    "Sources",
    "StoredPosition",
    "Surroundings",
    "Words",
    "WrongDetail",
]

PER_RECORD = -1
"""`Lane.partition`: the encoder chooses a partition for each record."""


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """The stored position of a source: everything before it is acknowledged. `detail` is the route's own (JSON).

    note: what the runner tells the route's `PositionKeeper` with this position, once. It is not kept.
    """

    source: str
    position: int
    detail: Mapping[str, Any] = field(default_factory=dict)
    note: Any = None


class WrongDetail(ValueError):
    """A route can not understand the stored detail of `source`. `problem` says what is wrong and what was expected."""

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(f"{source}: {problem}")
        self.source = source
        self.problem = problem


class Found(NamedTuple):
    """A source that a finder found: its name (unique within the route, for ever), where to start, how to open it.

    detail: what is stored with the position, so that a later finder knows the source again (pickles and is JSON).
        Where its bytes are now may stand in it as `path`, which /status shows.
    until: the position at which the source counts as finished (a run with `--once`), None to follow it for ever.
    label: what a person calls it (a log's path), as text that can be written as UTF-8; empty: the source's name.
    group: sources of one group go to one worker; empty: no group.
    rank: sources of a group are read in the order of their ranks, each up to the size that it had when the next one
        was opened.
    last: nothing more is expected: the source ends once it is read to its end and quiet (see `Source.conclude`).
    """

    source: str
    position: int
    detail: Mapping[str, Any]
    until: int | None = None
    label: str = ""
    group: str = ""
    rank: int = 0
    last: bool = False

    @property
    def display_name(self) -> str:
        """What a person calls it: its label, if it has one, else its name."""
        return self.label or self.source


class End(NamedTuple):
    """How a source ended. `kind` is the route's own word; `path` is where its bytes were last.

    Everything before `position` was read and is acknowledged. `size` is how many bytes it is known to have had. If that
    is more than `position`, the rest was not read. `unread_since`: so many other contents were at its place after it,
    before this was told, and went unread. `seen`: its reader had its content before it; so nothing went unseen.
    `at_once`: it is told without delay, since what is read next waits for it. Other ends are told with the positions.
    `why`: what kept the rest from being read, in words, if that is known.
    """

    kind: str
    path: str
    position: int
    size: int
    unread_since: int = 0
    seen: bool = True
    at_once: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Loss:
    """Data that can no longer be read: `length` bytes of `thing` from `start` on; at least that many if not `exact`.

    reason: one of the route's `loss_reasons`. unit: what `start` and `length` count. why: more of the reason, in words.
    """

    thing: str
    reason: str
    start: int
    length: int
    exact: bool
    unit: Literal["bytes", "offsets"] = "bytes"
    why: str = ""


class Assignment(NamedTuple):
    """A source given to a worker. What is reported under an older generation is dropped."""

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

    The bytes are whole lines, each with its delimiter. If the last line of a finished source has none, the source adds
    it. `length` may differ from `end - start` (a line shortened by the length limit). `lines_shortened` counts lines
    that the limit cut or split. `exhausted`: nothing more is there now, and `ready` will be called when there is. If it
    is false, the source must be read again.
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
    """A new record batch with the records of another one, in its own memory; its target partition, how many records."""

    partition: int
    records: int
    batch: memoryview


class Source(Protocol):
    """An open source. Only its owner's event loop calls it. No call blocks longer than a read of a local file."""

    assignment: Assignment

    def read(self, into: memoryview) -> Piece | None:
        """Fill `into` (at least 64 KiB) with whole lines from the present position on.

        None: nothing to read now; `ready` will be called when there is. Raises `OSError` when the source can not be
        read now; the owner reports it and tries again with backoff.
        """
        ...

    @property
    def unread(self) -> int:
        """Bytes that are known to be there and are not read yet. A hint; cheap to ask for."""
        ...

    @property
    def deleted(self) -> str:
        """The last path of its file, if that has no name any more: once it is closed, nobody can open it again."""
        ...

    @property
    def finished(self) -> End | None:
        """The end, once nothing will come again (`until` reached, concluded and read to its end, truncated, …)."""
        ...

    def conclude(self) -> None:
        """Nothing more is expected (`Found.last`): finish once all is read and it is quiet. Safe to call twice."""
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
        """Nothing is read any more: call `changed` for each source whose detail differs from the one reported last."""
        ...

    def close(self) -> None:
        """Release what is shared by the sources, after these are closed."""
        ...


class Encoder(Protocol):
    """Bytes of whole lines to record batches, in any worker.

    Between calls it keeps scratch space, and how well lines compressed. It never keeps lines.
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
        """Make new batches of the records of `batch`, for the partitions that `lane` chooses now.

        `encode` made `batch`, which may be sealed by now. For a topic that was made again with fewer partitions. `lane`
        and `partitions` are as for `encode`. Raises `CorruptBatch`.
        """
        ...


class Sources(Protocol):
    """What a finder tells the supervisor, from the loop's thread.

    Everything that is said in one turn of the loop is stored in one transaction. Workers are told after that was done,
    or has failed: a full disk holds nothing up.

    The first scan names each stored row that is still valid, by `appeared` or by `store`. If nothing has changed, that
    costs no write. A row that it does not name belongs to an absent source. It is forgotten after a long absence.
    """

    def appeared(self, found: Found) -> None:
        """A source is there, to be read (once for each source name, until it has ended)."""
        ...

    def conclude(self, source: str) -> None:
        """Nothing more is expected of a source that appeared (see `Source.conclude`). No effect if it has ended."""
        ...

    async def withdraw(self, sources: Collection[str]) -> None:
        """Read these no longer: another host does. They may appear again.

        Returns when nothing of them is sent any more, and the keeper has their last positions.
        """
        ...

    def store(self, stored: StoredPosition) -> None:
        """Store this for a source that is not read, or no longer read."""
        ...

    def forget(self, source: str) -> None:
        """Drop what is stored for a source that is not read, or no longer read."""
        ...

    def latest(self, source: str) -> Found | None:
        """A source that is being read, as its owner last reported it; None if it is not being read."""
        ...

    def trouble(self, thing: str, reason: str) -> None:
        """Something is not taken (unreadable, a directory, claimed by another route). Called once for each reason."""
        ...

    def unmatched(self, entry: str, reason: str) -> None:
        """An entry of the configuration matches nothing yet. It is a trouble as any other, with an event of its own."""
        ...

    def trouble_over(self, thing: str) -> None:
        """What was not taken is gone, or can be taken now. An entry matches something."""
        ...

    def found_all(self, until: float) -> None:
        """All that came before this Unix time is found and stored. The next run is told (`Surroundings.since`)."""
        ...

    def overflowed(self) -> None:
        """The kernel dropped events of what the finder watches. Something may be lost that nobody can name."""
        ...

    def gone(self, read_to: Sequence[tuple[str, int]]) -> None:
        """Stored sources are gone or were cut off since the last run. What was added after it is unknown.

        read_to: what people call each of them, and up to which position it was read.
        """
        ...

    def leased(self, until: float) -> None:
        """The route's sources are this host's until then, in `time.monotonic()`: nothing is sent later unless told so.

        For sources that other hosts take over. What is not called has no such limit.
        """
        ...

    def looked(self, problem: str | None) -> None:
        """A look for sources is done; or it failed, for now, because of `problem`. Called after each look."""
        ...

    def given_up(self, reason: str) -> None:
        """Sources can not be looked for, and trying again does not mend it. Called once, in a run with an end."""
        ...

    def show_groups(self, groups: Sequence[GroupStatus]) -> None:
        """What /status shows of the consumer groups whose offsets the route translates, in place of what was shown."""
        ...

    def lost(self, loss: Loss) -> None:
        """Data is lost. Called once; it is logged as an error, counted and shown."""
        ...


class PositionKeeper(Protocol):
    """Keeps a route's positions elsewhere than in the daemon's file. Owned by the route's finder; no call waits."""

    def remember(self, stored: StoredPosition) -> None:
        """Store a position soon, in place of an older one of its source."""
        ...

    def forget(self, source: str) -> None:
        """Drop what is stored for a source."""
        ...

    async def finish(self, deadline: Deadline) -> str | None:
        """Store the rest, and stop. Returns why it could not, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the supervisor gives a finder.

    once: whether the run has an end.
    others: the finders of the routes before this one in the configuration.
    client: the supervisor's client of a cluster, by name. Raises `IngestdError` until `Finder.scan` is called.
    host: the daemon's name among those of other hosts, the same at each start.
    since: the Unix time before which all that came was found, in earlier runs; 0.0: not known.
    first_run: whether the route has not looked yet for all its sources, in any run that came so far.
    """

    once: bool
    others: Sequence[Finder]
    client: Callable[[str], Client]
    host: str
    since: float = 0.0
    first_run: bool = False


class Finder(Protocol):
    """Finds the sources of one route. Runs in the supervisor; of the data it reads only what proves identity."""

    @property
    def keeper(self) -> PositionKeeper | None:
        """Who keeps the route's positions; None: the daemon's file does."""
        ...

    @property
    def waiting(self) -> int:
        """How many sources are known that wait, because they may be copies of others."""
        ...

    async def scan(self, sources: Sources) -> None:
        """One complete pass; for `--once`, each source found has `until` set to its present end.

        The finders of all routes scan at the same time; one that hangs keeps only its own route from being ready.
        """
        ...

    async def run(self, sources: Sources) -> None:
        """A pass, then go on finding until cancelled."""
        ...

    def moved(self) -> None:
        """Positions of its sources moved, and are about to be stored."""
        ...

    async def rest(self) -> None:
        """Before a stop: wait until what happened before this call is looked at. The caller may lose its patience."""
        ...

    def ended(self, found: Found, end: End) -> None:
        """A worker reports that this source is finished. `found` has its newest position and detail, which are stored.

        The finder decides what becomes of that row (`Sources.store`, `Sources.forget`) and which source comes next.
        """
        ...

    async def answer(self, question: Any) -> Any:
        """Answer what the route's runner asks (`Workplace.ask`). Both are pickled. Raises `IngestdError`."""
        ...


class Words(NamedTuple):
    """What people call a route's things, in the singular: its sources; their records; what its finder looks at.

    `entries`: the key whose entries say which things it takes.
    """

    source: str
    record: str
    thing: str
    entries: str = ""


class Claim(NamedTuple):
    """What only one route of a kind may have. key: of the route's table. name: for people.

    beside: other keys that `thing` is made of. While one of them has a fault, nobody knows what is claimed.
    """

    key: str
    thing: Hashable
    name: str
    beside: tuple[str, ...] = ()


class Route(Protocol):
    """One configured route. Frozen, pickles; constructed from its configuration table.

    `LineRoute` is what a route of lines implements besides; its runner is a `LineRunner`.
    """

    def unfit(self, clusters: Mapping[str, ClusterSettings]) -> Iterator[tuple[str, str]]:
        """What of its table does not fit to the clusters of the file: a key, and what is wrong with it."""
        ...

    @property
    def claims(self) -> Sequence[Claim]:
        """What no other route of its kind may have."""
        ...

    @classmethod
    def warnings(cls, routes: Sequence[Self]) -> Iterator[str]:
        """What `ingestd check` warns of: what on this machine keeps these routes now from taking all that they name."""
        ...

    @property
    def name(self) -> str:
        """Unique among all routes of the daemon."""
        ...

    @property
    def cluster(self) -> str:
        """Name of the target cluster."""
        ...

    @property
    def clusters(self) -> tuple[str, ...]:
        """Names of all clusters that it uses, the target among them."""
        ...

    @property
    def fixed_topics(self) -> tuple[str, ...]:
        """Target topics that it is known to write to from the start. It can not begin while one of them is missing."""
        ...

    @property
    def writes_to(self) -> str:
        """What it writes to, for people: its topic, or how the topics are named."""
        ...

    @property
    def words(self) -> Words:
        """What people call its things."""
        ...

    @property
    def loss_reasons(self) -> tuple[str, ...]:
        """Every `Loss.reason` that its finder or its runners may give; their counters are at zero from the start."""
        ...

    def finder(self, stored: Sequence[StoredPosition], surroundings: Surroundings) -> Finder:
        """The finder, with what is stored of the route, also by a first run that was ended before it had found all.

        Called in a thread, since there may be many rows: what needs a running loop waits for `scan` or `run`. Raises
        `WrongDetail`, or another `ValueError` that names the source, for a detail that it can not understand.
        """
        ...

    def import_runner(self) -> None:
        """Import what `runner` needs. Workers that are forked afterwards have it already."""
        ...

    def runner(self, workplace: Workplace) -> Runner:
        """What moves its sources in one worker. Needs a running loop."""
        ...


class LineRoute(Route, Protocol):
    """A route whose sources are lines of bytes, of which record batches for one topic are made."""

    @property
    def topic(self) -> str:
        """Target topic."""
        ...

    @property
    def linger(self) -> float:
        """Seconds that bytes may wait for more bytes before they are read into a batch."""
        ...

    @property
    def batch_bytes(self) -> int:
        """Raw bytes that are read and encoded together if memory is scarce. More than the longest line."""
        ...

    @property
    def slab_bytes(self) -> int:
        """The same if memory is plentiful: as many as one batch may gather."""
        ...

    @property
    def cuts_lines(self) -> bool:
        """Whether what is too long of a line is not delivered."""
        ...

    def opener(self, ready: Callable[[str], None], changed: Callable[[str], None]) -> Opener:
        """The opener. Needs a running loop.

        `ready(source)`: it may have something to read, or is finished. `changed(source)`: its detail changed although
        nothing was read (it was renamed), and must be stored.
        """
        ...

    def encoder(self) -> Encoder:
        """A new encoder with its own scratch space, for any worker."""
        ...

    def lane(self, found: Found, partitions: int) -> Lane:
        """The lane of a source, given the topic's number of partitions."""
        ...
