"""One configuration: its type, default and rule, and the text of its values, as Kafka reads and writes them."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from math import isnan
from typing import TYPE_CHECKING, Final, TypeAlias

from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    Value: TypeAlias = "bool | int | float | str | list[str]"
    Rule: TypeAlias = Callable[[Value], bool]

__all__ = ["INT_MAX", "LONG_MAX", "ConfigSource", "ConfigType", "Configuration", "at_least", "between", "one_of"]

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1
_SMALLEST_PLAIN: Final = 1e-3
_LARGEST_PLAIN: Final = 1e7


class ConfigType:
    """Types of configuration values, with DescribeConfigs' numbers."""

    BOOLEAN: Final = 1
    STRING: Final = 2
    INT: Final = 3
    SHORT: Final = 4
    LONG: Final = 5
    DOUBLE: Final = 6
    LIST: Final = 7


class ConfigSource:
    """Where a configuration's value comes from, with the numbers of DescribeConfigs and CreateTopics."""

    TOPIC: Final = 1
    STATIC_BROKER: Final = 4
    DEFAULT: Final = 5
    BROKER_LOGGER: Final = 6


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration. `expected` says in words what `rule` tests. None as `default`: there is no value.

    `broker_name` is the broker's configuration that a topic's value comes from if the topic has none. `fallback` is the
    broker's configuration that has a default, with that default: `segment.ms` comes from `log.roll.ms`, and the default
    is that of `log.roll.hours`. `distinct`: a list's words are kept once.
    """

    name: str
    type: int
    default: str | None
    documentation: str
    expected: str
    rule: Rule
    broker_name: str | None = None
    fallback: tuple[str, str] | None = None
    distinct: bool = False

    def parse(self, text: str) -> Value:
        """The value of a text. Raises `KafkaError` (INVALID_CONFIG) if the configuration can not have it."""
        try:
            value = self._read(text)
        except ValueError:
            raise self._refusal(text) from None
        if not self.rule(value):
            raise self._refusal(text)
        return value

    def canonical(self, text: str) -> str:
        """The text as Kafka writes this value: no spaces around numbers, `true` for `TRUE`, 0.5 for .5."""
        try:
            value = self._read(text)
        except ValueError:
            return text
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float):
            return _java_double(value)
        return ",".join(value) if isinstance(value, list) else str(value)

    def _read(self, text: str) -> Value:
        value = _PARSERS[self.type](text)
        return list(dict.fromkeys(value)) if self.distinct and isinstance(value, list) else value

    def _refusal(self, text: str) -> KafkaError:
        return KafkaError(ErrorCode.invalid_config, f"{self.name} = {text!r}: expected {self.expected}")


def at_least(lowest: int) -> Rule:
    """The rule of a number that is not below `lowest`."""
    return lambda value: isinstance(value, int) and value >= lowest


def between(lowest: float, highest: float) -> Rule:
    """The rule of a number from `lowest` to `highest`, both included. As in Kafka, NaN passes."""
    return lambda value: isinstance(value, int | float) and not (value < lowest or value > highest)


def one_of(*words: str) -> Rule:
    """The rule of a text that is one of `words`."""
    return lambda value: value in words


def _integer(bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        # Python takes underscores too.
        if "_" in text:
            raise ValueError(text)
        value = int(text)
        if not -(1 << bits) <= value < 1 << bits:
            raise ValueError(text)
        return value

    return parse


def _number(text: str) -> float:
    if "_" in text:
        raise ValueError(text)
    return float(text)


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise ValueError(text)
    return word == "true"


def _list(text: str) -> list[str]:
    stripped = text.strip()
    return [word.strip() for word in stripped.split(",")] if stripped else []


def _java_double(value: float) -> str:
    """As Java writes a double: with an exponent below a thousandth and from ten million on."""
    if isnan(value):
        return "NaN"
    if value == 0 or _SMALLEST_PLAIN <= abs(value) < _LARGEST_PLAIN:
        return repr(value)
    shortest = Decimal(repr(value))
    exponent = shortest.adjusted()
    return f"{float(shortest.scaleb(-exponent))!r}E{exponent}"


_PARSERS: Final[dict[int, Callable[[str], Value]]] = {
    ConfigType.BOOLEAN: _boolean,
    ConfigType.STRING: str,
    ConfigType.INT: _integer(31),
    ConfigType.LONG: _integer(63),
    ConfigType.DOUBLE: _number,
    ConfigType.LIST: _list,
}
