"""AlterConfigs: replaces all configurations of a topic. Those that are not named get their defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.configs.alteration import alter
from ingestd.broker.configs.changes import replaced
from ingestd.broker.messages import messages
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Answer, Request
    from ingestd.broker.session import Context

API: Final = Api.alter_configs
VERSIONS: Final = range(3)


def handle(context: Context, request: Request) -> Answer:
    """Each resource has its own result."""
    schema = messages(API, request.version)
    return alter(context, schema, schema.decode(request.body), lambda _before, changes: replaced(changes))
