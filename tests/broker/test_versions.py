"""Every API in every version that the broker says it speaks: the request is taken and the answer can be read."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from embedded.batches import batch_of
from embedded.raw import RawClient, entity

from ingestd.broker.api.api_versions import VERSIONS as API_VERSIONS_VERSIONS
from ingestd.broker.api.handlers import HANDLERS
from ingestd.broker.api.init_producer_id import VERSIONS as INIT_PRODUCER_ID_VERSIONS
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api
from ingestd.wire.codec import skip_response_header
from ingestd.wire.produce import produce_request, read_produce_response

if TYPE_CHECKING:
    from embedded.process import BrokerProcess

SECOND = timedelta(seconds=1)


class Schema:
    """Makes request parts of one version, without the fields that it does not have."""

    def __init__(self, api: Api, version: int) -> None:
        self._module = import_module(f"kio.schema.{api.name}.v{version}.request")
        self.version = version

    def __call__(self, kind: str, **fields: Any) -> Any:
        made = getattr(self._module, kind)
        known = {field.name for field in dataclasses.fields(made)}
        return made(**{name: value for name, value in fields.items() if name in known})

    def has(self, kind: str) -> bool:
        return hasattr(self._module, kind)


def request(api: Api, version: int, topic: str, topic_id: UUID) -> Any:  # noqa: C901 - one case per API
    """One that asks for something of `topic`, which has two partitions and one record."""
    make = Schema(api, version)
    match api:
        case Api.api_versions:
            return make("ApiVersionsRequest", client_software_name="x", client_software_version="y")
        case Api.metadata:
            named = (make("MetadataRequestTopic", name=topic, topic_id=None),)
            return make("MetadataRequest", topics=named, include_topic_authorized_operations=False,
                        include_cluster_authorized_operations=False)  # fmt: skip
        case Api.fetch:
            partition = make("FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
            topics = (make("FetchTopic", topic=topic, topic_id=topic_id, partitions=(partition,)),)
            return make(
                "FetchRequest", replica_id=-1, max_wait=SECOND, min_bytes=1, topics=topics, forgotten_topics_data=()
            )
        case Api.list_offsets:
            partition = make("ListOffsetsPartition", partition_index=0, timestamp=-1)
            topics = (make("ListOffsetsTopic", name=topic, partitions=(partition,)),)
            return make("ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=topics, timeout=SECOND)
        case Api.find_coordinator:
            return make("FindCoordinatorRequest", key="g", key_type=0, coordinator_keys=("g", "h"))
        case Api.join_group:
            protocol = make("JoinGroupRequestProtocol", name="range", metadata=b"")
            timeouts = {"session_timeout": SECOND * 10, "rebalance_timeout": SECOND}
            return make("JoinGroupRequest", group_id=f"g{version}", member_id="", protocol_type="consumer",
                        protocols=(protocol,), **timeouts)  # fmt: skip
        case Api.sync_group:
            return make("SyncGroupRequest", group_id="g", generation_id=1, member_id="nobody", protocol_type="consumer",
                        protocol_name="range", assignments=())  # fmt: skip
        case Api.heartbeat:
            return make("HeartbeatRequest", group_id="g", generation_id=1, member_id="nobody")
        case Api.leave_group:
            going = (make("MemberIdentity", member_id="nobody"),) if make.has("MemberIdentity") else ()
            return make("LeaveGroupRequest", group_id="g", member_id="nobody", members=going)
        case Api.offset_commit:
            partition = make("OffsetCommitRequestPartition", partition_index=0, committed_offset=7,
                             committed_metadata="m")  # fmt: skip
            topics = (make("OffsetCommitRequestTopic", name=topic, topic_id=topic_id, partitions=(partition,)),)
            return make("OffsetCommitRequest", group_id="committing", member_id="", retention_time=-SECOND / 1000,
                        topics=topics)  # fmt: skip
        case Api.offset_fetch:
            of_one = "OffsetFetchRequestTopic" if make.has("OffsetFetchRequestTopic") else "OffsetFetchRequestTopics"
            topics = (make(of_one, name=topic, topic_id=topic_id, partition_indexes=(0,)),)
            groups = ()
            if make.has("OffsetFetchRequestGroup"):
                groups = (make("OffsetFetchRequestGroup", group_id="committing", topics=topics),)
            return make("OffsetFetchRequest", group_id="committing", topics=topics, groups=groups)
        case Api.consumer_group_heartbeat:
            return make("ConsumerGroupHeartbeatRequest", group_id=f"new{version}", member_id="m", member_epoch=0,
                        rebalance_timeout=SECOND, subscribed_topic_names=(topic,), topic_partitions=())  # fmt: skip
        case Api.consumer_group_describe:
            return make("ConsumerGroupDescribeRequest", group_ids=("nowhere",), include_authorized_operations=False)
        case Api.list_groups:
            return make("ListGroupsRequest", states_filter=("empty",), types_filter=("classic",))
        case Api.describe_groups:
            return make("DescribeGroupsRequest", groups=("nowhere",), include_authorized_operations=False)
        case Api.delete_groups:
            return make("DeleteGroupsRequest", groups_names=("nowhere",))
        case Api.offset_delete:
            partition = make("OffsetDeleteRequestPartition", partition_index=0)
            topics = (make("OffsetDeleteRequestTopic", name=topic, partitions=(partition,)),)
            return make("OffsetDeleteRequest", group_id="nowhere", topics=topics)
        case Api.create_topics:
            topics = (make("CreatableTopic", name=f"{topic}-{version}", num_partitions=2, replication_factor=1,
                           assignments=(), configs=()),)  # fmt: skip
            return make("CreateTopicsRequest", topics=topics, timeout=SECOND)
        case Api.delete_topics:
            states = (make("DeleteTopicState", name="nowhere", topic_id=None),) if make.has("DeleteTopicState") else ()
            return make("DeleteTopicsRequest", topic_names=("nowhere",), topics=states, timeout=SECOND)
        case Api.delete_records:
            partition = make("DeleteRecordsPartition", partition_index=1, offset=-1)
            topics = (make("DeleteRecordsTopic", name=topic, partitions=(partition,)),)
            return make("DeleteRecordsRequest", topics=topics, timeout=SECOND)
        case Api.init_producer_id:
            return make("InitProducerIdRequest", transactional_id=None, transaction_timeout=SECOND)
        case Api.add_partitions_to_txn:
            asked = (make("AddPartitionsToTxnTopic", name=topic, partitions=(0,)),)
            transactions = ()
            if make.has("AddPartitionsToTxnTransaction"):
                transactions = (make("AddPartitionsToTxnTransaction", transactional_id="x", producer_id=1,
                                     producer_epoch=0, topics=asked),)  # fmt: skip
            return make("AddPartitionsToTxnRequest", v3_and_below_transactional_id="x", v3_and_below_producer_id=1,
                        v3_and_below_producer_epoch=0, v3_and_below_topics=asked,
                        transactions=transactions)  # fmt: skip
        case Api.add_offsets_to_txn:
            return make("AddOffsetsToTxnRequest", transactional_id="x", producer_id=1, producer_epoch=0, group_id="g")
        case Api.txn_offset_commit:
            partition = make("TxnOffsetCommitRequestPartition", partition_index=0, committed_offset=7,
                             committed_metadata="m")  # fmt: skip
            topics = (make("TxnOffsetCommitRequestTopic", name=topic, partitions=(partition,)),)
            return make("TxnOffsetCommitRequest", transactional_id="x", group_id="committing", producer_id=1,
                        producer_epoch=0, topics=topics)  # fmt: skip
        case Api.end_txn:
            return make("EndTxnRequest", transactional_id="x", producer_id=1, producer_epoch=0, committed=True)
        case Api.write_txn_markers:
            topics = (make("WritableTxnMarkerTopic", name=topic, partition_indexes=(1,)),)
            markers = (make("WritableTxnMarker", producer_id=77, producer_epoch=0, transaction_result=False,
                            topics=topics, coordinator_epoch=0),)  # fmt: skip
            return make("WriteTxnMarkersRequest", markers=markers)
        case Api.describe_transactions:
            return make("DescribeTransactionsRequest", transactional_ids=("nobody",))
        case Api.list_transactions:
            return make("ListTransactionsRequest", state_filters=("Ongoing",))
        case Api.describe_producers:
            return make("DescribeProducersRequest", topics=(make("TopicRequest", name=topic, partition_indexes=(0,)),))
        case Api.offset_for_leader_epoch:
            partition = make("OffsetForLeaderPartition", partition=0, leader_epoch=0)
            topics = (make("OffsetForLeaderTopic", topic=topic, partitions=(partition,)),)
            return make("OffsetForLeaderEpochRequest", topics=topics)
        case Api.describe_configs:
            resource = make("DescribeConfigsResource", resource_type=2, resource_name=topic, configuration_keys=None)
            return make("DescribeConfigsRequest", resources=(resource,), include_synonyms=True)
        case Api.create_partitions:
            topics = (make("CreatePartitionsTopic", name=topic, count=5, assignments=None),)
            return make("CreatePartitionsRequest", topics=topics, timeout=SECOND, validate_only=True)
        case Api.describe_cluster:
            return make(
                "DescribeClusterRequest", include_cluster_authorized_operations=False, include_fenced_brokers=False
            )
        case Api.alter_configs:
            config = make("AlterableConfig", name="retention.bytes", value="-1")
            resource = make("AlterConfigsResource", resource_type=2, resource_name=topic, configs=(config,))
            return make("AlterConfigsRequest", resources=(resource,), validate_only=True)
        case Api.incremental_alter_configs:
            config = make("AlterableConfig", name="retention.bytes", config_operation=0, value="-1")
            resource = make("AlterConfigsResource", resource_type=2, resource_name=topic, configs=(config,))
            return make("IncrementalAlterConfigsRequest", resources=(resource,), validate_only=True)
        case _:
            return administration(api, make, topic)


def administration(api: Api, make: Schema, topic: str) -> Any:  # noqa: C901 - one case per API
    """What tools ask about the place of partitions, quotas and access."""
    match api:
        case Api.describe_log_dirs:
            asked = make("DescribableLogDirTopic", topic=topic, partitions=(0, 1))
            return make("DescribeLogDirsRequest", topics=(asked,))
        case Api.alter_replica_log_dirs:
            asked = make("AlterReplicaLogDirTopic", name=topic, partitions=(0,))
            return make("AlterReplicaLogDirsRequest", dirs=(make("AlterReplicaLogDir", path="/x", topics=(asked,)),))
        case Api.elect_leaders:
            asked = make("TopicPartitions", topic=topic, partitions=(0,))
            return make("ElectLeadersRequest", election_type=0, topic_partitions=(asked,))
        case Api.alter_partition_reassignments:
            partition = make("ReassignablePartition", partition_index=0, replicas=(1,))
            asked = make("ReassignableTopic", name=topic, partitions=(partition,))
            return make("AlterPartitionReassignmentsRequest", topics=(asked,))
        case Api.list_partition_reassignments:
            return make("ListPartitionReassignmentsRequest", topics=None)
        case Api.describe_topic_partitions:
            return make("DescribeTopicPartitionsRequest", topics=(make("TopicRequest", name=topic),))
        case Api.describe_client_quotas:
            return make("DescribeClientQuotasRequest", components=(), strict=False)
        case Api.alter_client_quotas:
            entity = make("EntityData", entity_type="user", entity_name="u")
            change = make("OpData", key="producer_byte_rate", value=1.0, remove=False)
            entry = make("EntryData", entity=(entity,), ops=(change,))
            return make("AlterClientQuotasRequest", entries=(entry,), validate_only=True)
        case Api.update_features:
            update = make("FeatureUpdateKey", feature="f", max_version_level=1, upgrade_type=1, allow_downgrade=False)
            return make("UpdateFeaturesRequest", feature_updates=(update,), validate_only=True)
        case Api.sasl_handshake:
            return make("SaslHandshakeRequest", mechanism="PLAIN")
        case Api.sasl_authenticate:
            return make("SaslAuthenticateRequest", auth_bytes=b"\0me\0secret")
        case Api.describe_user_scram_credentials:
            return make("DescribeUserScramCredentialsRequest", users=(make("UserName", name="nobody"),))
        case Api.alter_user_scram_credentials:
            removed = make("ScramCredentialDeletion", name="nobody", mechanism=1)
            return make("AlterUserScramCredentialsRequest", deletions=(removed,), upsertions=())
        case Api.list_config_resources:
            return make("ListConfigResourcesRequest", resource_types=())
        case Api.describe_acls:
            return make("DescribeAclsRequest", **FILTER)
        case Api.delete_acls:
            return make("DeleteAclsRequest", filters=(make("DeleteAclsFilter", **FILTER),))
        case Api.create_acls:
            creation = make("AclCreation", resource_type=2, resource_name=topic, principal="User:u", host="*",
                            operation=3, permission_type=3)  # fmt: skip
            return make("CreateAclsRequest", creations=(creation,))
    raise AssertionError(api)


FILTER = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
"""All rules about everything."""

REFUSED = {
    Api.add_partitions_to_txn: ErrorCode.invalid_producer_id_mapping,
    Api.add_offsets_to_txn: ErrorCode.invalid_producer_id_mapping,
    Api.txn_offset_commit: ErrorCode.invalid_producer_id_mapping,
    Api.end_txn: ErrorCode.invalid_producer_id_mapping,
    Api.describe_transactions: ErrorCode.transactional_id_not_found,
    Api.delete_topics: ErrorCode.unknown_topic_or_partition,
    Api.join_group: ErrorCode.member_id_required,
    Api.sync_group: ErrorCode.unknown_member_id,
    Api.heartbeat: ErrorCode.unknown_member_id,
    Api.leave_group: ErrorCode.unknown_member_id,
    Api.describe_groups: ErrorCode.group_id_not_found,
    Api.consumer_group_describe: ErrorCode.group_id_not_found,
    Api.delete_groups: ErrorCode.group_id_not_found,
    Api.offset_delete: ErrorCode.group_id_not_found,
    Api.alter_replica_log_dirs: ErrorCode.log_dir_not_found,
    Api.elect_leaders: ErrorCode.election_not_needed,
    Api.alter_client_quotas: ErrorCode.unsupported_version,
    Api.update_features: ErrorCode.invalid_update_version,
    Api.sasl_handshake: ErrorCode.illegal_sasl_state,
    Api.sasl_authenticate: ErrorCode.illegal_sasl_state,
    Api.describe_user_scram_credentials: ErrorCode.resource_not_found,
    Api.alter_user_scram_credentials: ErrorCode.resource_not_found,
    Api.describe_acls: ErrorCode.security_disabled,
    Api.create_acls: ErrorCode.security_disabled,
    Api.delete_acls: ErrorCode.security_disabled,
}
"""What some requests of `request` are refused with."""

VERSIONS = [
    (Api(key), version)
    for key, handler in HANDLERS.items()
    for version in (API_VERSIONS_VERSIONS if key == Api.api_versions else handler.versions)
    if key != Api.produce
]


@pytest.fixture(scope="module")
def prepared(embedded: BrokerProcess) -> UUID:
    with RawClient(embedded.port) as client:
        topic_id: UUID = client.metadata("versions").topics[0].topic_id
        assert client.produce("versions", 0, batch_of([b"x"])).error is ErrorCode.none
        for key_type in (0, 1):
            client.ask(entity(Api.find_coordinator, 2, "FindCoordinatorRequest", key="g", key_type=key_type))
    return topic_id


def codes(value: Any) -> set[int]:
    """Every error code in an answer."""
    if isinstance(value, tuple):
        return set().union(*map(codes, value))
    if not dataclasses.is_dataclass(value):
        return set()
    found = set()
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        found |= {int(inner)} if field.name in {"error_code", "partition_error_code"} else codes(inner)
    return found


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=[f"{api.name}-{version}" for api, version in VERSIONS])
def test_every_version_is_answered_in_that_version(
    embedded: BrokerProcess, prepared: UUID, api: Api, version: int
) -> None:
    with RawClient(embedded.port) as client:
        answer = client.ask(request(api, version, "versions", prepared))
    expected = REFUSED.get(api, ErrorCode.none)
    assert codes(answer) in ({0}, set()) or codes(answer) - {0} == {int(expected)}
    if api is Api.fetch:
        assert answer.responses[0].partitions[0].records


@pytest.mark.parametrize("known", [True, False])
def test_produce_finds_topics_by_id(embedded: BrokerProcess, prepared: UUID, known: bool) -> None:
    topic_id = prepared if known else UUID(int=7)
    with RawClient(embedded.port) as client:
        client.send(Api.produce, 13, produce_request(13, -1, 1000, None, [("", topic_id, [(1, batch_of([b"x"]))])]))
        answer = client.receive()
    assert answer is not None
    (told,) = read_produce_response(13, skip_response_header(Api.produce, 13, answer))
    assert (told.topic_id, told.error) == (topic_id, ErrorCode.none if known else ErrorCode.unknown_topic_id)


def test_what_kafka_has_not_released_is_not_offered() -> None:
    """InitProducerId 6 belongs to two-phase commit (KIP-939), which Kafka 4.3 marks as unstable."""
    assert 6 not in INIT_PRODUCER_ID_VERSIONS
