"""A secret, or the place where it is kept. It is read each time it is needed, and never shown."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path  # noqa: TC003 - types of fields are looked up when a configuration is read
from typing import Final

from ingestd.checks import as_path
from ingestd.errors import ConfigurationError, WrongSetting

__all__ = ["Secret", "warn_if_others_can_read"]

_log = logging.getLogger(__name__)

_LARGEST: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Secret:
    """Exactly one of: a file that holds the secret, an environment variable that holds it, or the secret itself.

    With a file or a variable, neither this object nor its pickle holds the secret. A file that was replaced (a mounted
    secret that was rotated) counts from the next connection on.
    """

    file: Path | None = None
    """A file that holds it, and that other users can not read. A line feed at its end does not count."""
    environment: str | None = None
    """The environment variable that holds it."""
    value: str | None = field(default=None, repr=False)
    """The secret itself."""

    def __post_init__(self) -> None:
        if sum(place is not None for place in (self.file, self.environment, self.value)) != 1:
            raise WrongSetting("file", "exactly one of file, environment and value")
        object.__setattr__(self, "file", as_path("file", self.file))
        for name in ("environment", "value"):
            if not isinstance(getattr(self, name), (str, type(None))):
                raise WrongSetting(name, "a string")

    @classmethod
    def of(cls, given: Secret | str | None) -> Secret | None:
        """A `Secret` from what a caller gave; a string is the secret itself. Raises `WrongSetting`."""
        if not isinstance(given, (cls, str, type(None))):
            raise WrongSetting("secret", f"a string or a Secret, not something of class {type(given).__name__}")
        return cls(value=given) if isinstance(given, str) else given

    def read(self) -> str:
        """The secret. Raises `ConfigurationError`, naming the file or the variable, never its content."""
        if self.value is not None:
            found, where = self.value, "a secret"
        elif self.environment is not None:
            found, where = os.environ.get(self.environment, ""), f"environment variable {self.environment}"
        else:
            assert self.file is not None, "one of the three is given"
            found, where = _content(self.file), str(self.file)
        if not found:
            raise ConfigurationError(f"{where}: empty or not set; expected a secret")
        try:
            found.encode()
        except UnicodeEncodeError:
            # An environment variable may hold any bytes. Not chained to the encoder's error: its repr contains them.
            raise ConfigurationError(f"{where}: not UTF-8; expected a secret as text") from None
        return found


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: a secret can not be read: {error.strerror}") from error
    warn_if_others_can_read(path)
    if len(raw) > _LARGEST:
        raise ConfigurationError(f"{path}: longer than {_LARGEST} bytes; expected a secret")
    try:
        return raw.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        # Not chained to the decoder's error, which contains the bytes.
        raise ConfigurationError(f"{path}: not UTF-8; expected a secret as text") from None


@lru_cache(maxsize=256)
def warn_if_others_can_read(path: Path) -> None:
    """Log a warning, once for each file, if every user of this machine can read the secret in it."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # gone since it was read
    if mode & stat.S_IROTH:
        said = "%s (%s): every user of this machine can read the secret in it; chmod o= would end that"
        _log.warning(said, path, stat.filemode(mode))
