"""The durable list of topics: ids, partition counts and configurations, in one file that is replaced as a whole."""

from __future__ import annotations

import base64
import re
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from ingestd.broker.log.files import write_atomically
from ingestd.errors import ConfigurationError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = [
    "OFFSETS_TOPIC",
    "TRANSACTIONS_TOPIC",
    "Topic",
    "TopicStore",
    "check_not_internal",
    "check_topic_name",
    "is_internal",
]

_FILE: Final = "topics.json"
_FORMAT: Final = 1
OFFSETS_TOPIC: Final = "__consumer_offsets"
"""Where groups and their offsets are stored."""
TRANSACTIONS_TOPIC: Final = "__transaction_state"
"""Where transactional ids are stored."""
_INTERNAL: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state", "__cluster_metadata"})
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. `config` has the values that were set for this topic. `replication`: how many nodes have it."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    replication: int = 1


def check_topic_name(name: str) -> None:
    """Raise `KafkaError` (INVALID_TOPIC_EXCEPTION) for a name that Kafka does not allow."""
    if _NAME.fullmatch(name) is None or name in {".", ".."}:
        raise KafkaError(
            ErrorCode.invalid_topic_exception,
            f"{name!r}: a topic's name is 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-', and neither '.' nor '..'",
        )


def is_internal(name: str) -> bool:
    """Whether a topic is one of the broker's own, as in Kafka. Clients may read it, and not change it."""
    return name in _INTERNAL


def check_not_internal(name: str, doing: str) -> None:
    """Raise `KafkaError` (INVALID_TOPIC_EXCEPTION) if a client may not do this, because the topic is internal."""
    if is_internal(name):
        raise KafkaError(
            ErrorCode.invalid_topic_exception,
            f"{name!r} can not be {doing}: it is one of the broker's own topics",
        )


class TopicStore:
    """Topics by name and by id, with the cluster's id.

    Invariants
        The file is written before a change can be seen. A change that can not be written does not happen. The exception
        is `drop`: its caller has made the change durable in another way.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._with_underscores: dict[str, str] = {}
        self.cluster_id = ""
        self.version = 0
        """Rises with each change."""
        self.behind = False
        """Whether the file still names topics that were dropped."""

    def load(self) -> None:
        """Read the file, or begin a new cluster. Raises `ConfigurationError` for a file of another kind, `OSError`."""
        if not self._path.exists():
            self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode("ascii")
            self._write(())
            return
        try:
            content = orjson.loads(self._path.read_bytes())
            if content["format"] != _FORMAT:
                raise ConfigurationError(f"{self._path}: format {content['format']}, expected {_FORMAT}")
            self.cluster_id = content["cluster_id"]
            topics = [
                Topic(name, uuid.UUID(value["id"]), value["partitions"], value["config"], value.get("replication", 1))
                for name, value in content["topics"].items()
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"{self._path}: not a list of topics of this broker ({error!r})") from error
        self._take(topics)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def named(self, name: str) -> Topic | None:
        """The topic of that name."""
        return self._by_name.get(name)

    def check_no_collision(self, name: str) -> None:
        """Raise `KafkaError` (INVALID_TOPIC_EXCEPTION) if a topic's name differs from a new one only in '.' and '_'.

        Kafka allows only one of them, because its metrics have '_' for '.'.
        """
        other = self._with_underscores.get(_underscored(name))
        if other is not None:
            raise KafkaError(ErrorCode.invalid_topic_exception, f"{name!r} collides with existing topic {other!r}")

    def identified(self, topic_id: uuid.UUID | None) -> Topic | None:
        """The topic with that id."""
        return None if topic_id is None else self._by_id.get(topic_id)

    def put(self, topics: Iterable[Topic]) -> None:
        """Add topics or replace those of the same name, all or none. Raises `OSError`."""
        self._replace({**self._by_name, **{topic.name: topic for topic in topics}}.values())

    def remove(self, names: Iterable[str]) -> None:
        """Forget topics, all or none. Raises `OSError`."""
        gone = set(names)
        self._replace(topic for name, topic in self._by_name.items() if name not in gone)

    def drop(self, topic_ids: Iterable[str]) -> None:
        """Forget topics, by the text of their ids, without writing the file. The next change writes this too."""
        gone = set(topic_ids)
        left = [topic for topic in self if str(topic.topic_id) not in gone]
        self.behind = self.behind or len(left) < len(self)
        self._take(left)

    def settle(self) -> None:
        """Write the file if it lacks a change. Raises `OSError`."""
        if self.behind:
            self._replace(self)

    def _replace(self, topics: Iterable[Topic]) -> None:
        topics = tuple(topics)
        self._write(topics)
        self._take(topics)
        self.behind = False

    def _take(self, topics: Iterable[Topic]) -> None:
        self.version += 1
        self._by_name = {topic.name: topic for topic in topics}
        self._by_id = {topic.topic_id: topic for topic in self._by_name.values()}
        self._with_underscores = {_underscored(name): name for name in self._by_name}

    def _write(self, topics: Iterable[Topic]) -> None:
        content = {
            "format": _FORMAT,
            "cluster_id": self.cluster_id,
            "topics": {topic.name: _as_stored(topic) for topic in topics},
        }
        write_atomically(self._path, orjson.dumps(content, option=orjson.OPT_INDENT_2))


def _underscored(name: str) -> str:
    return name.replace(".", "_")


def _as_stored(topic: Topic) -> dict[str, Any]:
    stored = {"id": str(topic.topic_id), "partitions": topic.partitions, "config": dict(topic.config)}
    return stored if topic.replication == 1 else {**stored, "replication": topic.replication}
