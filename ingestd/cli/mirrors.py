"""`ingestd mirror`: whether a configured mirror's target has what its source has, and consumers can go over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.cli.configured import FIRST_ANSWER_TIMEOUT, configured_access
from ingestd.errors import ConfigurationError
from ingestd.figures import in_count
from ingestd.mirror.hand_over import hand_over, way_back
from ingestd.mirror.route import MirrorRoute
from ingestd.mirror.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingestd.daemon.configuration import Configuration
    from ingestd.mirror.hand_over import HandOver
    from ingestd.mirror.verify import PartitionVerdict, Verification

__all__ = [
    "HAND_OVER_HEADER",
    "HEADER",
    "hand_over_mirror",
    "hand_over_remarks",
    "hand_over_rows",
    "remarks",
    "reverse",
    "rows",
    "verify_mirrors",
]

HAND_OVER_HEADER = ("GROUP", "PARTITIONS", "TRANSLATED", "LAG", "VERDICT")
HEADER = ("MIRROR", "TOPIC", "PARTITION", "TO", "SOURCE", "TARGET", "DUPLICATES", "VERDICT")


async def verify_mirrors(
    configuration: Configuration, name: str | None, *, to_end: bool = False
) -> Sequence[Verification]:
    """Verify one mirror of a configuration, or all of them, one after the other. See `ingestd.mirror.verify.verify`.

    Raises `ConfigurationError` where there is no such mirror, and what `verify` raises.
    """
    verified = []
    for route in _mirrors(configuration, name):
        source, target = (configured_access(configuration, cluster) for cluster in (route.source, route.target))
        async with source.client() as from_client, target.client() as to_client:
            verified.append(await verify(route, from_client, to_client, to_end=to_end))
    return verified


async def hand_over_mirror(configuration: Configuration, name: str, timeout: float) -> HandOver:
    """See `ingestd.mirror.hand_over.hand_over`. Raises `ConfigurationError` where there is no such mirror."""
    (route,) = _mirrors(configuration, name)
    first = min(timeout, FIRST_ANSWER_TIMEOUT)
    source, target = (configured_access(configuration, cluster, first) for cluster in (route.source, route.target))
    async with source.client() as from_client, target.client() as to_client:
        return await hand_over(route, from_client, to_client, timeout=timeout)


def reverse(configuration: Configuration, name: str) -> str:
    """See `ingestd.mirror.hand_over.way_back`. Raises `ConfigurationError` where there is no such mirror."""
    (route,) = _mirrors(configuration, name)
    return way_back(route)


def _mirrors(configuration: Configuration, name: str | None) -> list[MirrorRoute]:
    """One mirror of a configuration, or all."""
    mirrors = {route.name: route for route in configuration.routes if isinstance(route, MirrorRoute)}
    if not mirrors:
        raise ConfigurationError(f"{configuration.file}: no mirrors; expected a [mirrors.NAME]")
    if name is not None and name not in mirrors:
        raise ConfigurationError(f"{configuration.file}: no such [mirrors.NAME]: {name} ({', '.join(mirrors)})")
    return list(mirrors.values()) if name is None else [mirrors[name]]


def hand_over_rows(handed: HandOver) -> Iterator[Sequence[object]]:
    """For people: a row for each group, under `HAND_OVER_HEADER`."""
    ready = "not before all is copied" if handed.behind else "ready"
    for one in handed.groups:
        yield one.group, one.partitions, one.translated, one.lag, ready if one.ready else "; ".join(one.problems)


def hand_over_remarks(handed: HandOver) -> Iterator[str]:
    """For people: what concerns the mirror as a whole."""
    for partition, offsets in handed.behind.items():
        yield f"{partition}: not copied yet: {in_count(offsets, 'offset')}"
    for partition, offsets in handed.held_back.items():
        yield f"{partition}: copied once an open transaction has ended: {in_count(offsets, 'offset')}"
    if handed.behind:
        yield "the mirror must run meanwhile: does it?"
    for group in handed.groups:
        if group.ahead:
            yield (
                f"{group.group}: in {in_count(group.ahead, 'partition')} its offset on the target is further than it "
                "has read at the source: it has read on the target, or was set back at the source. "
                "The offset is left as it is"
            )
    if not handed.groups:
        yield "no group that matches has committed an offset of what is mirrored"
    elif handed.same_offsets:
        yield "offsets are the same on both sides"


def rows(verified: Sequence[Verification], *, strict: bool = False) -> Iterator[Sequence[object]]:
    """For people: a row for each partition, under `HEADER`."""
    for mirror in verified:
        for one in mirror.partitions:
            counts = one.source_records, one.target_records, one.duplicates
            verdict = "same" if one.same(strict=strict) else _fault(one)
            yield mirror.mirror, one.topic, one.partition, one.compared_to, *counts, verdict


def remarks(verified: Sequence[Verification]) -> Iterator[str]:
    """For people: what was not compared, and why."""
    for mirror in verified:
        for one in mirror.partitions:
            for note in one.notes:
                yield f"{mirror.mirror}, {one.topic}-{one.partition}: {note}"


def _fault(one: PartitionVerdict) -> str:
    if one.problem is not None:
        return f"not compared: {one.problem}"
    difference = one.difference
    if difference is None:
        return "duplicates"
    what = difference.what if difference.what in ("missing", "extra", "order") else f"{difference.what} not the same"
    return f"{what}: source offset {difference.source_offset}, target offset {difference.target_offset}"
