"""The programs that copy topics of one cluster into another, each set up for the same job.

Whatever cannot be equal is said in `delivery`, which stands beside every figure.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from workload import go_peers, ingestd, mirror_maker_command, program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = [
    "LINGER_MS",
    "NAMES",
    "SOURCE",
    "TARGET",
    "Copying",
    "IngestdMirror",
    "MirrorMaker",
    "MirrorProgram",
    "chosen",
    "copied",
]

SOURCE, TARGET = "east", "west"
"""What the clusters are called."""
JAVA = ("-Xms256m", "-Xmx2g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""As Kafka's own script starts MirrorMaker 2."""
LINGER_MS = 50


def copied(topic: str) -> str:
    """What a copy is called on the target."""
    return f"{SOURCE}.{topic}"


@dataclass(frozen=True, slots=True)
class Copying:
    """Topics from one cluster into another."""

    source: str
    """HOST:PORT,…"""
    target: str
    topics: str
    """A topic's name. For those that take one: a regular expression."""
    partitions: int
    """Of all topics together."""
    records: int
    """How many there are, for a program that must be told when to end."""
    directory: Path
    """For configuration and state; empty. Its name is no other job's."""


class MirrorProgram(Protocol):
    """A program under test."""

    @property
    def name(self) -> str:
        """What it is called in results."""
        ...

    @property
    def delivery(self) -> str:
        """What it promises, as set up here."""
        ...

    @property
    def ends_by_itself(self) -> bool:
        """Whether it exits at the end of the topic; if not, it is stopped when the target has everything."""
        ...

    @property
    def creates_topics(self) -> bool:
        """Whether it makes the topic on the target."""
        ...

    def command(self, job: Copying) -> list[str]:
        """Write what configuration the job needs; the command line."""
        ...


@dataclass(frozen=True, slots=True)
class IngestdMirror:
    """This project, one worker."""

    once: bool = True
    name: str = "ingestd"
    delivery: str = "at least once: idempotent, acks=all, positions in a group on the target"
    creates_topics: bool = True

    @property
    def ends_by_itself(self) -> bool:
        """See `MirrorProgram`."""
        return self.once

    def command(self, job: Copying) -> list[str]:
        """`ingestd run`."""
        configuration = job.directory / "ingestd.toml"
        configuration.write_text(
            f'[daemon]\nworkers = 1\nstate = "{job.directory}/state"\nhttp = ""\n\n'
            f"[clusters.{SOURCE}]\nbootstrap = {json.dumps(job.source.split(','))}\n\n"
            f"[clusters.{TARGET}]\nbootstrap = {json.dumps(job.target.split(','))}\n\n"
            f'[mirrors.{job.directory.name}]\nsource = "{SOURCE}"\ntarget = "{TARGET}"\ntopics = ["{job.topics}"]\n'
        )
        return [*ingestd(), "run", *(["--once"] if self.once else []), str(configuration)]


@dataclass(frozen=True, slots=True)
class MirrorMaker:
    """MirrorMaker 2 of Apache Kafka, as a dedicated cluster of one process; a task for each partition, at most four."""

    name: str = "MirrorMaker 2"
    delivery: str = "at least once: acks=all, lz4, batches as large as the others', offsets in a topic on the target"
    ends_by_itself: bool = False
    creates_topics: bool = True

    def command(self, job: Copying) -> list[str]:
        """`org.apache.kafka.connect.mirror.MirrorMaker`."""
        settings = {
            "sync.topic.configs.enabled": "false",
            "tasks.max": str(min(4, job.partitions)),
            f"{TARGET}.producer.compression.type": "lz4",
            f"{TARGET}.producer.acks": "all",
            f"{TARGET}.producer.linger.ms": str(LINGER_MS),
            f"{TARGET}.producer.batch.size": "1000000",
        }
        return mirror_maker_command(job.source, job.target, job.topics, job.directory, java_options=JAVA, **settings)


@dataclass(frozen=True, slots=True)
class Kcat:
    """kcat (librdkafka), twice, with a pipe between: values alone, partitions as they come."""

    name: str = "kcat | kcat"
    delivery: str = "once through: values alone, one to a line; no position; not idempotent"
    ends_by_itself: bool = True
    creates_topics: bool = False

    def command(self, job: Copying) -> list[str]:
        """`kcat -C | kcat -P`."""
        kcat = program("kcat")
        reader = [kcat, "-C", "-q", "-e", "-o", "beginning", "-b", job.source, "-t", job.topics]
        writer = [kcat, "-P", "-b", job.target, "-t", copied(job.topics), "-z", "lz4"]
        writer += ["-X", "acks=all", "-X", f"linger.ms={LINGER_MS}"]
        return ["sh", "-c", f"{shlex.join(reader)} | {shlex.join(writer)}"]


@dataclass(frozen=True, slots=True)
class Franz:
    """A program on franz-go that gives each record it reads to a producer (`tests/interop/go/franz`)."""

    binary: Path
    name: str = "franz-go"
    delivery: str = "once through: idempotent, acks=all; no position"
    ends_by_itself: bool = True
    creates_topics: bool = False

    @classmethod
    def built(cls, directory: Path) -> Franz:
        """Build the program into `directory`."""
        return cls(go_peers(directory)["franz"].binary)

    def command(self, job: Copying) -> list[str]:
        """`franz mirror`."""
        return [
            str(self.binary), "mirror", "-brokers", job.source, "-topic", job.topics, "-target", job.target,
            "-target-topic", copied(job.topics), "-codec", "lz4", "-count", str(job.records), "-timeout", "600s",
        ]  # fmt: skip


NAMES = ("ingestd", "franz-go", "kcat | kcat", "MirrorMaker 2")


def chosen(names: Sequence[str], directory: Path) -> list[MirrorProgram]:
    """The programs of these names. What must be built is built into `directory`."""
    made: dict[str, Callable[[], MirrorProgram]] = {
        "ingestd": IngestdMirror,
        "franz-go": lambda: Franz.built(directory),
        "kcat | kcat": Kcat,
        "MirrorMaker 2": MirrorMaker,
    }
    return [made[name]() for name in names]
