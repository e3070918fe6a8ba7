"""IncrementalAlterConfigs (KIP-339): changes some configurations of a topic and leaves the others as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.configs.alteration import alter
from ingestd.broker.configs.changes import after_changes
from ingestd.broker.messages import messages
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Answer, Request
    from ingestd.broker.session import Context

API: Final = Api.incremental_alter_configs
VERSIONS: Final = range(2)


def handle(context: Context, request: Request) -> Answer:
    """Each resource has its own result."""
    schema = messages(API, request.version)
    defaults = context.broker.settings.topic_defaults
    return alter(
        context,
        schema,
        schema.decode(request.body),
        lambda before, changes: after_changes(before, defaults, changes),
    )
