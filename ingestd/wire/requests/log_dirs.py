"""Requests about the directories in which brokers keep their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import by_topic, made

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kio.static.protocol import RequestPayload

    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = ["alter_replica_log_dirs", "describe_log_dirs"]


def describe_log_dirs(partitions: Collection[tuple[str, int]] | None = None) -> Build:
    """The asked broker's directories, and what these partitions (None: all) take in them."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.describe_log_dirs, 1, 5)
        module = request_module("describe_log_dirs", version)
        topics = None
        if partitions is not None:
            topics = tuple(
                module.DescribableLogDirTopic(topic=topic, partitions=numbers)
                for topic, numbers in by_topic(partitions).items()
            )
        return made(module.DescribeLogDirsRequest(topics=topics))

    return build


def alter_replica_log_dirs(moves: Mapping[tuple[str, int], str]) -> Build:
    """Move the asked broker's replicas to other directories of its own; the answer has one error per partition."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.alter_replica_log_dirs, 1, 2)
        module = request_module("alter_replica_log_dirs", version)
        dirs: dict[str, list[tuple[str, int]]] = {}
        for partition, path in moves.items():
            dirs.setdefault(path, []).append(partition)
        return made(
            module.AlterReplicaLogDirsRequest(
                dirs=tuple(
                    module.AlterReplicaLogDir(
                        path=path,
                        topics=tuple(
                            module.AlterReplicaLogDirTopic(name=topic, partitions=numbers)
                            for topic, numbers in by_topic(partitions).items()
                        ),
                    )
                    for path, partitions in dirs.items()
                )
            )
        )

    return build
