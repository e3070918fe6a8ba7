"""Requests about client quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import made

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kio.static.protocol import RequestPayload

    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = ["alter_client_quotas", "describe_client_quotas"]


def describe_client_quotas(components: Sequence[tuple[str, int, str | None]], *, strict: bool) -> Build:
    """Quotas by (entity type, match type, name): match type 0 is that name, 1 the default entity, 2 any of the type.

    With `strict`, entities that also have other types are left out.
    """

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("describe_client_quotas", versions.pick(Api.describe_client_quotas, 0, 1))
        return made(
            module.DescribeClientQuotasRequest(
                components=tuple(
                    module.ComponentData(entity_type=kind, match_type=match, match=name)
                    for kind, match, name in components
                ),
                strict=strict,
            )
        )

    return build


def alter_client_quotas(
    entries: Sequence[tuple[Mapping[str, str | None], Mapping[str, float | None]]], *, validate_only: bool = False
) -> Build:
    """Set quotas of (entity, values by name); a value of None removes it. The answer has one error per entity."""

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("alter_client_quotas", versions.pick(Api.alter_client_quotas, 0, 1))
        return made(
            module.AlterClientQuotasRequest(
                entries=tuple(
                    module.EntryData(
                        entity=tuple(
                            module.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()
                        ),
                        ops=tuple(
                            module.OpData(key=key, value=0.0 if value is None else float(value), remove=value is None)
                            for key, value in values.items()
                        ),
                    )
                    for entity, values in entries
                ),
                validate_only=validate_only,
            )
        )

    return build
