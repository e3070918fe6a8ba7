"""What a topic's own configurations are after a request to change them. Nothing is stored here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.configs.kinds import ConfigType
from ingestd.broker.configs.topic_table import TOPIC_CONFIGURATIONS
from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["DELETE", "SET", "after_changes", "replaced"]

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3
_NAMES: Final = {SET: "SET", DELETE: "DELETE", APPEND: "APPEND", SUBTRACT: "SUBTRACT"}


def after_changes(own: Mapping[str, str], defaults: Mapping[str, str], changes: Iterable[Any]) -> dict[str, str]:
    """The configurations after IncrementalAlterConfigs (KIP-339). Values are not checked here.

    `changes` have `name`, `config_operation` and `value`. Raises `KafkaError`: INVALID_REQUEST, and INVALID_CONFIG for
    changing something as a list that is none.
    """
    changes = tuple(changes)
    for change in changes:
        if change.config_operation not in _NAMES:
            raise KafkaError(ErrorCode.invalid_request, f"{change.name}: operation {change.config_operation}")
    _check_distinct(changes, without_value=DELETE)
    after = dict(own)
    for change in changes:
        if change.config_operation == DELETE:
            after.pop(change.name, None)
        elif change.config_operation == SET:
            after[change.name] = change.value
        else:
            after[change.name] = _list_after(after, defaults, change)
    return after


def replaced(changes: Iterable[Any]) -> dict[str, str]:
    """The configurations after AlterConfigs: those that it names alone. Raises `KafkaError` (INVALID_REQUEST)."""
    changes = tuple(changes)
    _check_distinct(changes)
    return {change.name: change.value for change in changes}


def _check_distinct(changes: Iterable[Any], without_value: int | None = None) -> None:
    """Raise `KafkaError` (INVALID_REQUEST) for a name that comes twice, and for null where a value belongs.

    `without_value` is the operation that needs no value.
    """
    changes = tuple(changes)
    if len({change.name for change in changes}) < len(changes):
        raise KafkaError(ErrorCode.invalid_request, "a configuration is named twice")
    nulls = [
        change.name
        for change in changes
        if change.value is None and (without_value is None or change.config_operation != without_value)
    ]
    if nulls:
        raise KafkaError(ErrorCode.invalid_request, f"null is no value for {', '.join(nulls)}")


def _list_after(own: Mapping[str, str], defaults: Mapping[str, str], change: Any) -> str:
    known = TOPIC_CONFIGURATIONS.get(change.name)
    if known is None or known.type != ConfigType.LIST:
        raise KafkaError(
            ErrorCode.invalid_config, f"{_NAMES[change.config_operation]} to {change.name}, which is no list"
        )
    now = own.get(change.name, defaults.get(change.name, known.default or ""))
    words = [word for word in now.split(",") if word]
    for word in change.value.split(","):
        if change.config_operation == APPEND and word not in words:
            words.append(word)
        elif change.config_operation == SUBTRACT and word in words:
            words.remove(word)
    return ",".join(words)
