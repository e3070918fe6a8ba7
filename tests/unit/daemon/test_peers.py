"""Peers: descriptors arrive whole and in order, however many are sent at once."""

import asyncio
import errno
import os
import socket

import pytest

from ingestd.daemon.arena import PAGE_BYTES, Arena
from ingestd.daemon.encode import EncodeJob, EncodeStage, EncodingFailed
from ingestd.daemon.peers import EncodeAnswer, EncodeFailed, EncodeRequest, PeerChannel
from ingestd.daemon.source import PER_RECORD, BatchSpan, Encoding, Lane
from ingestd.daemon.statistics import RouteCounters

ONE = Lane(0)


def pair():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


async def test_messages_arrive_as_they_were_sent_though_the_socket_fills():
    left, right = pair()
    sent = []
    for number in range(5000):
        sent.append(EncodeRequest(number, 3, 1, 2, 3, 4, 5, Lane(-1, None), 12, 1_700_000_000_000))
        sent.append(EncodeRequest(number, 3, 1, 2, 3, 4, 5, Lane(7, b"k" * (number % 50)), 12, -1))
        spans = [BatchSpan(-1, 0, 100, 5, 200), BatchSpan(3, 100, 50, 1, 60)][: number % 3]
        sent.append(EncodeAnswer(number, Encoding(17, spans)))
        sent.append(EncodeFailed(number, "für nichts"))
    received = []
    done = asyncio.Event()

    def take(message):
        received.append(message)
        if len(received) == len(sent):
            done.set()

    reader = PeerChannel(right, take, lambda: None)
    writer = PeerChannel(left, lambda _: None, lambda: None)
    for message in sent:
        writer.send(message)
    await asyncio.wait_for(done.wait(), 10)
    assert received == sent
    reader.close()
    writer.close()


async def test_the_end_of_a_peer_is_told_once():
    left, right = pair()
    lost = asyncio.Event()
    channel = PeerChannel(left, lambda _: None, lost.set)
    right.close()
    await asyncio.wait_for(lost.wait(), 5)
    channel.send(EncodeFailed(1, "into the void"))
    channel.close()


class Scarce(socket.socket):
    """A socket for whose first packets the kernel has no memory."""

    refuses = 3

    def send(self, data, flags=0):
        if self.refuses:
            self.refuses -= 1
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        return super().send(data, flags)


def scarce(sock):
    return Scarce(fileno=sock.detach())


async def test_a_packet_for_which_the_kernel_has_no_memory_is_sent_when_it_has():
    left, right = pair()
    sent = [EncodeFailed(number, "no") for number in range(5)]
    received = []
    reader = PeerChannel(right, received.append, lambda: None)
    writer = PeerChannel(scarce(left), lambda _: None, lambda: pytest.fail("the peer is there"))
    for message in sent:
        writer.send(message)
    await until(lambda: len(received) == len(sent))
    assert received == sent
    reader.close()
    writer.close()


class Upper:
    """Encodes by copying in upper case, as one batch; refuses what begins with `!`."""

    def encode(self, raw, out, *, lane, partitions, timestamp_ms):
        if bytes(raw[:1]) == b"!":
            raise ValueError("not this one")
        out[: len(raw)] = bytes(raw).upper()
        return Encoding(len(raw), [BatchSpan(lane.partition, 0, len(raw), 1, len(raw))])


def stage():
    descriptor = Arena.create(64 * PAGE_BYTES)
    arena = Arena(descriptor)
    counters = [RouteCounters()]
    stage = EncodeStage(arena, counters)
    stage.add(0, Upper)
    return stage, arena, descriptor, counters[0]


def submit(stage, arena, text, results, *, lane=ONE, partitions=1):
    raw, out = arena.allocate(len(text)), arena.allocate(len(text))
    arena.view(raw.page, len(text))[:] = text

    def done(result):
        results.append((text, result, bytes(arena.view(out.page, len(text)))))

    stage.submit(EncodeJob(0, raw, 0, len(text), out, lane, partitions, 0, done))


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


async def test_a_busy_worker_has_its_peer_help_and_the_bytes_never_leave_the_owners_arena():
    (ours, our_arena, ours_fd, our_counters) = stage()
    (theirs, _, theirs_fd, their_counters) = stage()
    left, right = pair()
    ours.connect(1, os.dup(theirs_fd), left)
    theirs.connect(0, os.dup(ours_fd), right)
    results: list = []
    for number in range(5):
        submit(ours, our_arena, f"slab {number}".encode(), results)
    await until(lambda: len(results) == 5)
    assert all(seen == text.upper() for text, _, seen in results)
    assert their_counters.helped_bytes > 0
    assert our_counters.helped_bytes == 0
    ours.close()
    theirs.close()


