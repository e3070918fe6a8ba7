"""Mirrors between clusters that are far apart: what of the throughput is left at 100 ms for there and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meter import measure
from mirror_programs import Copying, IngestdMirror, copied
from relay import relayed
from workload import delivered

if TYPE_CHECKING:
    from pathlib import Path

    from workload import KafkaCluster

__all__ = ["Distant", "distant"]

ROUND_TRIP = 0.1
"""Seconds there and back."""
RUN_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Distant:
    """One copy, with one of the clusters far away. All go through a relay, also without a delay."""

    case: str
    far: str
    gigabytes: float
    seconds: float
    megabytes_per_second: float


def distant(
    source: KafkaCluster, target: KafkaCluster, topic: str, case: str, size: int, cores: tuple[str, str], place: Path
) -> list[Distant]:
    """Copy a topic of `size` bytes with both clusters near, the source far, the target far. `cores`: ours, theirs.

    Raises `RuntimeError` unless the copy has exactly the topic's records.
    """
    found = []
    for far, delays in {"none": (0, 0), "the source": (ROUND_TRIP / 2, 0), "the target": (0, ROUND_TRIP / 2)}.items():
        job_place = place / f"{topic}-{far.split()[-1]}"
        job_place.mkdir(parents=True)
        addresses = [f"127.0.0.1:{next(iter(cluster.proxied))}" for cluster in (source, target)]
        lines = delivered(source, topic)
        job = Copying(*addresses, topic, 0, lines, job_place)
        with relayed(source.proxied, delays[0], cores[1]), relayed(target.proxied, delays[1], cores[1]):
            command = IngestdMirror().command(job)
            usage, _ = measure(command, cores=cores[0], log=job_place / "output.log", timeout=RUN_SECONDS)
        if (count := delivered(target, copied(topic))) != lines:
            raise RuntimeError(f"{case}, far: {far}: {count} records were copied, there are {lines}")
        target.clear()
        found.append(Distant(case, far, size / 1e9, usage.wall, size / 1e6 / usage.wall))
        print(f"{case}, far: {far}: {usage.wall:.1f} s", flush=True)
    return found
