"""Given options: what a user wrote, by proper names. A refusal names the option, its value and what was expected."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ingestd.checks import did_you_mean
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Given"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_KAFKA: Final = "kafka."
_SECRET: Final = re.compile(r"password|jaas|secret|token|keystore\.key", re.IGNORECASE)
"""Options whose values are never shown."""
_BOOLEANS: Final = {"true": True, "false": False}


class Given:
    """The options of one source or sink. Names come in any case, values without the blanks around them.

    An unknown option that starts with `kafka.` is one of Java's client: `warn_of_unused` tells of it. Any other unknown
    option is refused, and so are those in `refused`, each for the reason beside it.
    """

    def __init__(self, what: str, options: Mapping[str, str], known: Iterable[str], refused: Mapping[str, str]) -> None:
        self._what = what
        self._values: dict[str, str] = {}
        self._unused: list[str] = []
        known = tuple(known)
        names = {name.lower(): name for name in known}
        reasons = {name.lower(): reason for name, reason in refused.items()}
        unknown = []
        for name, value in options.items():
            if name.lower() in names:
                self._values[names[name.lower()]] = str(value).strip()
            elif name.lower() in reasons:
                raise ConfigurationError(f"{what}: option {name} is not supported; {reasons[name.lower()]}")
            elif name.lower().startswith(_KAFKA):
                self._unused.append(name)
            else:
                unknown.append(name)
        if unknown:
            close = did_you_mean(unknown[0], known) if len(unknown) == 1 else ""
            expected = close or f"; expected some of {', '.join(known)}"
            raise ConfigurationError(f"{what}: unknown option {', '.join(sorted(unknown))}{expected}")

    def warn_of_unused(self, *more: str) -> None:
        """Log, in one line, the options that have no effect, and those of `more` that are given."""
        unused = sorted([*self._unused, *(name for name in more if name in self._values)])
        if unused:
            _log.warning("%s: these options have no effect here: %s", self._what, ", ".join(unused))

    def __contains__(self, option: str) -> bool:
        return option in self._values

    def text(self, option: str, default: str | None = None) -> str | None:
        """The option's value."""
        return self._values.get(option, default)

    def wrong(self, option: str, expected: str) -> ConfigurationError:
        """The error for an option whose value is not as expected. A secret is not shown."""
        shown = "(not shown)" if _SECRET.search(option) else repr(self._values.get(option))
        return ConfigurationError(f"{self._what}: option {option} = {shown}; expected {expected}")

    def error(self, message: str) -> ConfigurationError:
        """The error for options that do not fit each other."""
        return ConfigurationError(f"{self._what}: {message}")

    def one_of(self, names: Iterable[str]) -> str | None:
        """Which of these options is given. Raises `ConfigurationError` if more than one is."""
        found = [name for name in names if name in self._values]
        if len(found) > 1:
            raise self.error(f"options {' and '.join(found)} exclude each other; expected one")
        return found[0] if found else None

    def choice(self, option: str, choices: Mapping[str, T], *, default: T) -> T:
        """What the option's word stands for, in any case of its letters."""
        text = self._values.get(option)
        if text is None:
            return default
        if text.lower() not in choices:
            raise self.wrong(option, " or ".join(filter(None, choices)))
        return choices[text.lower()]

    def boolean(self, option: str, *, default: bool) -> bool:
        """`true` or `false`."""
        return self.choice(option, _BOOLEANS, default=default)

    def number(self, option: str, *, least: int = 1) -> int | None:
        """A whole number, `least` or more."""
        text = self._values.get(option)
        if text is None:
            return None
        if not re.fullmatch(r"\d{1,18}", text) or int(text) < least:
            raise self.wrong(option, f"a whole number, {least} or more")
        return int(text)

    def seconds(self, option: str, *, least_ms: int = 1) -> float | None:
        """A number of milliseconds, as seconds."""
        milliseconds = self.number(option, least=least_ms)
        return None if milliseconds is None else milliseconds / 1000

    def json(self, option: str, expected: str) -> dict[str, Any]:
        """An object of JSON."""
        try:
            value = json.loads(self._values[option])
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self.wrong(option, expected)
        return value
