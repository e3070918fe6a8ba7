"""ACLs: which principal may do what to which resource."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from ingestd.checks import require_all_of
from ingestd.client.admin.calls import Administration, error_of
from ingestd.client.admin.targets import ToAny
from ingestd.errors import IngestdError, raise_for_code
from ingestd.retry import Deadline
from ingestd.wire.requests import acls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "Acl",
    "AclAdmin",
    "AclFilter",
    "AclOperation",
    "AclOutcome",
    "AclPatternType",
    "AclPermission",
    "AclResourceType",
    "DeletedAcls",
]


class AclResourceType(IntEnum):
    """The type of a resource. `any` is for filters only."""

    unknown = 0
    any = 1
    topic = 2
    group = 3
    cluster = 4
    transactional_id = 5
    delegation_token = 6
    user = 7


class AclPatternType(IntEnum):
    """How a resource name is matched. `any` and `match` are for filters only.

    `match` finds every entry that applies to a resource of that name: literal, prefixed, or for all ("*").
    """

    unknown = 0
    any = 1
    match = 2
    literal = 3
    prefixed = 4


class AclOperation(IntEnum):
    """An operation. `any` is for filters only. `all` stands for every operation."""

    unknown = 0
    any = 1
    all = 2
    read = 3
    write = 4
    create = 5
    delete = 6
    alter = 7
    describe = 8
    cluster_action = 9
    describe_configs = 10
    alter_configs = 11
    idempotent_write = 12
    create_tokens = 13
    describe_tokens = 14
    two_phase_commit = 15


class AclPermission(IntEnum):
    """Whether the operation is allowed. `any` is for filters only. Deny wins over allow."""

    unknown = 0
    any = 1
    deny = 2
    allow = 3


@dataclass(frozen=True, slots=True)
class Acl:
    """One entry. `principal` is as in "User:name", "User:*" for everybody; `host` is an address, "*" for all."""

    resource_type: AclResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.allow
    host: str = "*"
    pattern_type: AclPatternType = AclPatternType.literal

    def __str__(self) -> str:
        what = f"{self.operation.name} {self.pattern_type.name} {self.resource_type.name} {self.resource_name!r}"
        return f"{self.permission.name} {self.principal} from {self.host} to {what}"


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects entries. A field that is not given matches any."""

    resource_type: AclResourceType = AclResourceType.any
    resource_name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.any
    permission: AclPermission = AclPermission.any
    host: str | None = None
    pattern_type: AclPatternType = AclPatternType.any


@dataclass(frozen=True, slots=True)
class AclOutcome:
    """The outcome of one entry to create. `error` is None if the entry exists now."""

    acl: Acl
    error: IngestdError | None = None


@dataclass(frozen=True, slots=True)
class DeletedAcls:
    """What one filter deleted, and the entries that it matched and could not delete, each with its error.

    If an attempt had no answer, the entries that it deleted are missing here.
    """

    filter: AclFilter
    deleted: tuple[Acl, ...] = ()
    failed: tuple[AclOutcome, ...] = ()
    error: IngestdError | None = None


class AclAdmin(Administration):
    """Access control lists. The cluster needs an authorizer (else: SECURITY_DISABLED). Any broker answers."""

    async def describe_acls(self, wanted: AclFilter | None = None, *, timeout: float = 30.0) -> list[Acl]:
        """The entries that a filter matches; None: all. Raises `KafkaError`."""

        def entries(answer: Any) -> list[Acl]:
            raise_for_code(answer.error_code, answer.error_message or "DescribeAcls")
            return [
                Acl(
                    _resource_type(resource.resource_type),
                    resource.resource_name,
                    entry.principal,
                    _operation(entry.operation),
                    _permission(entry.permission_type),
                    entry.host,
                    _pattern_type(resource.pattern_type),
                )
                for resource in answer.resources
                for entry in resource.acls
            ]

        build = acls.describe_acls(_fields(wanted or AclFilter()))
        return await self._one(ToAny(self._client), lambda: build, entries, Deadline.after(timeout))

    async def create_acls(self, entries: Sequence[Acl], *, timeout: float = 30.0) -> list[AclOutcome]:
        """Add entries. One that exists already stays as it is, and is no error."""
        outcomes = await self._items(
            require_all_of(Acl, "entries", entries),
            ToAny(self._client),
            lambda asked: acls.create_acls([_fields(entry) for entry in asked]),
            lambda answer, asked: {
                entry: error_of(result.error_code, str(entry), result.error_message)
                for entry, result in zip(asked, answer.results, strict=False)
            },
            Deadline.after(timeout),
        )
        return [AclOutcome(entry, outcomes.error(entry)) for entry in outcomes.found]

    async def delete_acls(self, filters: Sequence[AclFilter], *, timeout: float = 30.0) -> list[DeletedAcls]:
        """Delete every entry that one of the filters matches."""

        def read(answer: Any, asked: Sequence[AclFilter]) -> Mapping[AclFilter, DeletedAcls | IngestdError]:
            return {
                one: error_of(result.error_code, str(one), result.error_message) or _deleted(one, result)
                for one, result in zip(asked, answer.filter_results, strict=False)
            }

        outcomes = await self._items(
            require_all_of(AclFilter, "filters", filters),
            ToAny(self._client),
            lambda asked: acls.delete_acls([_fields(one) for one in asked]),
            read,
            Deadline.after(timeout),
        )
        return [
            DeletedAcls(one, error=found) if isinstance(found, IngestdError) else found
            for one, found in outcomes.found.items()
        ]


def _fields(entry: Acl | AclFilter) -> acls.AclFields:
    return acls.AclFields(
        int(entry.resource_type),
        entry.resource_name,
        int(entry.pattern_type),
        entry.principal,
        entry.host,
        int(entry.operation),
        int(entry.permission),
    )


def _deleted(wanted: AclFilter, result: Any) -> DeletedAcls:
    deleted, failed = [], []
    for match in result.matching_acls:
        acl = Acl(
            _resource_type(match.resource_type),
            match.resource_name,
            match.principal,
            _operation(match.operation),
            _permission(match.permission_type),
            match.host,
            _pattern_type(match.pattern_type),
        )
        error = error_of(match.error_code, str(acl), match.error_message)
        if error is None:
            deleted.append(acl)
        else:
            failed.append(AclOutcome(acl, error))
    return DeletedAcls(wanted, tuple(deleted), tuple(failed))


# Numbers that newer brokers may send are `unknown`.

_RESOURCE_TYPES: Final = {int(kind): kind for kind in AclResourceType}
_PATTERN_TYPES: Final = {int(kind): kind for kind in AclPatternType}
_OPERATIONS: Final = {int(kind): kind for kind in AclOperation}
_PERMISSIONS: Final = {int(kind): kind for kind in AclPermission}


def _resource_type(number: int) -> AclResourceType:
    return _RESOURCE_TYPES.get(number, AclResourceType.unknown)


def _pattern_type(number: int) -> AclPatternType:
    return _PATTERN_TYPES.get(number, AclPatternType.unknown)


def _operation(number: int) -> AclOperation:
    return _OPERATIONS.get(number, AclOperation.unknown)


def _permission(number: int) -> AclPermission:
    return _PERMISSIONS.get(number, AclPermission.unknown)
