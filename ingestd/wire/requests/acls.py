"""Requests about access control lists."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import made

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kio.static.protocol import RequestPayload

    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = ["AclFields", "create_acls", "delete_acls", "describe_acls"]

_USER_RESOURCE = 7
"""The resource type that came with version 3 (Kafka 3.3)."""


@dataclass(frozen=True, slots=True)
class AclFields:
    """One entry, or a filter: the protocol's numbers, and names that are None in a filter that takes any."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int


def _lowest(entries: Sequence[AclFields]) -> int:
    return 3 if any(entry.resource_type == _USER_RESOURCE for entry in entries) else 1


def describe_acls(wanted: AclFields) -> Build:
    """The entries that a filter matches."""

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("describe_acls", versions.pick(Api.describe_acls, _lowest([wanted]), 3))
        return made(module.DescribeAclsRequest(**_filter(wanted)))

    return build


def create_acls(entries: Sequence[AclFields]) -> Build:
    """Add entries; the answer has one error per entry, in order."""

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("create_acls", versions.pick(Api.create_acls, _lowest(entries), 3))
        names = (
            "resource_type", "resource_name", "resource_pattern_type", "principal", "host", "operation",
            "permission_type",
        )  # fmt: skip
        creations = tuple(module.AclCreation(**dict(zip(names, astuple(entry), strict=True))) for entry in entries)
        return made(module.CreateAclsRequest(creations=creations))

    return build


def delete_acls(filters: Sequence[AclFields]) -> Build:
    """Delete what filters match; the answer has one error and the deleted entries per filter, in order."""

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("delete_acls", versions.pick(Api.delete_acls, _lowest(filters), 3))
        return made(module.DeleteAclsRequest(filters=tuple(module.DeleteAclsFilter(**_filter(one)) for one in filters)))

    return build


def _filter(wanted: AclFields) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }
