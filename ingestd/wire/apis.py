"""The Kafka APIs by key, and from which version on each uses flexible headers (KIP-482)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = ["Api", "api_name", "is_flexible"]


class Api(IntEnum):
    """API keys (https://kafka.apache.org/protocol#protocol_api_keys), with the names of kio's modules."""

    produce = 0
    fetch = 1
    list_offsets = 2
    metadata = 3
    offset_commit = 8
    offset_fetch = 9
    find_coordinator = 10
    join_group = 11
    heartbeat = 12
    leave_group = 13
    sync_group = 14
    describe_groups = 15
    list_groups = 16
    sasl_handshake = 17
    api_versions = 18
    create_topics = 19
    delete_topics = 20
    delete_records = 21
    init_producer_id = 22
    offset_for_leader_epoch = 23
    add_partitions_to_txn = 24
    add_offsets_to_txn = 25
    end_txn = 26
    write_txn_markers = 27
    txn_offset_commit = 28
    describe_acls = 29
    create_acls = 30
    delete_acls = 31
    describe_configs = 32
    alter_configs = 33
    alter_replica_log_dirs = 34
    describe_log_dirs = 35
    sasl_authenticate = 36
    create_partitions = 37
    create_delegation_token = 38
    renew_delegation_token = 39
    expire_delegation_token = 40
    describe_delegation_token = 41
    delete_groups = 42
    elect_leaders = 43
    incremental_alter_configs = 44
    alter_partition_reassignments = 45
    list_partition_reassignments = 46
    offset_delete = 47
    describe_client_quotas = 48
    alter_client_quotas = 49
    describe_user_scram_credentials = 50
    alter_user_scram_credentials = 51
    describe_quorum = 55
    update_features = 57
    describe_cluster = 60
    describe_producers = 61
    unregister_broker = 64
    describe_transactions = 65
    list_transactions = 66
    consumer_group_heartbeat = 68
    consumer_group_describe = 69
    list_config_resources = 74
    describe_topic_partitions = 75


_NEVER: Final = 1 << 15

# From the "flexibleVersions" of Kafka's message definitions; APIs not named here were flexible from version 0.
_FIRST_FLEXIBLE: Final = {
    Api.produce: 9,
    Api.fetch: 12,
    Api.list_offsets: 6,
    Api.metadata: 9,
    Api.offset_commit: 8,
    Api.offset_fetch: 6,
    Api.find_coordinator: 3,
    Api.join_group: 6,
    Api.heartbeat: 4,
    Api.leave_group: 4,
    Api.sync_group: 4,
    Api.describe_groups: 5,
    Api.list_groups: 3,
    Api.sasl_handshake: _NEVER,
    Api.api_versions: 3,
    Api.create_topics: 5,
    Api.delete_topics: 4,
    Api.delete_records: 2,
    Api.init_producer_id: 2,
    Api.offset_for_leader_epoch: 4,
    Api.add_partitions_to_txn: 3,
    Api.add_offsets_to_txn: 3,
    Api.end_txn: 3,
    Api.write_txn_markers: 1,
    Api.txn_offset_commit: 3,
    Api.describe_acls: 2,
    Api.create_acls: 2,
    Api.delete_acls: 2,
    Api.describe_configs: 4,
    Api.alter_configs: 2,
    Api.alter_replica_log_dirs: 2,
    Api.describe_log_dirs: 2,
    Api.sasl_authenticate: 2,
    Api.create_partitions: 2,
    Api.create_delegation_token: 2,
    Api.renew_delegation_token: 2,
    Api.expire_delegation_token: 2,
    Api.describe_delegation_token: 2,
    Api.delete_groups: 2,
    Api.elect_leaders: 2,
    Api.incremental_alter_configs: 1,
    Api.offset_delete: _NEVER,
    Api.describe_client_quotas: 1,
    Api.alter_client_quotas: 1,
}


def is_flexible(api: int, version: int) -> bool:
    """Whether this version has tagged fields and compact lengths, in body and header (not in ApiVersions answers)."""
    return version >= _FIRST_FLEXIBLE.get(api, 0)  # type: ignore[call-overload,no-any-return]  # an IntEnum key equals its int


def api_name(api: int) -> str:
    """The API's name, or its number if this package does not know it."""
    try:
        return Api(api).name
    except ValueError:
        return f"api {api}"
