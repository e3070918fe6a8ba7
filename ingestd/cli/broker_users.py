"""`ingestd broker users`: changes the users in a broker's data directory, also while the broker runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ingestd.broker.security.credentials import Mechanism, credential_of
from ingestd.broker.security.users import Users
from ingestd.broker.storage import is_data_directory
from ingestd.errors import ConfigurationError, IngestdError
from ingestd.wire.secret import Secret

if TYPE_CHECKING:
    from ingestd.broker.security.credentials import Credential

__all__ = ["add_user", "list_users", "read_password", "remove_user"]


def read_password(place: str) -> str:
    """The password that is kept at `@FILE` or `@env:NAME`. Raises `ConfigurationError`."""
    if place.startswith("@env:"):
        return Secret(environment=place.removeprefix("@env:")).read()
    if place.startswith("@"):
        return Secret(file=Path(place[1:])).read()
    raise ConfigurationError("--password: expected @FILE or @env:NAME; every user of this machine can see arguments")


def add_user(data: Path, name: str, password: str) -> str:
    """Make a user who can authenticate with each mechanism, or replace one. Returns a line that says where.

    The directory is made if there is none. Raises `ConfigurationError`, `OSError`.
    """
    if not name:
        raise ConfigurationError("the name of a user is empty")
    made = {mechanism: credential_of(mechanism, password) for mechanism in Mechanism}
    new = not data.exists()
    users = Users(data)
    users.change(lambda all_users: all_users.update({name: made}))
    return f"{users.file}: has user {name!r}{', in a directory that is new' if new else ''}"


def list_users(data: Path) -> dict[str, dict[str, int]]:
    """Iterations by user and SCRAM mechanism. Raises `ConfigurationError`, `OSError`."""
    _require_directory(data)
    return {
        name: {mechanism.label: one.iterations for mechanism, one in credentials.items()}
        for name, credentials in Users(data).all().items()
    }


def remove_user(data: Path, name: str) -> None:
    """Remove a user. Raises `IngestdError` if there is none of that name, `ConfigurationError`, `OSError`."""

    def removed(users: dict[str, dict[Mechanism, Credential]]) -> None:
        if users.pop(name, None) is None:
            raise IngestdError(f"{data}: no user {name!r}")

    _require_directory(data)
    Users(data).change(removed)


def _require_directory(data: Path) -> None:
    """Raise `ConfigurationError` unless a broker or `add_user` wrote there: a mistyped name has no users either."""
    if not data.is_dir():
        raise ConfigurationError(f"--data: {data}: no such directory; expected the data directory of a broker")
    if not Users(data).file.exists() and not is_data_directory(data):
        raise ConfigurationError(f"--data: {data}: no broker was started there; expected the data directory of one")
