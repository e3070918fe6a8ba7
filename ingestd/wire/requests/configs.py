"""Requests about configurations: what they are, and changes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import made

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kio.static.protocol import RequestPayload

    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = ["alter_configs", "describe_configs", "incremental_alter_configs", "list_config_resources"]

_CLIENT_METRICS = 16


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


def alter_configs(resources: Sequence[tuple[int, str, Mapping[str, str | None]]], *, validate_only: bool) -> Build:
    """Replace all configurations of (resource type, name, values). A key that is not named gets its default."""

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("alter_configs", versions.pick(Api.alter_configs, 0, 2))
        altered = tuple(
            module.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=tuple(module.AlterableConfig(name=key, value=value) for key, value in values.items()),
            )
            for kind, name, values in resources
        )
        return made(module.AlterConfigsRequest(resources=altered, validate_only=validate_only))

    return build


def incremental_alter_configs(
    resources: Sequence[tuple[int, str, Sequence[tuple[str, int, str | None]]]], *, validate_only: bool
) -> Build:
    """Change configurations of (resource type, name, changes), each (key, operation, value): KIP-339, Kafka 2.3.

    Operation 0 sets, 1 deletes, 2 appends to a list, 3 subtracts from it.
    """

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.incremental_alter_configs, 0, 1)
        module = request_module("incremental_alter_configs", version)
        altered = tuple(
            module.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=tuple(
                    module.AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in changes
                ),
            )
            for kind, name, changes in resources
        )
        return made(module.IncrementalAlterConfigsRequest(resources=altered, validate_only=validate_only))

    return build


def list_config_resources(types: Collection[int] = ()) -> Build:
    """The resources of these types that have configurations; empty: of all types. Version 0 has client metrics only.

    Other types need version 1 (Kafka 4.1, KIP-1142).
    """

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.list_config_resources, 0 if tuple(types) == (_CLIENT_METRICS,) else 1, 1)
        fields = {"resource_types": tuple(types)} if version >= 1 else {}
        return made(request_module("list_config_resources", version).ListConfigResourcesRequest(**fields))

    return build
