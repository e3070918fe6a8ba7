"""Random histories of a broker on a disk that loses power: what clients do, and what must be there after any cut.

A history has generations. Each begins with what the end of the one before left: a kill, a stop or a cut.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import shutil
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from unittest import mock

import structlog
from moved_clock import MovedClock

from embedded.batches import batch_of, keyed_batch, numbered_batch
from embedded.cleaning import CleaningThread
from embedded.logs import committed_records
from embedded.power import Cut, Disk, lay_out
from ingestd.broker import storage as storage_module
from ingestd.broker.api import produce
from ingestd.broker.broker import Broker
from ingestd.broker.cleaner import cleaner as cleaner_module
from ingestd.broker.coordinator import coordinator_topic
from ingestd.broker.coordinator.records import Committed
from ingestd.broker.request import Request
from ingestd.broker.session import Context, Listener, Session
from ingestd.broker.settings import BrokerSettings, Flush
from ingestd.broker.storage import NewTopic
from ingestd.broker.topics import OFFSETS_TOPIC, is_internal
from ingestd.broker.transactions.admission import Missing, admit
from ingestd.broker.transactions.transitions import End, Start
from ingestd.errors import ErrorCode, KafkaError
from ingestd.records.batch import read_header, split_batches
from ingestd.records.decode import decode_records
from ingestd.wire.apis import Api
from ingestd.wire.produce import produce_request, read_produce_response

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from embedded.power import Left
    from ingestd.broker.log.partition_log import PartitionLog
    from ingestd.broker.transactions.transaction import Ids

__all__ = ["History"]

Where: TypeAlias = "tuple[str, int]"
"""The id of a topic, as text, and a partition's number."""

TOPICS: Final = {
    "plain": {"internal.segment.bytes": "700", "retention.bytes": "-1"},
    "lean": {"internal.segment.bytes": "500", "retention.bytes": "900"},
    "keyed": {"internal.segment.bytes": "600", "cleanup.policy": "compact"},
}
ALWAYS: Final = {"retention.ms": "-1", "index.interval.bytes": "200"}
PARTITIONS: Final = 2
COORDINATING: Final = {"cleanup.policy": "compact", "internal.segment.bytes": "2500"}
GROUPS: Final = ("g1", "g2")
SIMPLE: Final = ("", None, -1)
_VERSION: Final = 12
_FROM_MAGIC: Final = 16
"""What is before it, offset, length and leader epoch, is the broker's."""
_TURNS: Final = 20_000
_ODDS_TO_GO_ON: Final = 0.01


