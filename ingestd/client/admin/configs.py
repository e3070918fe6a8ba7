"""Configurations of topics, brokers, brokers' loggers, groups and client metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ingestd.checks import require_all_of
from ingestd.client.admin.calls import Administration, error_of
from ingestd.client.admin.targets import ToAny, ToNodes
from ingestd.errors import IngestdError, raise_for_code
from ingestd.retry import Deadline
from ingestd.wire.requests import configs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ingestd.wire.requests import Build

__all__ = [
    "AlterOperation",
    "ConfigAdmin",
    "ConfigChange",
    "ConfigEntry",
    "ConfigOutcome",
    "ConfigResource",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigsDescription",
    "ResourceType",
]


class ResourceType(IntEnum):
    """What a configuration belongs to."""

    topic = 2
    broker = 4
    broker_logger = 8
    client_metrics = 16
    group = 32


_KNOWN_TYPES = frozenset(int(kind) for kind in ResourceType)


class ConfigSource(IntEnum):
    """Where a value comes from. The strongest is first, except for `default`."""

    unknown = 0
    topic = 1
    dynamic_broker = 2
    dynamic_default_broker = 3
    static_broker = 4
    default = 5
    dynamic_broker_logger = 6
    client_metrics = 7
    group = 8


class AlterOperation(IntEnum):
    """What a change does to a configuration. Append and subtract are for lists."""

    set = 0
    delete = 1
    append = 2
    subtract = 3


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic or group by name, a broker by its id as text, or "" for the default of all brokers."""

    type: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A configuration from which another one takes its value, if no stronger one has it."""

    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration. `value` is None if it is sensitive, or has no value. `source` is a `ConfigSource`.

    Synonyms, the strongest first, and documentation are there if they were asked for.
    """

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    synonyms: tuple[ConfigSynonym, ...] = ()
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether nobody has set it."""
        return self.source == ConfigSource.default


@dataclass(frozen=True, slots=True)
class ConfigsDescription:
    """The configurations of one resource by name, or the error."""

    resource: ConfigResource
    entries: Mapping[str, ConfigEntry]
    error: IngestdError | None = None


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change of a configuration. `value` is None if the operation is `delete`."""

    name: str
    value: str | None = None
    operation: AlterOperation = AlterOperation.set


@dataclass(frozen=True, slots=True)
class ConfigOutcome:
    """The outcome of one resource's changes. `error` is None if all of them were made."""

    resource: ConfigResource
    error: IngestdError | None = None


class ConfigAdmin(Administration):
    """Configurations. Requests about a broker go to that broker, all others to any broker."""

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        keys: Collection[str] | None = None,
        include_synonyms: bool = False,
        include_documentation: bool = False,
        timeout: float = 30.0,
    ) -> list[ConfigsDescription]:
        """Configurations of resources; `keys` None: all of them. Documentation needs Kafka 2.6."""
        outcomes = await self._items(
            require_all_of(ConfigResource, "resources", resources),
            self._own_broker(),
            lambda asked: configs.describe_configs(
                [(resource.type, resource.name, keys) for resource in asked],
                include_synonyms=include_synonyms,
                include_documentation=include_documentation,
            ),
            lambda answer, _: {
                _resource(result): error_of(result.error_code, result.resource_name, result.error_message)
                or {entry.name: _entry(entry) for entry in result.configs}
                for result in answer.results
            },
            Deadline.after(timeout),
        )
        return [
            ConfigsDescription(resource, {}, found)
            if isinstance(found, IngestdError)
            else ConfigsDescription(resource, found)
            for resource, found in outcomes.found.items()
        ]

    async def incremental_alter_configs(
        self,
        changes: Mapping[ConfigResource, Sequence[ConfigChange]],
        *,
        validate_only: bool = False,
        timeout: float = 30.0,
    ) -> list[ConfigOutcome]:
        """Change some configurations and leave the others (KIP-339, Kafka 2.3). Repeating a change changes nothing."""

        def build(resources: Sequence[ConfigResource]) -> Build:
            return configs.incremental_alter_configs(
                [
                    (
                        resource.type,
                        resource.name,
                        [(change.name, int(change.operation), change.value) for change in changes[resource]],
                    )
                    for resource in resources
                ],
                validate_only=validate_only,
            )

        require_all_of(ConfigResource, "changes", changes)
        outcomes = await self._items(changes, self._own_broker(), build, _altered, Deadline.after(timeout))
        return [ConfigOutcome(resource, outcomes.error(resource)) for resource in outcomes.found]

    async def alter_configs(
        self,
        values: Mapping[ConfigResource, Mapping[str, str | None]],
        *,
        validate_only: bool = False,
        timeout: float = 30.0,
    ) -> list[ConfigOutcome]:
        """Replace all configurations of resources. Those that are not named get their defaults.

        For brokers before Kafka 2.3. For others `incremental_alter_configs` is clearer.
        """
        outcomes = await self._items(
            values,
            self._own_broker(),
            lambda resources: configs.alter_configs(
                [(resource.type, resource.name, values[resource]) for resource in resources],
                validate_only=validate_only,
            ),
            _altered,
            Deadline.after(timeout),
        )
        return [ConfigOutcome(resource, outcomes.error(resource)) for resource in outcomes.found]

    async def list_config_resources(
        self, types: Collection[ResourceType] = (), *, timeout: float = 30.0
    ) -> list[ConfigResource]:
        """The resources that have configurations, of these types or of all (Kafka 4.1; client metrics: 3.7).

        Types of newer brokers that `ResourceType` does not have are left out.
        """

        def resources(answer: Any) -> list[ConfigResource]:
            raise_for_code(answer.error_code, "ListConfigResources")
            metrics = ResourceType.client_metrics
            listed = [(getattr(one, "resource_type", metrics), one.resource_name) for one in answer.config_resources]
            return [ConfigResource(ResourceType(kind), name) for kind, name in listed if kind in _KNOWN_TYPES]

        return await self._one(
            ToAny(self._client),
            lambda: configs.list_config_resources([int(kind) for kind in types]),
            resources,
            Deadline.after(timeout),
        )

    def _own_broker(self) -> ToNodes:
        return ToNodes(self._client, _node)


def _node(resource: ConfigResource) -> int | None:
    own = resource.type in (ResourceType.broker, ResourceType.broker_logger) and resource.name != ""
    return int(resource.name) if own else None


def _resource(result: Any) -> ConfigResource:
    return ConfigResource(ResourceType(result.resource_type), result.resource_name)


def _entry(entry: Any) -> ConfigEntry:
    return ConfigEntry(
        entry.name,
        entry.value,
        entry.config_source,
        entry.read_only,
        entry.is_sensitive,
        tuple(ConfigSynonym(one.name, one.value, one.source) for one in entry.synonyms),
        getattr(entry, "documentation", None),
    )


def _altered(answer: Any, _: Sequence[ConfigResource]) -> dict[ConfigResource, IngestdError | None]:
    return {_resource(one): error_of(one.error_code, one.resource_name, one.error_message) for one in answer.responses}
