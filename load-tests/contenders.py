"""The programs that move a log file into a topic, each set up for the same job: acks, linger, codec and level.

Whatever cannot be equal is said in `delivery`, which stands beside every figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from workload import ingestd, program

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Contender", "FluentBit", "Ingestd", "Job", "Kcat", "Rsyslog", "chosen"]

LINGER_MS = 50


@dataclass(frozen=True, slots=True)
class Job:
    """One file into one topic."""

    log: Path
    servers: str
    topic: str
    codec: str
    level: int | None
    """The codec's level; None: the program's own default."""
    directory: Path
    """For configuration and state; empty."""


class Contender(Protocol):
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
        """Whether it exits when the file is delivered; if not, it is stopped when the topic has everything."""
        ...

    def command(self, job: Job) -> list[str]:
        """Write what configuration the job needs; the command line."""
        ...


@dataclass(frozen=True, slots=True)
class Ingestd:
    """This project, one worker."""

    workers: int = 1
    name: str = "ingestd"
    delivery: str = "at least once: idempotent, positions in SQLite after acks"
    ends_by_itself: bool = True

    def command(self, job: Job) -> list[str]:
        """`ingestd run --once`."""
        level = "" if job.level is None else f"compression_level = {job.level}\n"
        servers = ", ".join(f'"{server}"' for server in job.servers.split(","))
        configuration = job.directory / "ingestd.toml"
        configuration.write_text(
            f'[daemon]\nworkers = {self.workers}\nstate = "{job.directory}/state"\nhttp = ""\n\n'
            f"[clusters.bench]\nbootstrap = [{servers}]\n\n"
            f'[tails.bench]\npaths = ["{job.log}"]\ncluster = "bench"\ntopic = "{job.topic}"\n'
            f'compression = "{job.codec}"\n{level}linger = {LINGER_MS / 1000}\n'
        )
        return [*ingestd(), "run", "--once", str(configuration)]


@dataclass(frozen=True, slots=True)
class Kcat:
    """kcat (librdkafka): reads the file once, keeps no position."""

    name: str = "kcat"
    delivery: str = "once through, no position, not idempotent"
    ends_by_itself: bool = True

    def command(self, job: Job) -> list[str]:
        """`kcat -P -l`."""
        level = [] if job.level is None else ["-X", f"compression.level={job.level}"]
        return [
            program("kcat"), "-P", "-l", "-b", job.servers, "-t", job.topic, "-z", job.codec, *level,
            "-X", "acks=all", "-X", f"linger.ms={LINGER_MS}", str(job.log),
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rsyslog:
    """rsyslog: imfile to omkafka (librdkafka)."""

    name: str = "rsyslog"
    delivery: str = "at least once from a queue in memory, imfile state file"
    ends_by_itself: bool = False

    def command(self, job: Job) -> list[str]:
        """`rsyslogd -n`."""
        servers = ", ".join(f'"{server}"' for server in job.servers.split(","))
        options = [f"compression.codec={job.codec}", "acks=all", f"linger.ms={LINGER_MS}"]
        options += [] if job.level is None else [f"compression.level={job.level}"]
        quoted = ", ".join(f'"{option}"' for option in options)
        configuration = job.directory / "rsyslog.conf"
        configuration.write_text(
            f'global(workDirectory="{job.directory}" maxMessageSize="64k")\n'
            'module(load="imfile" mode="inotify")\nmodule(load="omkafka")\n'
            'template(name="line" type="string" string="%msg%")\n'
            f'input(type="imfile" File="{job.log}" Tag="x" ruleset="ship")\n'
            'ruleset(name="ship" queue.type="FixedArray" queue.size="100000" queue.dequeueBatchSize="4096") {\n'
            f'  action(type="omkafka" broker=[{servers}] topic="{job.topic}" template="line" partitions.auto="on"\n'
            f"         confParam=[{quoted}])\n}}\n"
        )
        return [program("rsyslogd"), "-n", "-f", str(configuration), "-i", str(job.directory / "rsyslog.pid")]


@dataclass(frozen=True, slots=True)
class FluentBit:
    """Fluent Bit: in_tail to out_kafka (librdkafka), the line as it is."""

    binary: Path
    name: str = "fluent-bit"
    delivery: str = "counted as delivered once queued, in_tail offsets in SQLite"
    ends_by_itself: bool = False

    def command(self, job: Job) -> list[str]:
        """`fluent-bit -c`."""
        options = {"compression.codec": job.codec, "request.required.acks": "-1", "linger.ms": str(LINGER_MS)}
        if job.level is not None:
            options["compression.level"] = str(job.level)
        lines = "".join(f"    rdkafka.{name} {value}\n" for name, value in options.items())
        configuration = job.directory / "fluent-bit.conf"
        configuration.write_text(
            "[SERVICE]\n    Flush 0.1\n    Log_Level warn\n"
            f"[INPUT]\n    Name tail\n    Path {job.log}\n    Read_from_Head true\n    DB {job.directory}/tail.db\n"
            "    Mem_Buf_Limit 64M\n    Buffer_Max_Size 1M\n"
            f"[OUTPUT]\n    Name kafka\n    Match *\n    Brokers {job.servers}\n    Topics {job.topic}\n"
            f"    Format raw\n    raw_log_key log\n{lines}"
        )
        return [str(self.binary), "-c", str(configuration)]


def chosen(names: Sequence[str], fluent_bit: Path | None) -> list[Contender]:
    """The contenders named. Raises `ValueError` for a name that is none of them."""
    known: dict[str, Contender] = {"ingestd": Ingestd(), "kcat": Kcat(), "rsyslog": Rsyslog()}
    if fluent_bit is not None:
        known["fluent-bit"] = FluentBit(fluent_bit)
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(f"no such contender: {', '.join(unknown)} ({', '.join(known)})")
    return [known[name] for name in names]
