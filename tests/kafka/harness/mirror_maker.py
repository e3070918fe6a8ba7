"""MirrorMaker 2 from Apache Kafka's jars, as a dedicated cluster of one process: what users come from."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from harness.jars import kafka_jars
from harness.node import JAVA_FOR_TESTS, java

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["mirror_maker", "mirror_maker_command"]

END_SECONDS = 60


class Cluster(Protocol):
    """A real one, or the embedded broker."""

    @property
    def servers(self) -> str:
        """HOST:PORT,… of it."""


def mirror_maker_command(
    source: str, target: str, topics: str, directory: Path, *, java_options: Sequence[str], **more: str
) -> list[str]:
    """Write its configuration into `directory`, and give the command line: `topics` of `east`, into `west`.

    source, target: HOST:PORT,… of these. more: further settings, or others, by name.
    """
    one_replica = (
        "replication.factor", "offset-syncs.topic.replication.factor", "checkpoints.topic.replication.factor",
        "heartbeats.topic.replication.factor", "offset.storage.replication.factor",
        "status.storage.replication.factor", "config.storage.replication.factor",
    )  # fmt: skip
    settings = {
        "clusters": "east, west",
        "east.bootstrap.servers": source,
        "west.bootstrap.servers": target,
        "east->west.enabled": "true",
        "east->west.topics": topics,
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "offset-syncs.topic.location": "target",
        **dict.fromkeys(one_replica, "1"),
        **more,
    }
    file = directory / "mirror-maker.properties"
    file.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    logging = directory / "log4j2.properties"
    logging.write_text("rootLogger.level = WARN\n")
    options = (*java_options, f"-Dlog4j2.configurationFile={logging}")
    return java(kafka_jars(), options, "org.apache.kafka.connect.mirror.MirrorMaker", str(file))


@contextmanager
def mirror_maker(source: Cluster, target: Cluster, topics: str, directory: Path, **more: str) -> Iterator[None]:
    """Copy topics of a cluster that it calls `east` into `west`, until the block is left: stopped as by systemd.

    more: further settings, or others, by name.
    """
    directory.mkdir()
    no_acls = {"sync.topic.acls.enabled": "false"}
    command = mirror_maker_command(
        source.servers, target.servers, topics, directory, java_options=JAVA_FOR_TESTS, **no_acls, **more
    )
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(END_SECONDS)
                raise
