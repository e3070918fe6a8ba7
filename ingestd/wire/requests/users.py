"""Requests about users who authenticate with SCRAM (KIP-554)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import made

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from kio.static.protocol import RequestPayload

    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = ["ScramUpsertion", "alter_user_scram_credentials", "describe_user_scram_credentials"]


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """A user's new credential. The caller has salted and hashed the password."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


def describe_user_scram_credentials(users: Collection[str] | None) -> Build:
    """Mechanisms and iterations of users (None: all users). The answer has one error per user."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.describe_user_scram_credentials, 0, 0)
        module = request_module("describe_user_scram_credentials", version)
        wanted = None if users is None else tuple(module.UserName(name=user) for user in users)
        return made(module.DescribeUserScramCredentialsRequest(users=wanted))

    return build


def alter_user_scram_credentials(deletions: Sequence[tuple[str, int]], upsertions: Sequence[ScramUpsertion]) -> Build:
    """Delete credentials by (user, mechanism) and set others; the answer has one error per user."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.alter_user_scram_credentials, 0, 0)
        module = request_module("alter_user_scram_credentials", version)
        return made(
            module.AlterUserScramCredentialsRequest(
                deletions=tuple(
                    module.ScramCredentialDeletion(name=user, mechanism=mechanism) for user, mechanism in deletions
                ),
                upsertions=tuple(
                    module.ScramCredentialUpsertion(
                        name=one.user,
                        mechanism=one.mechanism,
                        iterations=one.iterations,
                        salt=one.salt,
                        salted_password=one.salted_password,
                    )
                    for one in upsertions
                ),
            )
        )

    return build
