"""Requests about configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import made

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from kio.static.protocol import RequestPayload

    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = ["describe_configs"]


def describe_configs(
    resources: Sequence[tuple[int, str, Collection[str] | None]],
    *,
    include_synonyms: bool = False,
    include_documentation: bool = False,
) -> Build:
    """Configurations of (resource type, name, keys or None for all); 2 is a topic, 4 a broker."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.describe_configs, 3 if include_documentation else 1, 4)
        module = request_module("describe_configs", version)
        wanted = tuple(
            module.DescribeConfigsResource(
                resource_type=kind,
                resource_name=name,
                configuration_keys=None if keys is None else tuple(keys),
            )
            for kind, name, keys in resources
        )
        fields: dict[str, Any] = {"resources": wanted, "include_synonyms": include_synonyms}
        if version >= 3:
            fields["include_documentation"] = include_documentation
        return made(module.DescribeConfigsRequest(**fields))

    return build
