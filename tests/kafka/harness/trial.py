"""A trial: one daemon on logs that rotate, from its first start to the verdict over all that it delivered."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Self

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from harness.daemon import Daemon
from harness.judge import STANDING_SECONDS, Judge
from harness.node import last_lines
from harness.reading import end_offsets, read_back

if TYPE_CHECKING:
    from pathlib import Path

    from harness.judge import Verdict

__all__ = ["Trial"]

PARTITIONS = 2
LOOK_SECONDS = 0.2
READY_SECONDS = 60
QUIET_SECONDS = 1.0
"""How long a daemon that was started again is left alone, so that it can do what it should not."""


class Trial:
    """A daemon of two workers, its topic, and the judge who knows when it ran. Killed when left.

    Invariants
        Every line of a file goes to the partition of its file.
    """

    def __init__(
        self, directory: Path, *, servers: str, topic: str, paths: list[str], patience: float = 1.0, **options: Any
    ) -> None:
        """`options` are those of `Daemon`: keys of the tail, `tables`, `command`; `daemon` for keys of [daemon].

        `patience`: see `Judge`. It is for becoming ready, too.
        """
        self.judge = Judge(patience)
        self.servers = servers
        self.topic = topic
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        own = {"workers": 2, "drain_timeout": 20, **options.pop("daemon", {})}
        tail = {"partition": "file", "linger": 0.02, **options}
        self.daemon = Daemon(directory / "daemon", servers=[servers], topic=topic, paths=paths, daemon=own, **tail)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.daemon.kill()

    # The daemon's life.

    def start(self, *, ready_within: float = READY_SECONDS) -> None:
        """Start it and wait until it is ready, for so many seconds at most, with patience."""
        self.judge.started()
        self.daemon.start()
        self.daemon.until(
            lambda: self.daemon.page("/readyz") is not None, "the daemon is ready", READY_SECONDS * self.judge.patience
        )
        self.judge.ready()

    def stop(self) -> None:
        """Stop it with SIGTERM."""
        self.judge.ended()
        status = self.daemon.stop()
        assert status == 0, f"ended with {status}:\n{last_lines(self.daemon.log)}"

    def kill(self) -> None:
        """Kill it with SIGKILL. Until its workers have seen that, and gone, they deliver what will come again."""
        workers = psutil.Process(self.daemon.pid).children()
        self.judge.ended(killed=True)
        self.daemon.kill()
        _, left = psutil.wait_procs(workers, timeout=30)
        assert not left
        self.judge.gone()

    def once(self, seconds: float = 60) -> None:
        """A run with an end, in which nothing may fail."""
        self.judge.started()
        self.daemon.start("--once")
        self.judge.ready()
        status = self.daemon.wait(seconds)
        self.judge.ended()
        assert status == 0, f"ended with {status}:\n{last_lines(self.daemon.log)}"

    def interrupt(self, how: str) -> None:
        """End it as `how` says: "stopped" or "killed"."""
        {"stopped": self.stop, "killed": self.kill}[how]()

    # What came of it.

    def verdict(self) -> Verdict:
        """About what the topic holds now."""
        return self.judge.verdict(read_back(self.servers, self.topic))

    def arrived(self) -> int:
        """How many records the topic holds."""
        return sum(end_offsets(self.servers, self.topic).values())

    def settle(self, seconds: float = STANDING_SECONDS) -> Verdict:
        """Wait until every line that must be there is, for `seconds` at most; what there is then."""
        deadline = time.monotonic() + seconds
        while True:
            late = time.monotonic() > deadline
            if late or self.arrived() >= self.judge.standing:
                verdict = self.verdict()
                if late or not verdict.missing:
                    return verdict
            time.sleep(LOOK_SECONDS)

    def finish(self, seconds: float = STANDING_SECONDS) -> Verdict:
        """Let it deliver, stop it, start it once more with nothing to do, and stop it: what came of it all.

        Lines that only the second start brought count as missing.
        """
        late = self.settle(seconds).missing
        self.stop()
        self.start()
        time.sleep(QUIET_SECONDS)
        self.stop()
        verdict = self.verdict()
        verdict.missing = late or verdict.missing
        print(verdict)
        return verdict

    # What the daemon says.

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its log events of this name."""
        events = [json.loads(line) for line in self.daemon.log.read_text().splitlines() if line.startswith("{")]
        return [event for event in events if event["event"] == name]
