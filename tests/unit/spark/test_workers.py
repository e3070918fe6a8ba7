"""Workers on Spark: whom the supervisor believes, until when a worker goes on, and when its successor may start."""

import asyncio
import os
import pickle
import re
import socket
import struct
import threading
import time
from types import SimpleNamespace

import pytest

from ingestd.daemon.configuration import ClusterSettings
from ingestd.daemon.control import Configure, Leased
from ingestd.daemon.workers import SILENCE, EngineLost
from ingestd.errors import ConfigurationError, ConnectionLost, IngestdError
from ingestd.mirror.route import MirrorRoute
from ingestd.spark.workers import engine as engines
from ingestd.spark.workers import task
from ingestd.spark.workers.channel import ID_BYTES, LIFE, Beat, Hello, KeyedChannel, Offer, Sign
from ingestd.spark.workers.engine import SparkEngine
from ingestd.tail.route import TailRoute

KEY = b"k" * 32


class Wire:
    """A transport that keeps what is written."""

    def __init__(self):
        self.written = b""
        self.aborted = False

    def is_closing(self):
        return self.aborted

    def write(self, data):
        self.written += bytes(data)

    def abort(self):
        self.aborted = True

    def close(self):
        self.aborted = True


def channel(*, supervisor, key=KEY):
    heard = []
    made = KeyedChannel(key, supervisor=supervisor, received=heard.append, lost=lambda: None)
    made.connection_made(Wire())
    return made, heard


async def written(*messages, supervisor=False, key=KEY):
    """Each message as it goes over the wire."""
    made, _ = channel(supervisor=supervisor, key=key)
    found = []
    for message in messages:
        made._transport.written = b""
        made.send(message)
        made._write()
        found.append(made._transport.written)
    return found


async def test_messages_come_in_any_pieces():
    heard = channel(supervisor=True)
    for byte in b"".join(await written(Sign(1.0), Sign(2.0))):
        heard[0].data_received(bytes([byte]))
    assert heard[1] == [Sign(1.0), Sign(2.0)]


class Bomb:
    def __reduce__(self):
        return os.abort, ()


async def test_what_another_one_wrote_ends_the_connection_before_it_is_unpickled():
    body = pickle.dumps(Bomb())
    first, second = await written(Sign(1.0), Sign(2.0))
    (ours,) = await written(Sign(1.0), supervisor=True)
    (wrong,) = await written(Bomb(), key=b"x" * 32)
    for forged in (
        struct.pack("=I32s", len(body), b"\0" * 32) + body,
        wrong,
        second,  # the first is missing
        ours,  # sent back to who wrote it
        first[:-1] + b"\0",
        struct.pack("=I32s", 65537, b"\0" * 32),  # more than a worker that is not known yet may send
    ):
        made, heard = channel(supervisor=True)
        made.data_received(forged)
        assert made._transport.aborted
        assert heard == []
    made, heard = channel(supervisor=True)
    made.data_received(first + first)
    assert made._transport.aborted, "the same message again"
    assert heard == [Sign(1.0)]


def offer(*routes, clusters=None):
    configure = Configure(0, 1, routes, clusters or {}, "info", "text", 1.0, 1.0)
    return Offer("127.0.0.1", 1, b"c" * ID_BYTES, KEY, 1 << 20, configure)


def test_an_offer_shows_no_secret():
    assert "kkkk" not in repr(offer())
    assert "configure" not in repr(offer())


class Context:
    """Spark as far as workers use it: `collect` is a job, which ends when the test says so."""

    def __init__(self):
        self.ending = []
        self.cancelled = []
        self.defaultParallelism = 3
        self.parallelize = lambda *_: SimpleNamespace(mapPartitions=lambda work: SimpleNamespace(collect=self.job))
        self.setJobGroup = lambda *_, **__: None
        self.settings = {"spark.driver.host": "127.0.0.1"}
        self.getConf = lambda: self.settings
        self.stopped = lambda: False
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=self.stopped))

    def job(self):
        done = threading.Event()
        self.ending.append(done)
        done.wait(30)

    def cancelJobGroup(self, group):  # noqa: N802 - Spark's name
        self.cancelled.append(group)
        for job in self.ending:
            job.set()


@pytest.fixture
async def hired(monkeypatch):
    """`await hired(routes)`: a worker that the engine hired, which test code plays; its channel; what was heard."""
    offers = []
    monkeypatch.setattr(engines, "SentWorker", offers.append)
    context = Context()
    engine = SparkEngine(SimpleNamespace(sparkContext=context))
    events = []

    async def hire(*routes, clusters=None, boot=None, clock=None, slow=""):
        configure = offer(*routes, clusters=clusters).configure
        hiring = asyncio.create_task(
            engine(configure, lambda _, message: events.append(message), lambda _, how: events.append(how))
        )
        while not offers:
            await asyncio.sleep(0.001)
        given = offers.pop()
        made, heard = channel(supervisor=False, key=given.key)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: made, given.host, given.port)
        made._transport.write(given.connection)
        made.send(Hello(7, "there", boot or task.boot_id(), time.monotonic() if clock is None else clock, slow))
        return await hiring, made, heard

    yield SimpleNamespace(hire=hire, events=events, context=context, engine=engine)
    for job in context.ending:
        job.set()
    while engine._tasks:
        await asyncio.sleep(0.001)


async def until(holds):
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.001)


async def test_a_worker_says_hello_and_each_sign_of_it_is_answered(hired):
    worker, made, heard = await hired.hire()
    assert (worker.pid, worker.alive) == (7, True)
    made.send(Sign(5.0))
    made.send("news")
    await until(lambda: hired.events)
    assert hired.events == ["news"]
    await until(lambda: heard == [Beat(5.0)])