async def test_an_idle_worker_encodes_alone():
    (ours, our_arena, _, _) = stage()
    (_, _, theirs_fd, their_counters) = stage()
    left, right = pair()
    ours.connect(1, os.dup(theirs_fd), left)
    results: list = []
    for number in range(5):
        submit(ours, our_arena, f"slab {number}".encode(), results)
        await until(lambda number=number: len(results) == number + 1)
    assert their_counters.helped_bytes == 0
    right.close()
    ours.close()


async def test_what_a_dead_peer_had_is_encoded_by_the_owner():
    (ours, our_arena, _, _) = stage()
    (_, _, theirs_fd, _) = stage()
    left, right = pair()
    ours.connect(1, os.dup(theirs_fd), left)
    results: list = []
    for number in range(4):
        submit(ours, our_arena, f"slab {number}".encode(), results)
    await until(lambda: results)
    right.close()
    await until(lambda: len(results) == 4)
    assert sorted(text for text, _, _ in results) == [b"slab 0", b"slab 1", b"slab 2", b"slab 3"]
    ours.close()


@pytest.mark.parametrize("whose", ["owner", "peer"])
async def test_no_run_is_encoded_into_by_its_owner_while_a_living_peer_has_it(whose):
    # A send failed for want of memory: the owner took the pair for ended, and encoded what the peer still worked on.
    (ours, our_arena, ours_fd, _) = stage()
    (theirs, _, theirs_fd, their_counters) = stage()
    left, right = pair()
    ours.connect(1, os.dup(theirs_fd), scarce(left) if whose == "owner" else left)
    theirs.connect(0, os.dup(ours_fd), scarce(right) if whose == "peer" else right)
    results: list = []
    for number in range(5):
        submit(ours, our_arena, f"slab {number}".encode(), results)
    asked = [job.length for job in ours._peers[1].jobs.values()]
    assert asked
    await until(lambda: len(results) == 5)
    assert their_counters.helped_bytes == sum(asked)
    ours.close()
    theirs.close()


async def test_what_can_not_be_encoded_says_why_here_and_at_the_peer():
    (ours, our_arena, ours_fd, _) = stage()
    (theirs, _, theirs_fd, _) = stage()
    left, right = pair()
    ours.connect(1, os.dup(theirs_fd), left)
    theirs.connect(0, os.dup(ours_fd), right)
    results: list = []
    for _ in range(4):
        submit(ours, our_arena, b"!bad", results)
    await until(lambda: len(results) == 4)
    assert all(isinstance(result, EncodingFailed) and "not this one" in str(result) for _, result, _ in results)
    ours.close()
    theirs.close()


async def test_what_may_become_more_batches_than_an_answer_can_name_is_encoded_by_its_owner():
    # An answer is one packet: one that does not fit in it would end the pair, and the next one as well, for ever.
    (ours, our_arena, ours_fd, _) = stage()
    (theirs, _, theirs_fd, their_counters) = stage()
    left, right = pair()
    ours.connect(1, os.dup(theirs_fd), left)
    theirs.connect(0, os.dup(ours_fd), right)
    results = []
    for _ in range(8):
        submit(ours, our_arena, b"line\n" * 1000, results, lane=Lane(PER_RECORD), partitions=5000)
    await until(lambda: len(results) == 8)
    assert their_counters.helped_bytes == 0
    for _ in range(8):
        submit(ours, our_arena, b"line\n" * 1000, results, lane=Lane(PER_RECORD), partitions=50)
    await until(lambda: len(results) == 16)
    assert their_counters.helped_bytes > 0
    ours.close()
    theirs.close()
    os.close(ours_fd)
    os.close(theirs_fd)


async def test_a_peer_that_has_not_started_yet_is_asked_nothing():
    # Its arena and its socket are there before its interpreter is: what it was asked would wait as long as it starts.
    (ours, our_arena, ours_fd, _) = stage()
    theirs_fd = Arena.create(64 * PAGE_BYTES)
    left, right = pair()
    ours.connect(1, os.dup(theirs_fd), left)
    results = []
    for number in range(5):
        submit(ours, our_arena, f"slab {number}".encode(), results)
    await until(lambda: len(results) == 5)
    ours.close()
    right.close()
    os.close(ours_fd)
    os.close(theirs_fd)
