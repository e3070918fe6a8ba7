"""Says, while a tool still tries, which brokers it can not reach and why: one line on standard error for each news.

A tool waits for brokers for as long as its client does, half a minute; without a word that looks like a hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Final

from ingestd.errors import ConnectionLost, DeadlineExceeded, IngestdError
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from ingestd.client.client import Client

__all__ = ["saying_who_is_not_reached"]

_FIRST_LOOK: Final = 0.5
"""Seconds that nothing is looked at: most tools are done by then."""
_PATIENCE: Final = 1.5
"""Seconds that a cluster has for a first answer; longer than the client's pauses, so that one attempt ends in them."""
_BETWEEN_LOOKS: Final = 1.0
"""Seconds between two looks at the connections; one that fails at two of them in a row is said."""
_OPENING: Final = "no broker answered: "


@contextlib.asynccontextmanager
async def saying_who_is_not_reached(client: Client, bootstrap: Sequence[str]) -> AsyncIterator[None]:
    """Around what a tool asks of its cluster, whose first addresses are `bootstrap`.

    An error of waiting too long that tells of no broker is raised with what is known of them.
    """
    watch = _Watch(client, bootstrap)
    tasks = TaskOwner()
    tasks.start(watch.run(), "tell which brokers are not reached")
    try:
        yield
    except (ConnectionLost, DeadlineExceeded) as error:
        if watch.tells_more_than(error):
            raise type(error)("; ".join([str(error), *watch.reasons])) from error
        raise
    finally:
        await tasks.close()


class _Watch:
    """Looks at one client, and says what is new.

    Invariants
        Nothing is sent before `_FIRST_LOOK`, nor once there was metadata: then only the client's status is looked at.
        What is said is said once, until the broker was reached in between.
        What ends the tool (refused credentials, a defect) is not said here: the tool's own error tells.
    """

    def __init__(self, client: Client, bootstrap: Sequence[str]) -> None:
        self._client = client
        self._bootstrap = bootstrap
        self._failing: Mapping[str, str] = {}
        self._said: set[str] = set()
        self.reasons: Sequence[str] = ()
        """Why brokers are not reached, as far as is known: each names an address."""

    async def run(self) -> None:
        """Look until cancelled."""
        await asyncio.sleep(_FIRST_LOOK)
        while not await self._answered():
            pass
        self.reasons = ()
        self._said.clear()
        while True:
            self._look()
            await asyncio.sleep(_BETWEEN_LOOKS)

    def tells_more_than(self, error: IngestdError) -> bool:
        """Whether `error` names none of the brokers that are not reached."""
        return bool(self.reasons) and not any(reason.partition(": ")[0] in str(error) for reason in self.reasons)

    async def _answered(self) -> bool:
        """Whether there is metadata; if not, why is said.

        The client forgets its first addresses' connections with each failure. What refused them is in the error of a
        refresh, which shares the requests that are made anyway.
        """
        if self._client.metadata.snapshot.version:
            return True
        try:
            await self._client.metadata.refresh((), _PATIENCE)
        except DeadlineExceeded as late:
            self._say(_refusals(late.__cause__) or self.reasons or self._not_answered())
            return False
        except IngestdError:
            await asyncio.sleep(_PATIENCE)
            return False
        return True

    def _not_answered(self) -> Sequence[str]:
        """Who is being asked for a first answer; those that have refused are among them no more."""
        asked = {one.address: one.last_error for one in self._client.status().brokers}
        return [_reason(address, error) for address, error in (asked or dict.fromkeys(self._bootstrap)).items()]

    def _look(self) -> None:
        """Say which connections failed now and at the last look. One that ended, and that nobody needs, does not."""
        brokers = self._client.status().brokers
        failing = {
            broker.address: _reason(broker.address, broker.last_error)
            for broker in brokers
            if not broker.connected and broker.backoff_seconds and broker.last_error is not None
        }
        well = {broker.address for broker in brokers if broker.connected}
        # While a connection is being tried it neither fails nor is well.
        self._said = {reason for reason in self._said if not any(address in reason for address in well)}
        lasting = [reason for address, reason in failing.items() if address in self._failing and address not in well]
        self._failing = failing
        self._say(lasting)

    def _say(self, reasons: Sequence[str]) -> None:
        self.reasons = reasons
        news = [reason for reason in reasons if reason not in self._said]
        self._said.update(news)
        if news and _can_be_said():
            with contextlib.suppress(OSError):
                print(f"ingestd: {'; '.join(news)}; still trying", file=sys.stderr, flush=True)


def _refusals(error: BaseException | None) -> list[str]:
    """Why each broker that was asked for metadata gave none. An attempt that found nobody to ask tells nothing."""
    if not isinstance(error, ConnectionLost):
        return []
    return [reason for reason in str(error).removeprefix(_OPENING).split("; ") if reason]


def _reason(address: str, error: str | None) -> str:
    """An error of a client's status, which begins with its kind, as a person reads it, with the address."""
    reason = "no answer" if error is None else error.partition(": ")[2]
    return reason if address in reason else f"{address}: {reason}"


def _can_be_said() -> bool:
    """Whether a line on standard error is no line amid the output, as it is where both go to one file or pipe."""
    if sys.stderr is None:
        return False
    try:
        output, errors = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # one of them is closed, or is no file
        return True
    return sys.stdout.isatty() or not os.path.samestat(output, errors)
