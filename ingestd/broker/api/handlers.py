"""The table of handlers: which API in which versions. Dispatch and ApiVersions read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.broker.api import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    update_features,
    write_txn_markers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context

__all__ = ["HANDLERS", "Handler"]


@dataclass(frozen=True, slots=True)
class Handler:
    """Answers one API in `versions`. ApiVersions takes any version, to answer with the supported ones.

    `handle` is called in the order of a connection's requests. If it returns a coroutine, the next request starts when
    that is done. With `overlaps`, a request has taken effect when `handle` returns, and the coroutine only waits: then
    the next request of the same API starts at once. A coroutine is cancelled when its client is gone. So what others
    need to know is never in its variables.
    """

    versions: range
    handle: Callable[[Context, Request], Handled]
    overlaps: bool = False

    def takes(self, version: int) -> bool:
        """Whether a request of this version may be handed to it."""
        return version in self.versions


_OTHERS: Final = (
    consumer_group_describe,
    consumer_group_heartbeat,
    produce,
    fetch,
    list_offsets,
    metadata,
    find_coordinator,
    create_topics,
    delete_topics,
    delete_records,
    init_producer_id,
    offset_for_leader_epoch,
    describe_configs,
    alter_configs,
    incremental_alter_configs,
    create_partitions,
    describe_cluster,
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    txn_offset_commit,
    write_txn_markers,
    describe_transactions,
    list_transactions,
    describe_producers,
    alter_client_quotas,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    create_acls,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_log_dirs,
    describe_topic_partitions,
    elect_leaders,
    list_config_resources,
    list_partition_reassignments,
    update_features,
    sasl_handshake,
    sasl_authenticate,
    alter_user_scram_credentials,
    describe_user_scram_credentials,
)
"""All APIs but ApiVersions, which tells what there is."""

_VERSIONS: Final = {module.API: module.VERSIONS for module in (api_versions, *_OTHERS)}

HANDLERS: Final[Mapping[int, Handler]] = {
    **{module.API: Handler(module.VERSIONS, module.handle, overlaps=module is produce) for module in _OTHERS},
    api_versions.API: Handler(range(1 << 15), api_versions.ApiVersionsHandler(_VERSIONS)),
}
