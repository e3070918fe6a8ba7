"""One function per API: what to ask, in the highest version both sides speak. Nobody else looks at request versions.

Each returns a `Build`: given what a broker speaks, it makes the kio request, or raises `UnsupportedVersion` where the
broker's versions cannot express what is asked. The modules are named after what they ask about; those that nearly
everybody needs are here as well.
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
