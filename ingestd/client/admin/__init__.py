"""Cluster administration: everything of a cluster that can be described or changed, except its records.

Results are typed, and each item has its own error. A request goes to the broker that answers it: the controller, a
coordinator, a leader, a named node, every node, or any node. If that has changed, or a connection was lost, the request
is repeated until the deadline.
"""

from __future__ import annotations

from ingestd.client.admin.acls import (
    Acl,
    AclAdmin,
    AclFilter,
    AclOperation,
    AclOutcome,
    AclPatternType,
    AclPermission,
    AclResourceType,
    DeletedAcls,
)
from ingestd.client.admin.cluster import (
    ClusterAdministration,
    ClusterDescription,
    FeatureRange,
    FeaturesDescription,
    FeatureUpgrade,
    QuorumDescription,
    QuorumReplica,
)
from ingestd.client.admin.configs import (
    AlterOperation,
    ConfigAdmin,
    ConfigChange,
    ConfigEntry,
    ConfigOutcome,
    ConfigResource,
    ConfigsDescription,
    ConfigSource,
    ConfigSynonym,
    ResourceType,
)
from ingestd.client.admin.group_offsets import GroupOffsetAdmin, GroupOffsets
from ingestd.client.admin.groups import (
    GroupAdmin,
    GroupDescription,
    GroupListing,
    GroupOutcome,
    Listing,
    MemberDescription,
    MemberOutcome,
    MemberToRemove,
)
from ingestd.client.admin.log_dirs import BrokerLogDirs, LogDir, LogDirAdmin, LogDirReplica, ReplicaMove
from ingestd.client.admin.offsets import EARLIEST, LATEST, DeletedRecords, ListedOffset, LogAdmin, OffsetAt
from ingestd.client.admin.partitions import OngoingReassignment, PartitionAdmin, PartitionOutcome
from ingestd.client.admin.quotas import (
    ClientQuota,
    QuotaAdmin,
    QuotaComponent,
    QuotaEntity,
    QuotaMatch,
    QuotaOutcome,
)
from ingestd.client.admin.topics import CreatedTopic, NewPartitions, NewTopic, TopicAdmin, TopicOutcome
from ingestd.client.admin.transactions import (
    PartitionProducers,
    ProducerState,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
)
from ingestd.client.admin.users import NewScramCredential, ScramMechanism, ScramUser, UserAdmin, UserOutcome

__all__ = [
    "EARLIEST",
    "LATEST",
    "Acl",
    "AclFilter",
    "AclOperation",
    "AclOutcome",
    "AclPatternType",
    "AclPermission",
    "AclResourceType",
    "AlterOperation",
    "BrokerLogDirs",
    "ClientQuota",
    "ClusterAdmin",
    "ClusterDescription",
    "ConfigChange",
    "ConfigEntry",
    "ConfigOutcome",
    "ConfigResource",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigsDescription",
    "CreatedTopic",
    "DeletedAcls",
    "DeletedRecords",
    "FeatureRange",
    "FeatureUpgrade",
    "FeaturesDescription",
    "GroupDescription",
    "GroupListing",
    "GroupOffsets",
    "GroupOutcome",
    "ListedOffset",
    "Listing",
    "LogDir",
    "LogDirReplica",
    "MemberDescription",
    "MemberOutcome",
    "MemberToRemove",
    "NewPartitions",
    "NewScramCredential",
    "NewTopic",
    "OffsetAt",
    "OngoingReassignment",
    "PartitionOutcome",
    "PartitionProducers",
    "ProducerState",
    "QuorumDescription",
    "QuorumReplica",
    "QuotaComponent",
    "QuotaEntity",
    "QuotaMatch",
    "QuotaOutcome",
    "ReplicaMove",
    "ResourceType",
    "ScramMechanism",
    "ScramUser",
    "TopicOutcome",
    "TransactionDescription",
    "TransactionListing",
    "UserOutcome",
]


class ClusterAdmin(
    TopicAdmin,
    PartitionAdmin,
    LogAdmin,
    ConfigAdmin,
    AclAdmin,
    GroupAdmin,
    GroupOffsetAdmin,
    UserAdmin,
    QuotaAdmin,
    LogDirAdmin,
    TransactionAdmin,
    ClusterAdministration,
):
    """Topics, partitions, configurations, groups, offsets, ACLs, users, quotas, log directories, features, quorum.

    Example:
        async with Client(["kafka-1:9092"]) as client:
            admin = ClusterAdmin(client)
            for created in await admin.create_topics([NewTopic("orders", partitions=3)]):
                print(created.topic, created.error or "created")
            for name, topic in (await admin.describe_topics(["orders"])).items():
                print(name, len(topic.partitions))

    It uses the connections of a client. There is nothing to close.
    `timeout`, in seconds, is for the whole call, retries included. The error of one item is in its outcome. A
    `KafkaError` comes from the cluster. After `ConnectionLost` and `DeadlineExceeded` it is not known whether a change
    took effect. An error of the whole call is raised: no broker answered (`ConnectionLost`, `DeadlineExceeded`), no
    broker that was asked can do it (`UnsupportedVersion`), the client is closed (`Closed`).
    """
