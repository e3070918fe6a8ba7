"""One function per API: makes the request in the highest version that both sides speak. Only here are versions chosen.

Each returns a `Build`: given the broker's versions, it makes the kio request. It raises `UnsupportedVersion` if none of
these versions can express what is asked. The modules are named after their subjects. The most used functions can be
imported from here.
"""

from ingestd.wire.requests.build import Build
from ingestd.wire.requests.cluster import describe_cluster, find_coordinators, metadata
from ingestd.wire.requests.configs import describe_configs
from ingestd.wire.requests.offsets import EARLIEST, LATEST, OffsetAt, list_offsets
from ingestd.wire.requests.topics import NewPartitions, NewTopic, create_partitions, create_topics, delete_topics
from ingestd.wire.requests.transactions import init_producer_id

__all__ = [
    "EARLIEST",
    "LATEST",
    "Build",
    "NewPartitions",
    "NewTopic",
    "OffsetAt",
    "create_partitions",
    "create_topics",
    "delete_topics",
    "describe_cluster",
    "describe_configs",
    "find_coordinators",
    "init_producer_id",
    "list_offsets",
    "metadata",
]