class Later(Executor):
    """Does what it was given when `turn` is called, in any order; all of it at its end."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self._waiting.append((done, lambda: work(*arguments, **named)))
        return done

    def turn(self) -> bool:
        """Do one thing. Returns whether there was one."""
        if not self._waiting:
            return False
        done, work = self._waiting.pop(self._random.randrange(len(self._waiting)))
        if not done.set_running_or_notify_cancel():
            return True
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - as an executor does
            done.set_exception(error)
        else:
            done.set_result(result)
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while self.turn():
            pass


# What must be there.


@dataclass
class Ended:
    """A transaction. `end`: what its producer asked for; `answered`: whether it was told so."""

    records: list[tuple[Where, int, bytes]] = field(default_factory=list)
    offsets: dict[tuple[str, Where], int] = field(default_factory=dict)
    commits: bool | None = None
    answered: bool = False


@dataclass
class Known:
    """One partition. `sent`: all batches that were appended at an offset. `acknowledged`: the one that was promised."""

    sent: dict[int, list[bytes]] = field(default_factory=dict)
    acknowledged: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    may_start: int = 0
    starts: int = 0


class Model:
    """What clients were told. It changes by methods alone, so that it can be told again."""

    def __init__(self) -> None:
        self.topics: dict[str, str] = {}
        self.leaving: set[str] = set()
        self.partitions: dict[Where, Known] = {}
        self.transactions: dict[int, Ended] = {}
        self.offsets: dict[tuple[str, Where], list[int]] = {}
        self.promised: dict[tuple[str, Where], int] = {}
        self.last: dict[Where, dict[int, bytes]] = {}
        """The last batch of each producer that was acknowledged."""

    def at(self, where: Where) -> Known:
        return self.partitions.setdefault(where, Known())

    def sent(self, where: Where, offset: int, batch: bytes, transaction: int | None) -> None:
        self.at(where).sent.setdefault(offset, []).append(batch)
        if transaction is not None:
            self.transactions[transaction].records.append((where, offset, batch))

    def acknowledged(self, where: Where, offset: int, batch: bytes, epoch: int) -> None:
        self.at(where).acknowledged[offset] = batch, epoch

    def wrote_last(self, where: Where, producer_id: int, batch: bytes) -> None:
        self.last.setdefault(where, {})[producer_id] = batch

    def ends(self, transaction: int, commits: bool) -> None:
        self.transactions[transaction].commits = commits

    def ended(self, transaction: int) -> None:
        known = self.transactions[transaction]
        known.answered = True
        if known.commits:
            for key, offset in known.offsets.items():
                self.committed(key, offset)

    def commits(self, key: tuple[str, Where], offset: int, transaction: int | None = None) -> None:
        self.offsets.setdefault(key, []).append(offset)
        if transaction is not None:
            self.transactions[transaction].offsets[key] = offset

    def committed(self, key: tuple[str, Where], offset: int) -> None:
        self.promised[key] = max(self.promised.get(key, -1), offset)


def content(batch: Any) -> bytes:
    return bytes(batch[_FROM_MAGIC:])


class Wrong(AssertionError):
    """Something is not as it was promised."""


def require(holds: object, problem: str) -> None:
    if not holds:
        raise Wrong(problem)


class Running:
    """A broker in this process, and what its clients do. `random` chooses who goes on next."""

    def __init__(self, data: Path, random: Random, executors: list[Later]) -> None:
        self.random = random
        self.clock = MovedClock()
        self.executors = executors
        self.broker = Broker(
            BrokerSettings(
                data, flush=Flush.always, offsets_partitions=2, transaction_partitions=2, cleaner_interval=1e9,
                retention_check_interval=1e9, topic_defaults=ALWAYS,
            ),
            self.clock,
        )  # fmt: skip
        self.context = Context(
            self.broker, self.broker.cluster.nodes[0], Session(Listener("x", self.broker.cluster.nodes[0]))
        )

    async def start(self) -> None:
        self.broker.start()
        await self.settle()
        for partition in (*self.broker.groups.partitions, *self.broker.transactions.partitions):
            require(partition.refusal is None, f"a coordinator's partition is not loaded: {partition.refusal}")

    def turn(self) -> bool:
        busy = [one for one in self.executors if one._waiting]
        return bool(busy) and self.random.choice(busy).turn()

    async def settle(self) -> None:
        """Until nothing is left to do."""
        quiet = 0
        for _ in range(_TURNS):
            quiet = 0 if self.turn() else quiet + 1
            await asyncio.sleep(0)
            if quiet > 8:
                return
        raise Wrong("the broker does not come to rest")

    async def abandon(self) -> None:
        """As a kill leaves it: nothing more reaches the disk."""
        for one in self.executors:
            one._waiting.clear()
        await self.broker.tasks.close()
        self.broker.transactions.close()
        self.broker.groups.close()
        storage = self.broker.storage
        storage._files.close_all()
        assert storage._lock is not None
        storage._lock.close()
        storage._lock = None

    def log(self, name: str, number: int) -> PartitionLog:
        return self.broker.partition(name, number).log

    def produce(
        self, name: str, number: int, batch: bytearray, acks: int, transactional_id: str | None
    ) -> Coroutine[Any, Any, Any]:
        """Append now; the answer comes later."""
        body = produce_request(_VERSION, acks, 1000, transactional_id, [(name, None, [(number, batch)])])
        request = Request(Api.produce, _VERSION, 1, "c", memoryview(bytearray(b"".join(body))))
        handled = produce.handle(self.context, request)

        async def answered() -> Any:
            answer = handled if not asyncio.iscoroutine(handled) else await handled
            if answer.parts is None:
                return None
            return read_produce_response(_VERSION, memoryview(b"".join(answer.parts)))[0]

        return answered()


@contextmanager
def standing_in(random: Random) -> Iterator[list[Later]]:
    """No threads, no child process, and small segments for what is the broker's own. Yields the executors made."""
    made: list[Later] = []

    def executor(**_named: Any) -> Later:
        made.append(Later(random))
        return made[-1]

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(storage_module, "ThreadPoolExecutor", executor))
        stack.enter_context(mock.patch.object(cleaner_module, "ThreadPoolExecutor", executor))
        stack.enter_context(mock.patch.object(cleaner_module, "CleaningProcess", CleaningThread))
        stack.enter_context(mock.patch.object(coordinator_topic, "_CONFIG", COORDINATING))
        yield made


