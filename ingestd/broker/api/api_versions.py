"""ApiVersions: the versions of this broker (KIP-35), in a form that newer clients can read too (KIP-511)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.request import Answer
from ingestd.broker.session import AuthenticationStep
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api
from ingestd.wire.versions import EMBEDDED_FEATURE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.broker.request import Request
    from ingestd.broker.session import Context
    from ingestd.broker.settings import BrokerSettings

API: Final = Api.api_versions
VERSIONS: Final = range(5)

_FIRST_WITH_OPTIONAL_FEATURES: Final = 4
"""Older clients can not read 0 as the lowest level of a feature."""
FEATURES: Final = {"group.version": (0, 1), "transaction.version": (0, 2)}
"""The features that clients ask for, with their lowest and highest levels."""
FEATURES_EPOCH: Final = 0
"""The version of the features in effect. They never change while a broker runs."""
PRODUCE_SAID_FROM: Final = 0
"""librdkafka believes that a broker without Produce v0 has no compression (KAFKA-18659). Kafka 4 also says 0."""


def _levels(settings: BrokerSettings) -> dict[str, int]:
    """The levels in effect. A feature at level 0 is not told, as in Kafka."""
    return {"group.version": 1, "transaction.version": settings.transaction_version}


class ApiVersionsHandler:
    """Answers with the table of handlers. It gets the table once that is complete."""

    def __init__(self, ranges: Mapping[int, range]) -> None:
        self._ranges = ranges

    def __call__(self, context: Context, request: Request) -> Answer:
        """Answer. An unsupported version gets an answer in version 0 that names the supported ones."""
        known = request.version in VERSIONS
        schema = messages(API, request.version if known else 0)
        error = ErrorCode.none if known else ErrorCode.unsupported_version
        exchanging = context.session.step is AuthenticationStep.exchange
        if exchanging:
            error = ErrorCode.illegal_sasl_state
        if known:
            schema.decode(request.body)
        supported: tuple[Any, ...] = ()
        finalized: tuple[Any, ...] = ()
        if schema.has("SupportedFeatureKey"):
            supported = (
                schema.make("SupportedFeatureKey", name=EMBEDDED_FEATURE, min_version=1, max_version=1),
                *(
                    schema.make("SupportedFeatureKey", name=name, min_version=lowest, max_version=highest)
                    for name, (lowest, highest) in FEATURES.items()
                    if lowest or request.version >= _FIRST_WITH_OPTIONAL_FEATURES
                ),
            )
            finalized = tuple(
                schema.make("FinalizedFeatureKey", name=name, min_version_level=level, max_version_level=level)
                for name, level in _levels(context.broker.settings).items()
                if level
            )
        body = schema.encode(
            error_code=error,
            api_keys=tuple(
                schema.make(
                    "ApiVersion",
                    api_key=key,
                    min_version=PRODUCE_SAID_FROM if key == Api.produce else versions.start,
                    max_version=versions.stop - 1,
                )
                for key, versions in sorted(self._ranges.items())
            ),
            throttle_time=NO_THROTTLE,
            supported_features=supported,
            finalized_features_epoch=FEATURES_EPOCH,
            finalized_features=finalized,
        )
        if exchanging:
            context.session.log_refusal("ApiVersions was asked amid the messages of the mechanism")
        return Answer([body], error, old_header=True, closes=exchanging)
