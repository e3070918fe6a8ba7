"""Encode stage: raw slabs to record batches, here or at an idle peer. One per worker, shared by its routes.

A worker with nothing else to encode encodes by itself. One with a hot source keeps its peers busy and encodes the rest.
Peers see only runs of the owner's arena, never the source.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.daemon.arena import ArenaView
from ingestd.daemon.peers import EncodeAnswer, EncodeFailed, EncodeRequest, PeerChannel
from ingestd.daemon.source import PER_RECORD
from ingestd.errors import IngestdError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from ingestd.daemon.arena import Arena, Run
    from ingestd.daemon.peers import PeerMessage
    from ingestd.daemon.source import Encoder, Encoding, Lane
    from ingestd.daemon.statistics import RouteCounters

__all__ = ["EncodeJob", "EncodeStage", "EncodingFailed"]

JOBS_PER_PEER: Final = 6
"""Most jobs that one owner has with one peer: enough that the peer never waits, few enough to bound disorder."""

PEERS_LEAD: Final = 3
"""How many more jobs a peer may have than the owner. An owner reads, sends and encodes in one turn of its loop. A peer
that only encodes does this many jobs meanwhile. Measured: with 1 it waits a fifth of the time, with 3 hardly ever."""


MOST_PARTITIONS: Final = 1000
"""If records go to more partitions than this, a job may make too many batches for one answer. Then no peer is asked."""


class EncodingFailed(IngestdError):
    """A slab could not be encoded; the message says why."""


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """Encode `length` raw bytes at `offset` of the run `raw` into the run `out`. `done` gets the encoding or the error.

    Both runs belong to this worker's arena, and nobody else touches them until `done`, which is called exactly once.
    """

    route: int
    raw: Run
    offset: int
    length: int
    out: Run
    lane: Lane
    partitions: int
    timestamp_ms: int
    done: Callable[[Encoding | EncodingFailed], None]


@dataclass(slots=True)
class _Peer:
    """A connected peer: its arena, the channel, and our jobs that it has."""

    slot: int
    arena: ArenaView
    channel: PeerChannel
    jobs: dict[int, EncodeJob]


class EncodeStage:
    """Runs encoding jobs, one per turn of the event loop, so that sockets are served in between.

    Invariants
        Every job submitted ends in exactly one `done`, also when the peer that had it dies.
        Own jobs and peers' requests take turns, so that neither waits for more than one of the other.
    """

    def __init__(self, arena: Arena, counters: Sequence[RouteCounters]) -> None:
        """`counters` has those of each route, by its number."""
        self._arena = arena
        self._make: dict[int, Callable[[], Encoder]] = {}
        self._encoders: dict[int, Encoder] = {}
        self._counters = counters
        self._own: deque[EncodeJob] = deque()
        self._asked: deque[tuple[_Peer, EncodeRequest]] = deque()
        self._peers: dict[int, _Peer] = {}
        self._numbers = 0
        self._loop = asyncio.get_running_loop()
        self._turn_due = False
        self._peer_turn = False
        self._publish()

    def add(self, route: int, make: Callable[[], Encoder]) -> None:
        """Encode jobs of this route, by its number, with what `make` makes. All are added before peers are joined."""
        self._make[route] = make

    @property
    def capacity(self) -> int:
        """How many jobs should be under way at once. More would only fill memory."""
        return 2 + JOBS_PER_PEER * len(self._peers)

    def peers_sent(self, route: int) -> int:
        """Bytes that the connected peers have published as sent for a route, by its number."""
        return sum(peer.arena.sent(route) for peer in self._peers.values())

    def submit(self, job: EncodeJob) -> None:
        """Take a job. It is encoded here or, if other jobs wait here, at the peer with the least to do."""
        shareable = job.lane.partition != PER_RECORD or job.partitions <= MOST_PARTITIONS
        waiting = len(self._own) + len(self._asked)
        if shareable and waiting and (peer := self._idlest_peer(waiting)) is not None:
            self._numbers += 1
            peer.jobs[self._numbers] = job
            peer.channel.send(
                EncodeRequest(
                    self._numbers,
                    job.route,
                    job.raw.page,
                    job.offset,
                    job.length,
                    job.out.page,
                    job.out.size,
                    job.lane,
                    job.partitions,
                    job.timestamp_ms,
                )
            )
            return
        self._own.append(job)
        self._want_turn()

    def _idlest_peer(self, waiting: int) -> _Peer | None:
        """The peer with the least to do; None if all have clearly more than this worker.

        Our jobs count once. A peer's other jobs count twice, because it also reads and sends for them.
        """
        best, least = None, waiting + PEERS_LEAD + 1
        for peer in self._peers.values():
            ours = len(peer.jobs)
            queue = ours + 2 * max(0, peer.arena.load - ours)
            if queue < least and ours < JOBS_PER_PEER:
                best, least = peer, queue
        return best

    def connect(self, slot: int, arena: int, sock: socket.socket) -> None:
        """Connect a peer, also again: its arena's descriptor, which is closed here, and our end of the socket pair."""
        self.disconnect(slot)
        view = ArenaView(arena)
        os.close(arena)
        peer = _Peer(
            slot,
            view,
            PeerChannel(sock, lambda message: self._received(peer, message), lambda: self.disconnect(slot)),
            {},
        )
        self._peers[slot] = peer

    def disconnect(self, slot: int) -> None:
        """A peer is gone. Our jobs that it had are encoded here; its jobs that we had are dropped."""
        peer = self._peers.pop(slot, None)
        if peer is None:
            return
        peer.channel.close()
        self._asked = deque(entry for entry in self._asked if entry[0] is not peer)
        jobs, peer.jobs = list(peer.jobs.values()), {}
        self._own.extend(jobs)
        peer.arena.close()
        if jobs:
            self._want_turn()
        self._publish()

    def close(self) -> None:
        """Leave all peers."""
        for slot in list(self._peers):
            self.disconnect(slot)

    def _received(self, peer: _Peer, message: PeerMessage) -> None:
        if isinstance(message, EncodeRequest):
            self._asked.append((peer, message))
            self._want_turn()
            return
        job = peer.jobs.pop(message.job, None)
        if job is None:
            return
        job.done(message.encoding if isinstance(message, EncodeAnswer) else EncodingFailed(message.reason))

    def _publish(self) -> None:
        self._arena.publish_load(len(self._own) + len(self._asked))

    def _want_turn(self) -> None:
        self._publish()
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        peers_next = bool(self._asked) and (self._peer_turn or not self._own)
        self._peer_turn = not peers_next
        if peers_next:
            self._help(*self._asked.popleft())
        elif self._own:
            job = self._own.popleft()
            job.done(self._encode_own(job))
        if self._own or self._asked:
            self._want_turn()
        else:
            self._publish()

    def _encoder(self, route: int) -> Encoder:
        encoder = self._encoders.get(route)
        if encoder is None:
            encoder = self._encoders[route] = self._make[route]()
        return encoder

    def _encode_own(self, job: EncodeJob) -> Encoding | EncodingFailed:
        raw = self._arena.view(job.raw.page, job.offset + job.length)[job.offset :]
        out = self._arena.view(job.out.page, job.out.size)
        try:
            return self._encoder(job.route).encode(
                raw, out, lane=job.lane, partitions=job.partitions, timestamp_ms=job.timestamp_ms
            )
        except (IngestdError, ValueError) as error:
            return EncodingFailed(f"{len(raw)} bytes could not be encoded: {error}")

    def _help(self, peer: _Peer, request: EncodeRequest) -> None:
        try:
            raw = peer.arena.view(request.raw_page, request.raw_offset + request.raw_length)[request.raw_offset :]
            out = peer.arena.view(request.out_page, request.out_length)
            encoding = self._encoder(request.route).encode(
                raw, out, lane=request.lane, partitions=request.partitions, timestamp_ms=request.timestamp_ms
            )
        except (IngestdError, ValueError) as error:
            peer.channel.send(EncodeFailed(request.job, f"{request.raw_length} bytes could not be encoded: {error}"))
            return
        self._counters[request.route].helped_bytes += encoding.consumed
        peer.channel.send(EncodeAnswer(request.job, encoding))
        peer.channel.flush()