async def test_a_connection_without_an_offer_is_closed(hired):
    worker, _, _ = await hired.hire()
    port = hired.engine._server.sockets[0].getsockname()[1]
    for name in (b"?" * ID_BYTES, worker._offer.connection):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(name + b"more")
        assert await reader.read() == b""
        writer.close()
    assert worker.alive


async def test_a_lease_is_told_on_the_clock_of_the_worker_and_never_too_long(hired):
    worker, made, heard = await hired.hire(clock=time.monotonic() - 1_000)
    now = time.monotonic()
    worker.tell(Leased("m", now + 15))
    await until(lambda: heard)
    (lease,) = heard
    assert now - 1_000 + 15 - 5 < lease.until <= now - 1_000 + 15
    made._transport.abort()


async def test_a_worker_has_exited_once_its_task_has_ended(hired):
    worker, made, _ = await hired.hire()
    made._transport.abort()
    await until(lambda: hired.events)
    assert hired.events == ["its connection was closed"]
    assert hired.context.cancelled, "a task that Spark would run again"
    assert not worker.alive
    assert (await worker.drained).unacknowledged == 1


async def test_a_tail_stays_on_the_host_that_has_its_state(hired):
    tail = TailRoute("t", ("/var/log/*.log",), "c", "topic")
    with pytest.raises(ConfigurationError, match=r"tails.t: a worker is on there, which is another host than that of"):
        await hired.hire(tail, boot="another")
    worker, _, _ = await hired.hire(tail)
    assert worker.alive


async def test_a_broker_inside_the_daemon_is_for_workers_on_its_host(hired):
    clusters = {"near": ClusterSettings("near", embedded=True), "far": ClusterSettings("far", bootstrap=("k:9092",))}
    with pytest.raises(ConfigurationError, match=r"clusters.near.embedded: a worker is on there, which is another"):
        await hired.hire(clusters=clusters, boot="another")
    worker, _, _ = await hired.hire(clusters={"far": clusters["far"]}, boot="another")
    assert worker.alive


async def test_a_task_that_ends_before_hello_is_told(hired):
    configure = offer().configure
    hiring = asyncio.create_task(hired.engine(configure, lambda *_: None, lambda *_: None))
    await until(lambda: hired.context.ending)
    hired.context.ending[0].set()
    with pytest.raises(IngestdError, match="a worker can not start on Spark: its task ended"):
        await hiring


async def test_a_worker_in_plain_python_is_said(hired, caplog):
    await hired.hire(slow="loops.py of python3 on there")
    assert "plain Python, several times slower: loops.py of python3 on there has no compiled loops" in caplog.text


def test_an_executor_without_a_way_to_the_daemon_says_which_settings_are_for_that():
    said = (
        rf"^{re.escape(socket.gethostname())} can not connect to the daemon at 127.0.0.1:1: .*; expected spark.driver"
    )
    with pytest.raises(ConnectionLost, match=said):
        task._connected(offer())


def refused():
    raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize("stopped", [lambda: True, refused], ids=["by its master", "with its JVM"])
async def test_a_spark_that_has_ended_is_no_worker_to_try_again(hired, stopped):
    hired.context.stopped = stopped
    with pytest.raises(EngineLost, match="Spark has ended"):
        await hired.engine(offer().configure, lambda *_: None, lambda *_: None)


async def test_a_jvm_that_dies_is_the_end_of_its_workers(hired):
    hired.context.parallelize = lambda *_: refused()
    with pytest.raises(IngestdError, match="a worker can not start on Spark: Spark has ended"):
        await hired.engine(offer().configure, lambda *_: None, lambda *_: None)


@pytest.mark.parametrize("port", ["many", "-1", "65536", "1.5"])
async def test_a_port_that_is_none_is_named(hired, port):
    hired.context.settings["spark.ingestd.port"] = port
    with pytest.raises(ConfigurationError, match=f"spark.ingestd.port is '{port}'; expected a port up to 65535"):
        await hired.engine(offer().configure, lambda *_: None, lambda *_: None)


def test_workers_share_the_bandwidth_that_they_can_not_tell_each_other_of():
    route = MirrorRoute("m", "east", "west", ("t",), bandwidth=10)
    assert engines._share(route, 4).bandwidth == 2
    assert engines._share(route, 40).bandwidth == 1
    assert engines._share(MirrorRoute("m", "east", "west", ("t",)), 4).bandwidth is None


async def test_a_worker_ends_itself_before_the_supervisor_calls_it_dead(monkeypatch):
    assert LIFE < SILENCE
    monkeypatch.setattr(task, "LIFE", 0.2)
    made, _ = channel(supervisor=False)
    life = task._Life(lambda _: None, lambda: None)
    life.begin(made)
    signed = time.monotonic()
    await asyncio.sleep(0.1)
    assert not made._transport.aborted
    life.received(Beat(signed + 0.1))
    await until(lambda: made._transport.aborted)
    # What counts is when the answered sign was sent, however late the answer came.
    assert time.monotonic() >= signed + 0.25
    life.lost()


async def test_an_answer_that_comes_too_late_ends_a_worker(monkeypatch):
    made, heard = channel(supervisor=False)
    life = task._Life(heard.append, lambda: None)
    life.begin(made)
    life.received(Beat(time.monotonic() - LIFE - 1))
    await asyncio.sleep(0)
    await until(lambda: made._transport.aborted)
    life.lost()