# What clients do.


class Clients:
    """Producers, transactions, groups and an administrator, on one running broker."""

    def __init__(self, running: Running, disk: Disk, model: Model, numbers: Iterator[int]) -> None:
        self.running = running
        self.disk = disk
        self.model = model
        self.random = running.random
        self.numbers = numbers
        self.tasks: set[asyncio.Task[Any]] = set()
        self.busy: set[str] = set()

    def note(self, happened: Callable[[Model], None], place: int | None = None) -> None:
        self.disk.note(happened, place)
        happened(self.model)

    def where(self, name: str, number: int) -> Where:
        topic = self.running.broker.storage.topics.named(name)
        assert topic is not None
        return str(topic.topic_id), number

    def begin(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start what this client does, unless it is at it."""
        if name in self.busy:
            return
        self.busy.add(name)

        async def run() -> None:
            try:
                await work()
            except KafkaError as refused:
                require(
                    refused.code in {ErrorCode.concurrent_transactions, ErrorCode.unknown_topic_or_partition},
                    f"{name}: {refused}",
                )
            self.busy.discard(name)

        self.aside(run())

    def aside(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        return task

    def check(self) -> None:
        for task in tuple(self.tasks):
            if task.done():
                self.tasks.discard(task)
                task.result()

    def make_topics(self) -> None:
        storage = self.running.broker.storage
        self.running.broker.groups.begin()
        self.running.broker.transactions.begin()
        for name, config in TOPICS.items():
            if storage.topics.named(name) is None:
                storage.create([NewTopic(name, PARTITIONS, config, {})])
                topic_id = self.where(name, 0)[0]
                self.note(lambda model, name=name, topic_id=topic_id: model.topics.update({name: topic_id}))

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        for _ in range(_TURNS):
            if all(task.done() for task in self.tasks):
                break
            self.running.turn()
            await asyncio.sleep(0)
        else:
            raise Wrong("clients do not end")

    def payload(self) -> bytes:
        return b"%d " % next(self.numbers) + b"v" * self.random.choice((0, 10, 100, 400))

    async def send(
        self, name: str, number: int, batch: bytearray, *, acks: int = -1, transaction: tuple[str, int] | None = None
    ) -> bool:
        """Whether it was acknowledged."""
        log, where = self.running.log(name, number), self.where(name, number)
        offset, epoch = log.end_offset, log.leader_epoch
        known = content(batch)
        place = self.disk.place
        answer = self.running.produce(name, number, batch, acks, None if transaction is None else transaction[0])
        if log.end_offset > offset:
            self.note(lambda model: model.sent(where, offset, known, transaction and transaction[1]), place)
        produced = await answer
        if produced is None:
            return False
        if produced.error is not ErrorCode.none:
            require(name == "brief", f"{name}-{number}: {produced}")  # it may be deleted meanwhile
            return False
        at = produced.base_offset
        self.note(lambda model: model.acknowledged(where, at, known, epoch))
        return True

    async def write(self) -> None:
        name = self.random.choice(("plain", "lean", "plain", "lean", "brief"))
        if self.running.broker.storage.topics.named(name) is None:
            return
        batch = batch_of([self.payload() for _ in range(self.random.randint(1, 3))])
        await self.send(name, self.random.randrange(PARTITIONS), batch, acks=self.random.choice((-1, -1, 1, 0)))

    async def write_keyed(self) -> None:
        random = self.random
        pairs: list[tuple[bytes, bytes | None]] = [
            (b"k%d" % random.randrange(4), self.payload() if random.random() < 0.9 else None)
            for _ in range(random.randint(1, 3))
        ]
        await self.send("keyed", random.randrange(PARTITIONS), keyed_batch(pairs))

    async def write_numbered(self) -> None:
        """An idempotent producer, with several batches under way."""
        producer_id = self.running.broker.storage.producer_ids.take()
        name, number = self.random.choice(("plain", "lean")), self.random.randrange(PARTITIONS)
        sequence = 0
        for _ in range(self.random.randint(1, 3)):
            under_way = []
            for _ in range(self.random.randint(1, 4)):
                values = [self.payload() for _ in range(self.random.randint(1, 2))]
                batch = numbered_batch(values, producer_id, 0, sequence)
                sequence += len(values)
                under_way.append(self.aside(self.send(name, number, batch)))
                await asyncio.sleep(0)
            await asyncio.gather(*under_way)
            where, known = self.where(name, number), content(batch)
            self.note(partial(Model.wrote_last, where=where, producer_id=producer_id, batch=known))

    async def transact(self) -> None:
        """Some transactions of one transactional id, the last of which may stay open."""
        random = self.random
        shop = random.choice(("shop", "stall"))
        if shop in self.busy:
            return
        self.busy.add(shop)
        coordinator = self.running.broker.transactions.of(shop)
        try:
            while (outcome := await coordinator.initialize(shop, Start(60_000, 2))).error:
                require(outcome.error is ErrorCode.concurrent_transactions, f"initialize: {outcome}")
            ids = outcome.ids
            for _ in range(random.randint(1, 3)):
                number = next(self.numbers)
                self.note(lambda model, number=number: model.transactions.update({number: Ended()}))
                following = await self.fill(shop, ids, number)
                if following is None:
                    return
                ids = following
        finally:
            self.busy.discard(shop)

    async def fill(self, shop: str, ids: Ids, number: int) -> Ids | None:
        """One transaction. Returns the ids for the next one; None if this one stays open."""
        random = self.random
        under_way = []
        sequences: dict[tuple[str, int], int] = {}
        for _ in range(random.randint(1, 4)):
            if random.random() < 0.25:
                under_way.append(self.aside(self.commit_within(shop, ids, number)))
            else:
                place = random.choice(("plain", "lean")), random.randrange(PARTITIONS)
                sequence = sequences.get(place, 0)
                sequences[place] = sequence + 1
                batch = numbered_batch([self.payload()], ids.producer_id, ids.epoch, sequence, transactional=True)
                under_way.append(self.aside(self.send(*place, batch, transaction=(shop, number))))
            await asyncio.sleep(0)
        await asyncio.gather(*under_way)
        if random.random() < 0.15:
            return None
        commits = random.random() < 0.6
        self.note(lambda model: model.ends(number, commits))
        outcome = await self.running.broker.transactions.of(shop).end(shop, End(ids, commits, 2))
        require(outcome.error is ErrorCode.none, f"end: {outcome}")
        self.note(lambda model: model.ended(number))
        return outcome.ids

    def offset_of(self, group: str) -> tuple[tuple[str, Where], int, dict[tuple[str, int], Committed]]:
        place = "plain", self.random.randrange(PARTITIONS)
        offset = next(self.numbers)
        return (group, self.where(*place)), offset, {place: Committed(offset, 0, "", 1_000)}

    async def commit_within(self, shop: str, ids: Ids, number: int) -> None:
        broker = self.running.broker
        group = "of " + shop
        key, offset, offsets = self.offset_of(group)
        where = OFFSETS_TOPIC, broker.groups.number_of(group)
        place = self.disk.place
        added = admit(broker.transactions, shop, ids, where, broker.partition(*where).log, Missing.added)
        answer = broker.groups.of(group).commit_in_transaction(group, SIMPLE, (ids.producer_id, ids.epoch), offsets)
        self.note(lambda model: model.commits(key, offset, number), place)
        require(await answer is ErrorCode.none, "offsets in a transaction")
        if added is not None:
            require((await added).error is ErrorCode.none, "offsets in a transaction: added")

    async def commit(self) -> None:
        group = self.random.choice(GROUPS)
        key, offset, offsets = self.offset_of(group)
        place = self.disk.place
        answer = self.running.broker.groups.of(group).commit(group, SIMPLE, offsets)
        self.note(lambda model: model.commits(key, offset), place)
        require(await answer is ErrorCode.none, "offset commit")
        self.note(lambda model: model.committed(key, offset))

    async def shorten(self) -> None:
        name, number = "plain", self.random.randrange(PARTITIONS)
        log, where = self.running.log(name, number), self.where(name, number)
        offset = self.random.randint(log.start_offset, log.high_watermark)
        place = self.disk.place
        log.delete_before(offset)
        self.may_start(where, log.start_offset, place)

        def starts(model: Model) -> None:
            known = model.at(where)
            known.starts = max(known.starts, offset)

        self.note(starts)

    def may_start(self, where: Where, offset: int, place: int) -> None:
        def moved(model: Model) -> None:
            known = model.at(where)
            known.may_start = max(known.may_start, offset)

        self.note(moved, place)

    async def retain(self) -> None:
        for number in range(PARTITIONS):
            log = self.running.log("lean", number)
            place = self.disk.place
            log.enforce_retention(self.running.clock.wall())
            self.may_start(self.where("lean", number), log.start_offset, place)
            await asyncio.sleep(0)

    async def compact(self) -> None:
        await self.running.broker.cleaner.clean()

    async def make_or_delete(self) -> None:
        storage = self.running.broker.storage
        topic = storage.topics.named("brief")
        if topic is None:
            storage.create([NewTopic("brief", PARTITIONS, {"internal.segment.bytes": "500"}, {})])
            made = storage.topics.named("brief")
            assert made is not None
            self.note(lambda model: model.topics.update(brief=str(made.topic_id)))
            return
        self.note(lambda model: model.leaving.add(str(topic.topic_id)))
        storage.delete(topic)
        self.note(lambda model: model.topics.pop("brief"))

    async def go(self, steps: int) -> None:
        """So many things are begun, and each goes on as chance has it."""
        choices = [
            ("write", self.write, 6), ("write 2", self.write, 4), ("keyed", self.write_keyed, 5),
            ("numbered", self.write_numbered, 3), ("numbered 2", self.write_numbered, 3),
            ("transact", self.transact, 4), ("transact 2", self.transact, 4), ("commit", self.commit, 5),
            ("commit 2", self.commit, 3), ("shorten", self.shorten, 1), ("retain", self.retain, 2),
            ("compact", self.compact, 2), ("topic", self.make_or_delete, 1),
        ]  # fmt: skip
        weights = [weight for *_rest, weight in choices]
        for _ in range(steps):
            name, work, _weight = self.random.choices(choices, weights)[0]
            self.begin(name, work)
            for _ in range(self.random.choice((0, 1, 3, 10))):
                await asyncio.sleep(0)
                if self.random.random() < 0.4:
                    self.running.turn()
            self.check()


# Who judges.


class Judge:
    """Compares a broker that was just started with what must be there."""

    def __init__(self, running: Running, model: Model) -> None:
        self.running = running
        self.broker = running.broker
        self.model = model
        self.visible: dict[Where, dict[int, bytes]] = {}
        self.readable: dict[Where, tuple[int, int]] = {}

    def judge(self) -> None:
        self.topics()
        for name in (*TOPICS, "brief"):
            topic = self.broker.storage.topics.named(name)
            if topic is None:
                continue
            for number in range(topic.partitions):
                log, where = self.running.log(name, number), (str(topic.topic_id), number)
                self.partition(f"{name}-{number}", log, self.model.at(where), where)
        self.transactions()
        self.committed_offsets()

    def topics(self) -> None:
        found = {topic.name: str(topic.topic_id) for topic in self.broker.storage.topics}
        for name, topic_id in self.model.topics.items():
            gone = topic_id in self.model.leaving
            require(gone or found.get(name) == topic_id, f"topic {name}: {found.get(name)}, made as {topic_id}")
        for name, topic_id in found.items():
            left = topic_id in self.model.leaving and self.model.topics.get(name) != topic_id
            require(not left, f"topic {name} was deleted")

    def partition(self, name: str, log: PartitionLog, known: Known, where: Where) -> None:
        gaps = log.config.compacts
        require(log.high_watermark == log.end_offset, f"{name}: readers get up to {log.high_watermark}")
        # Of a log without anything that was acknowledged, only a later segment may be left.
        gone = [at for at in known.acknowledged if known.may_start <= at < log.start_offset]
        require(
            known.starts <= log.start_offset and not gone,
            f"{name}: starts at {log.start_offset}, expected {known.starts} to {known.may_start}",
        )
        offset, found = log.start_offset, {}
        first = True
        while (piece := log.slice(offset, 1 << 20)) is not None:
            for batch in split_batches(piece.read()):
                header = read_header(batch)
                begins = header.base_offset <= offset if first else header.base_offset == offset
                require(gaps or begins, f"{name}: a batch at {header.base_offset}, expected {offset}")
                first = False
                offset = header.last_offset + 1
                if header.control:
                    continue
                found[header.base_offset] = content(batch)
                if not gaps:
                    sent = known.sent.get(header.base_offset, ())
                    require(content(batch) in sent, f"{name}: what is at {header.base_offset} was never sent")
        require(offset == log.end_offset or gaps, f"{name}: can be read up to {offset} of {log.end_offset}")
        if gaps:
            self.keyed(name, log, known)
            return
        for at, (batch, epoch) in known.acknowledged.items():
            if at >= log.start_offset:
                require(found.get(at) == batch, f"{name}: the batch at {at} was acknowledged and is not there")
                require(log.epochs.at(at) == epoch, f"{name}: epoch of {at} is {log.epochs.at(at)}, was {epoch}")
        self.sequences(name, log, known, where)
        stable = log.last_stable_offset
        require(
            stable == log.high_watermark
            or any(
                not one.answered
                and place == where
                # Its first records may have been deleted.
                and (offset == stable or offset < stable == log.start_offset)
                for one in self.model.transactions.values()
                for place, offset, _batch in one.records
            ),
            f"{name}: stable up to {stable} of {log.high_watermark}, where no transaction is open",
        )
        self.readable[where] = log.start_offset, stable
        self.visible[where] = {
            one.offset: one.value or b"" for one in committed_records(log, log.start_offset, 1 << 20)
        }

    def keyed(self, name: str, log: PartitionLog, known: Known) -> None:
        sent: dict[bytes | None, dict[int, bytes | None]] = {}
        promised: dict[bytes | None, tuple[int, bytes | None]] = {}
        for base_offset, batches in known.sent.items():
            for batch in batches:
                for record in _records(batch, base_offset):
                    sent.setdefault(record.key, {})[record.offset] = record.value
        for base_offset, (batch, _epoch) in sorted(known.acknowledged.items()):
            for record in _records(batch, base_offset):
                promised[record.key] = record.offset, record.value
        latest: dict[bytes | None, int] = {}
        for record in committed_records(log, log.start_offset, 1 << 20):
            require(record.offset in sent.get(record.key, {}), f"{name}: {record.offset} was never sent")
            latest[record.key] = record.offset
        for key, (offset, value) in promised.items():
            require(
                latest.get(key, -1) >= offset or value is None,
                f"{name}: the latest of {key!r} is at {latest.get(key)}, acknowledged at {offset}",
            )

    def sequences(self, name: str, log: PartitionLog, known: Known, where: Where) -> None:
        """A batch that its producer sends again has the offset that it had."""
        offsets = {batch: at for at, (batch, _epoch) in known.acknowledged.items()}
        for batch in self.model.last.get(where, {}).values():
            if offsets[batch] < log.start_offset:
                continue
            again = memoryview(
                bytearray(offsets[batch].to_bytes(8) + len(batch + b"....").to_bytes(4) + b"...." + batch)
            )
            appended = log.append(again, read_header(again))
            require(
                appended.duplicate and appended.base_offset == offsets[batch],
                f"{name}: a batch sent again is at {appended}, was at {offsets[batch]}",
            )

    def transactions(self) -> None:
        for number, known in self.model.transactions.items():
            there = [
                (where, offset)
                for where, offset, batch in known.records
                for record in _records(batch, offset)
                if where in self.visible and self.visible[where].get(record.offset) == record.value
            ]
            expected = [
                (where, offset)
                for where, offset, _batch in known.records
                if where in self.visible and self.readable[where][0] <= offset < self.readable[where][1]
            ]
            if not known.commits:
                require(
                    not there,
                    f"transaction {number} was not committed ({known.commits}, answered: {known.answered}), and"
                    f" {there} of {[record[:2] for record in known.records]} can be read; the coordinator has"
                    f" {[one for partition in self.broker.transactions.partitions for one in partition]}",
                )
            elif known.answered or there:
                missing = set(expected) - set(there)
                require(not missing, f"transaction {number}: committed, and {missing} can not be read")

    def found_offsets(self) -> dict[tuple[str, Where], int]:
        found = {}
        for partition in self.broker.groups.partitions:
            for group in partition:
                for (topic, number), committed in group.offsets.items():
                    known = self.broker.storage.topics.named(topic)
                    assert known is not None
                    found[group.id, (str(known.topic_id), number)] = committed.offset
        return found

    def committed_offsets(self) -> None:
        found = self.found_offsets()
        for key, offset in self.model.promised.items():
            require(found.get(key, -1) >= offset, f"{key}: committed {found.get(key)}, acknowledged {offset}")
        for key, offset in found.items():
            require(offset in self.model.offsets.get(key, ()), f"{key}: offset {offset} was never committed")

    def seen(self) -> Callable[[Model], None]:
        """What readers get now. It must stay."""
        there: list[tuple[Where, int, int, dict[int, tuple[bytes, int]]]] = []
        topics = {one.name: str(one.topic_id) for one in self.broker.storage.topics if not is_internal(one.name)}
        for name, topic_id in topics.items():
            for number in range(PARTITIONS):
                log = self.running.log(name, number)
                batches = {} if log.config.compacts else dict(_batches(log))
                there.append(((topic_id, number), log.start_offset, log.end_offset, batches))
        offsets = self.found_offsets()
        visible, readable = self.visible, self.readable

        def told(model: Model) -> None:
            model.topics = dict(topics)
            model.leaving.difference_update(topics.values())
            for where, starts, _ends, batches in there:
                known = model.at(where)
                known.starts, known.may_start = starts, max(starts, known.may_start)
                known.acknowledged.update(batches)
            for known in model.transactions.values():
                # Behind another one that is open, nobody sees yet what became of it.
                ended = [(where, at) for where, at, _batch in known.records if at < readable.get(where, (0, 0))[1]]
                if known.commits is not None and not known.answered and (ended or not known.records):
                    committed = any(visible.get(where, {}).get(at) for where, at in ended)
                    known.commits = known.answered = known.commits and committed
            for key, offset in offsets.items():
                model.committed(key, offset)

        return told


def _batches(log: PartitionLog) -> Iterator[tuple[int, tuple[bytes, int]]]:
    """Base offset, content and epoch of each batch of records."""
    offset = log.start_offset
    while (piece := log.slice(offset, 1 << 20)) is not None:
        for batch in split_batches(piece.read()):
            header = read_header(batch)
            offset = header.last_offset + 1
            if not header.control:
                yield header.base_offset, (content(batch), log.epochs.at(header.base_offset))


def _records(batch: bytes, offset: int) -> list[Any]:
    whole = bytearray(offset.to_bytes(8) + (len(batch) + 4).to_bytes(4) + bytes(4) + batch)
    return list(decode_records(whole))


# A history.


class History:
    """A random history of several generations, and its cuts: a `share` of the places of each, `cuts` in all.

    `run` raises `Wrong`, which names the seed, the place, what was lost there, and the last operations before it.
    """

    def __init__(self, seed: int, directory: Path, *, generations: int, steps: int, share: float) -> None:
        self.cuts = 0
        self._seed = seed
        self._directory = directory
        self._generations = generations
        self._steps = steps
        self._share = share
        self._numbers = itertools.count(1)
        self._errors: list[object] = []

    def run(self) -> None:
        structlog.configure(processors=[self._hear], cache_logger_on_first_use=False)
        try:
            asyncio.run(self._run())
        finally:
            structlog.reset_defaults()

    def _hear(self, _logger: object, method: str, event: Any) -> Any:
        if method in {"error", "exception", "critical"}:
            self._errors.append(event)
        raise structlog.DropEvent

    def _no_errors(self) -> None:
        errors, self._errors = self._errors, []
        require(not errors, f"errors were logged: {errors}")

    async def _run(self) -> None:
        random = Random(self._seed)
        left: Left = {}
        model = Model()
        for generation in range(self._generations):
            root = self._directory / f"{generation}"
            lay_out(left, root)
            disk = Disk(root, left)
            before = copy.deepcopy(model)
            try:
                with disk.watched():
                    for life in range(random.randint(1, 3)):
                        await self._live(root / "data", disk, model, random, first=not generation and not life)
                self._no_errors()
            except Exception as error:
                raise Wrong(f"{error!r}\nseed {self._seed}, generation {generation}, alive") from error
            left, model = await self._cut_everywhere(disk, before, generation)

    async def _live(self, data: Path, disk: Disk, model: Model, random: Random, *, first: bool) -> None:
        """One life of a broker, which ends with a stop or a kill."""
        with standing_in(random) as executors:
            running = Running(data, random, executors)
            await running.start()
            clients = Clients(running, disk, model, self._numbers)
            if not first:
                judge = Judge(running, model)
                judge.judge()
                clients.note(judge.seen())
            clients.make_topics()
            await clients.go(self._steps)
            if random.random() < 0.3:
                await running.settle()
                clients.check()
            await clients.end()
            if random.random() < 0.4:
                await running.broker.close()
            else:
                await running.abandon()

    async def _cut_everywhere(self, disk: Disk, model: Model, generation: int) -> tuple[Left, Model]:
        """Returns what one of the cuts left, with what was known there."""
        kept: tuple[Left, Model] = {}, model
        last = disk.place
        for place in disk.cuts(model):
            random = Random(f"{self._seed} {generation} {place}")
            if random.random() > self._share and place != last:
                continue
            left, lost = disk.left(Cut.any(random), random)
            try:
                await self._judge(left, model, random)
            except Exception as error:
                raise Wrong(
                    f"{error!r}\nseed {self._seed}, generation {generation}, cut at {place}: {lost}\n"
                    f"after\n{disk.last_steps(place)}"
                ) from error
            self.cuts += 1
            if place == last or random.random() < _ODDS_TO_GO_ON:
                kept = left, copy.deepcopy(model)
        return kept

    async def _judge(self, left: Left, model: Model, random: Random) -> None:
        root = self._directory / "cut"
        lay_out(left, root)
        with (
            mock.patch.object(os, "fsync"),
            mock.patch.object(os, "fdatasync"),
            standing_in(random) as executors,
        ):
            running = Running(root / "data", random, executors)
            await running.start()
            Judge(running, model).judge()
            await running.abandon()
        self._no_errors()
        shutil.rmtree(root)
