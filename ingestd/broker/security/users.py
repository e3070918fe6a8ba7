"""The users of a data directory, in one file that is replaced as a whole. Programs beside the broker may change it."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import orjson

from ingestd.broker.log.files import FILE_MODE, make_lasting_directory, write_atomically
from ingestd.broker.security.credentials import Credential, Mechanism
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import TypeAlias

    Credentials: TypeAlias = Mapping[Mechanism, Credential]

__all__ = ["Users"]

_FILE: Final = "users.json"
_LOCK: Final = ".users.lock"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What changes with a file's content, as it is always replaced."""

    inode: int
    modified_ns: int
    size: int


class Users:
    """Credentials by user and mechanism.

    Invariants
        The file is what counts: what another process has written there is seen by the next call.
        Who changes it holds a lock from reading to writing. So no change is lost.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.file = directory / _FILE
        """Where they are."""
        self._stamp: _Stamp | None = None
        self._users: Mapping[str, Credentials] = {}

    def all(self) -> Mapping[str, Credentials]:
        """Every user. Raises `ConfigurationError` for a file of another kind, `OSError`."""
        stamp = self._present()
        if stamp != self._stamp:
            self._users = MappingProxyType(self._read())
            self._stamp = stamp
        return self._users

    def of(self, name: str) -> Credentials:
        """A user's credentials; none if there is no such user. Raises as `all`."""
        return self.all().get(name, {})

    def change(self, changed: Callable[[dict[str, dict[Mechanism, Credential]]], None]) -> None:
        """Let `changed` change a copy of all users, and store that. Raises what it raises, and as `all`.

        A user without credentials is not stored.
        """
        make_lasting_directory(self._directory)
        with _locked(self._directory / _LOCK):
            users = {name: dict(credentials) for name, credentials in self.all().items()}
            changed(users)
            content = {
                "format": _FORMAT,
                "users": {
                    name: {mechanism.label: _as_stored(one) for mechanism, one in credentials.items()}
                    for name, credentials in sorted(users.items())
                    if credentials
                },
            }
            write_atomically(self.file, orjson.dumps(content, option=orjson.OPT_INDENT_2))

    def _present(self) -> _Stamp | None:
        try:
            found = self.file.stat()
        except FileNotFoundError:
            return None
        return _Stamp(found.st_ino, found.st_mtime_ns, found.st_size)

    def _read(self) -> dict[str, Credentials]:
        try:
            content = orjson.loads(self.file.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise ConfigurationError(f"{self.file}: not JSON; expected the users of this broker") from None
        try:
            if content["format"] != _FORMAT:
                raise ConfigurationError(f"{self.file}: format {content['format']}, expected {_FORMAT}")
            return {
                name: {known: _as_read(known, stored[known.label]) for known in Mechanism if known.label in stored}
                for name, stored in content["users"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Not chained: such an error may show what the file has.
            kind = type(error).__name__
            raise ConfigurationError(f"{self.file}: not a list of users of this broker ({kind})") from None


def _as_stored(credential: Credential) -> dict[str, Any]:
    secret = {"salt": credential.salt, "stored_key": credential.stored_key, "server_key": credential.server_key}
    encoded = {name: base64.b64encode(value).decode("ascii") for name, value in secret.items()}
    return {"iterations": credential.iterations, **encoded}


def _as_read(mechanism: Mechanism, stored: dict[str, Any]) -> Credential:
    salt, stored_key, server_key = (
        base64.b64decode(stored[name], validate=True) for name in ("salt", "stored_key", "server_key")
    )
    return Credential(mechanism, int(stored["iterations"]), salt, stored_key, server_key)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
