"""What every fault test needs: a daemon on a directory of logs, a judge, the wait until a topic has every line."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException
from harness.daemon import Daemon
from harness.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from harness.cluster import KafkaCluster
    from harness.written import Delivered, Written

LOOK_SECONDS = 0.3


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """The directory that daemons of `shipping` follow."""
    directory = tmp_path / "logs"
    directory.mkdir()
    return directory


@pytest.fixture
def trial(request: pytest.FixtureRequest, new_topic: str, tmp_path: Path, logs: Path) -> Iterator[Callable[..., Trial]]:
    """`trial("*.log", **options)`: a daemon, not yet started, on globs within `logs`.

    It sends to the embedded broker, or to what the fixture gives that an indirect parameter names: `kafka`.
    """
    servers = request.getfixturevalue(getattr(request, "param", "embedded")).servers
    with ExitStack() as stack:

        def make(*globs: str, **options: object) -> Trial:
            paths = [f"{logs}/{glob}" for glob in globs]
            return stack.enter_context(Trial(tmp_path, servers=servers, topic=new_topic, paths=paths, **options))

        yield make


@pytest.fixture
def shipping(tmp_path: Path, logs: Path) -> Iterator[Callable[..., Daemon]]:
    """`shipping(cluster, topic, workers=2, daemon={}, **tail)`: a daemon, not yet started, that ships `logs` there."""
    made: list[Daemon] = []

    def make(
        cluster: KafkaCluster,
        topic: str,
        *,
        workers: int = 2,
        daemon: Mapping[str, object] | None = None,
        **tail: object,
    ) -> Daemon:
        shipper = Daemon(
            tmp_path / f"daemon-{len(made)}",
            servers=cluster.bootstrap,
            topic=topic,
            paths=[f"{logs}/*.log*"],
            daemon={"workers": workers, "drain_timeout": 10, **(daemon or {})},
            **{"rescan_interval": 1.0, **tail},
        )
        made.append(shipper)
        return shipper

    yield make
    for daemon in made:
        daemon.kill()


@pytest.fixture
def all_there() -> Callable[..., Delivered]:
    """`all_there(cluster, topic, written)`: waits until every line is in the topic; what is there then."""

    def wait(cluster: KafkaCluster, topic: str, written: Written, timeout: float = 60) -> Delivered:
        deadline = time.monotonic() + timeout
        while True:
            late = time.monotonic() > deadline
            try:
                if late or sum(cluster.end_offsets(topic).values()) >= len(written):
                    delivered = written.compare(cluster.read_back(topic))
                    if late or delivered.complete:
                        return delivered
            except KafkaException:  # an election is going on
                if late:
                    raise
            time.sleep(LOOK_SECONDS)

    return wait
