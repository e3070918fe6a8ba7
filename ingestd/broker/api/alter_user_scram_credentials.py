"""AlterUserScramCredentials (KIP-554): makes, changes and removes users. All of one user's changes happen, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.broker.security.credentials import FEWEST_ITERATIONS, MOST_ITERATIONS, Credential, Mechanism
from ingestd.errors import ErrorCode, IngestdError, KafkaError
from ingestd.logs import get_logger
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.broker.request import Request
    from ingestd.broker.session import Context

API: Final = Api.alter_user_scram_credentials
VERSIONS: Final = range(1)

_log = get_logger(__name__)


def handle(context: Context, request: Request) -> Answer:
    """One result per user, in the order of their names."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    errors: dict[str, KafkaError | None] = {item.name: None for item in (*asked.deletions, *asked.upsertions)}
    try:
        context.broker.users.change(lambda users: errors.update(_changed(users, asked)))
    except (IngestdError, OSError) as failure:
        _log.error("users not written", error=str(failure))
        errors = dict.fromkeys(errors, KafkaError(ErrorCode.kafka_storage_error, "the users could not be written"))
    results = tuple(
        schema.make(
            "AlterUserScramCredentialsResult",
            user=user,
            error_code=ErrorCode.none if error is None else error.code,
            error_message=None if error is None else error.detail,
        )
        for user, error in sorted(errors.items())
    )
    first = next((one.error_code for one in results if one.error_code), ErrorCode.none)
    return Answer([schema.encode(throttle_time=NO_THROTTLE, results=results)], first)


def _changed(users: dict[str, dict[Mechanism, Credential]], asked: Any) -> Mapping[str, KafkaError]:
    """Change `users`. Returns the errors of those that stay as they are."""
    errors: dict[str, KafkaError] = {}
    changes: dict[str, dict[Mechanism, Credential | None]] = {}
    for item in (*asked.deletions, *asked.upsertions):
        own = changes.setdefault(item.name, {})
        try:
            mechanism, credential = _change(item, users.get(item.name, {}), own)
        except KafkaError as error:
            errors.setdefault(item.name, error)
        else:
            own[mechanism] = credential
    for name in changes.keys() - errors.keys():
        kept = {**users.get(name, {}), **changes[name]}
        users[name] = {mechanism: one for mechanism, one in kept.items() if one is not None}
    return errors


def _change(
    item: Any, present: Mapping[Mechanism, Credential], changes: Mapping[Mechanism, Credential | None]
) -> tuple[Mechanism, Credential | None]:
    """What a user has for a mechanism afterwards. None: nothing."""
    mechanism = _mechanism(item)
    if mechanism in changes:
        raise KafkaError(ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request")
    if hasattr(item, "iterations"):  # of a deletion only user and mechanism are told
        return mechanism, _credential(mechanism, item)
    if mechanism not in present:
        raise KafkaError(ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist")
    return mechanism, None


def _mechanism(item: Any) -> Mechanism:
    if not item.name:
        raise KafkaError(ErrorCode.unacceptable_credential, "Username must not be empty")
    try:
        return Mechanism(item.mechanism)
    except ValueError:
        raise KafkaError(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism") from None


def _credential(mechanism: Mechanism, item: Any) -> Credential:
    if not FEWEST_ITERATIONS <= item.iterations <= MOST_ITERATIONS:
        many = "Too few" if item.iterations < FEWEST_ITERATIONS else "Too many"
        raise KafkaError(ErrorCode.unacceptable_credential, f"{many} iterations")
    return Credential.of_salted(mechanism, item.iterations, item.salt, item.salted_password)
