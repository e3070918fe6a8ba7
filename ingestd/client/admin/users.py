"""Administration of users who authenticate with SCRAM (KIP-554)."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from ingestd.checks import require_all_of, require_several
from ingestd.client.admin.calls import Administration, error_of
from ingestd.client.admin.targets import ToAny, ToController
from ingestd.errors import ErrorCode, IngestdError, raise_for_code
from ingestd.retry import Deadline
from ingestd.wire.requests import users

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ingestd.wire.requests import Build

__all__ = ["NewScramCredential", "ScramMechanism", "ScramUser", "UserAdmin", "UserOutcome"]

_SALT_BYTES: Final = 32


class ScramMechanism(IntEnum):
    """How a user proves to know the password."""

    scram_sha_256 = 1
    scram_sha_512 = 2


_HASHES: Final = {ScramMechanism.scram_sha_256: "sha256", ScramMechanism.scram_sha_512: "sha512"}


@dataclass(frozen=True, slots=True)
class ScramUser:
    """A user's iterations by mechanism, or why there are none (RESOURCE_NOT_FOUND: no such user)."""

    user: str
    iterations: Mapping[ScramMechanism, int]
    error: IngestdError | None = None


@dataclass(frozen=True, slots=True)
class NewScramCredential:
    """A user's new password for a mechanism. It is hashed here: brokers never see it."""

    user: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = ScramMechanism.scram_sha_512
    iterations: int = 4096


@dataclass(frozen=True, slots=True)
class UserOutcome:
    """What became of one user's credential; `error` is None where it is as asked."""

    user: str
    mechanism: ScramMechanism
    error: IngestdError | None = None


class UserAdmin(Administration):
    """SCRAM credentials. Any broker answers questions, the controller makes changes."""

    async def describe_scram_users(
        self, users_asked: Collection[str] | None = None, *, timeout: float = 30.0
    ) -> list[ScramUser]:
        """The mechanisms of users; None: of all users."""
        deadline = Deadline.after(timeout)
        if users_asked is None:
            return await self._one(
                ToAny(self._client),
                lambda: users.describe_user_scram_credentials(None),
                lambda answer: [_named(user, found) for user, found in _described(answer).items()],
                deadline,
            )
        outcomes = await self._items(
            require_several("users_asked", users_asked),
            ToAny(self._client),
            users.describe_user_scram_credentials,
            lambda answer, _: _described(answer),
            deadline,
        )
        return [_named(user, found) for user, found in outcomes.found.items()]

    async def upsert_scram_users(
        self, credentials: Sequence[NewScramCredential], *, timeout: float = 30.0
    ) -> list[UserOutcome]:
        """Set users' passwords, for one mechanism or several; users who are not there are made."""
        salted = {
            (one.user, one.mechanism): _salted(one)
            for one in require_all_of(NewScramCredential, "credentials", credentials)
        }
        return await self._altered(
            salted,
            lambda keys: users.alter_user_scram_credentials([], [salted[key] for key in keys]),
            (),
            Deadline.after(timeout),
        )

    async def delete_scram_users(
        self, credentials: Iterable[tuple[str, ScramMechanism]], *, timeout: float = 30.0
    ) -> list[UserOutcome]:
        """Take mechanisms from users. What is gone after an attempt without an answer counts as deleted."""
        return await self._altered(
            credentials,
            lambda keys: users.alter_user_scram_credentials([(user, int(mechanism)) for user, mechanism in keys], []),
            (ErrorCode.resource_not_found,),
            Deadline.after(timeout),
        )

    async def _altered(
        self,
        credentials: Iterable[tuple[str, ScramMechanism]],
        build: Callable[[Sequence[tuple[str, ScramMechanism]]], Build],
        done: Collection[ErrorCode],
        deadline: Deadline,
    ) -> list[UserOutcome]:
        # Kafka refuses a request that names a user twice, whatever the mechanism: one request for each mechanism.
        asked = list(dict.fromkeys(credentials))
        errors: dict[tuple[str, ScramMechanism], IngestdError | None] = {}
        for mechanism in sorted({mechanism for _, mechanism in asked}):
            outcomes = await self._items(
                [one for one in asked if one[1] is mechanism], ToController(self._client), build, _altered, deadline
            )
            errors |= {one: outcomes.error(one, done=done) for one in outcomes.found}
        return [UserOutcome(*one, errors[one]) for one in asked]


def _salted(credential: NewScramCredential) -> users.ScramUpsertion:
    salt = os.urandom(_SALT_BYTES)
    hashed = hashlib.pbkdf2_hmac(
        _HASHES[credential.mechanism], credential.password.encode(), salt, credential.iterations
    )
    return users.ScramUpsertion(credential.user, int(credential.mechanism), credential.iterations, salt, hashed)


def _described(answer: Any) -> dict[str, Mapping[ScramMechanism, int] | IngestdError]:
    raise_for_code(answer.error_code, answer.error_message or "DescribeUserScramCredentials")
    return {
        result.user: error_of(result.error_code, result.user, result.error_message)
        or {
            ScramMechanism(one.mechanism): one.iterations for one in result.credential_infos if one.mechanism in _HASHES
        }
        for result in answer.results
    }


def _named(user: str, found: Mapping[ScramMechanism, int] | IngestdError) -> ScramUser:
    return ScramUser(user, {}, found) if isinstance(found, IngestdError) else ScramUser(user, found)


def _altered(
    answer: Any, asked: Sequence[tuple[str, ScramMechanism]]
) -> dict[tuple[str, ScramMechanism], IngestdError | None]:
    mechanism = asked[0][1]
    return {
        (result.user, mechanism): error_of(result.error_code, result.user, result.error_message)
        for result in answer.results
    }
