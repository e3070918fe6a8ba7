"""A worker that hangs (SIGSTOP) with slabs of its own and of a peer is replaced, and nothing is lost."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from harness.written import LogWriter, Written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import KafkaCluster
    from harness.daemon import Daemon
    from harness.written import Delivered


def test_a_worker_that_hangs_is_replaced_and_loses_nothing(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
) -> None:
    name, written = topic(partitions=2), Written()
    # What is sent again may take another partition else, behind newer lines of its file that arrived there before.
    daemon = shipping(kafka, name, partition="file")
    with (
        LogWriter(logs / "a.log", written, seed=1, rate=5_000_000),
        LogWriter(logs / "b.log", written, seed=2, rate=5_000_000),
    ):
        daemon.start_ready()
        time.sleep(1.0)
        frozen = daemon.worker_pids()[0]
        os.kill(frozen, signal.SIGSTOP)
        time.sleep(1.0)
    daemon.until(lambda: frozen not in daemon.worker_pids() and len(daemon.worker_pids()) == 2, "it is replaced", 100)
    # What it had sent before it was stopped was not yet reported as acknowledged, and may be sent again.
    all_there(kafka, name, written).check(duplicates=True)
    assert daemon.stop() == 0
