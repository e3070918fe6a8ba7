"""Client quotas: how much users, clients and addresses may use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from ingestd.client.admin.calls import Administration, error_of
from ingestd.client.admin.targets import ToAny
from ingestd.errors import IngestdError, raise_for_code
from ingestd.retry import Deadline
from ingestd.wire.requests import quotas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ClientQuota", "QuotaAdmin", "QuotaComponent", "QuotaEntity", "QuotaMatch", "QuotaOutcome"]

QuotaEntity: TypeAlias = "tuple[tuple[str, str | None], ...]"
"""Who a quota is for: pairs of a type ("user", "client-id", "ip") and a name; None: the default of that type."""


class QuotaMatch(IntEnum):
    """Which entities of a type are meant: the one of a name, the default one, or any that has a name or is default."""

    exact = 0
    default = 1
    any = 2


@dataclass(frozen=True, slots=True)
class QuotaComponent:
    """A part of a filter: entities of a type ("user", "client-id", "ip"). `name` is for an exact match only."""

    entity_type: str
    match: QuotaMatch = QuotaMatch.any
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ClientQuota:
    """An entity's quotas by name: `producer_byte_rate`, `consumer_byte_rate`, `request_percentage` and others."""

    entity: QuotaEntity
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class QuotaOutcome:
    """The outcome of one entity's quotas. `error` is None if they are set."""

    entity: QuotaEntity
    error: IngestdError | None = None


class QuotaAdmin(Administration):
    """Client quotas (KIP-546, Kafka 2.6). Any broker answers."""

    async def describe_client_quotas(
        self, components: Sequence[QuotaComponent] = (), *, strict: bool = False, timeout: float = 30.0
    ) -> list[ClientQuota]:
        """The quotas of entities that match all components. `strict`: and that have no other component. None: all."""

        def found(answer: Any) -> list[ClientQuota]:
            raise_for_code(answer.error_code, answer.error_message or "DescribeClientQuotas")
            return [
                ClientQuota(
                    tuple((part.entity_type, part.entity_name) for part in entry.entity),
                    {value.key: value.value for value in entry.values},
                )
                for entry in answer.entries or ()
            ]

        build = quotas.describe_client_quotas(
            [(one.entity_type, int(one.match), one.name) for one in components], strict=strict
        )
        return await self._one(ToAny(self._client), lambda: build, found, Deadline.after(timeout))

    async def alter_client_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout: float = 30.0,
    ) -> list[QuotaOutcome]:
        """Set quotas of entities by name. None removes one. Quotas that are not named stay."""
        order = {frozenset(entity): entity for entity in changes}
        outcomes = await self._items(
            order.values(),
            ToAny(self._client),
            lambda entities: quotas.alter_client_quotas(
                [(dict(entity), changes[entity]) for entity in entities], validate_only=validate_only
            ),
            lambda answer, _: {
                order[frozenset(entity)]: error_of(entry.error_code, str(dict(entity)), entry.error_message)
                for entry in answer.entries
                if frozenset(entity := [(part.entity_type, part.entity_name) for part in entry.entity]) in order
            },
            Deadline.after(timeout),
        )
        return [QuotaOutcome(entity, outcomes.error(entity)) for entity in outcomes.found]
