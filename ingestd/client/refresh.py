"""Refresh: metadata by the client's own requests, on demand and periodic, from any broker that answers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from ingestd.client.answers import is_unknown, merge, read_metadata, unsettled, with_leaders, without_topics
from ingestd.client.listeners import Snapshot
from ingestd.client.metadata import NewLeader
from ingestd.errors import (
    AuthenticationFailed,
    Closed,
    ConfigurationError,
    ConnectionLost,
    DeadlineExceeded,
    ErrorCode,
    IngestdError,
    KafkaError,
    UnsupportedVersion,
)
from ingestd.retry import Deadline
from ingestd.tasks import TaskOwner
from ingestd.wire import requests

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ingestd.client.broker import Broker
    from ingestd.client.brokers import Brokers
    from ingestd.client.metadata import ClusterMetadata, Node
    from ingestd.client.settings import ClientSettings
    from ingestd.wire.requests import Build

__all__ = ["RefreshedMetadata", "is_refusal"]


class _Round:
    """The next request: the topics it will ask for, and the future for those that wait for it.

    If it fails, those that wait ask again, or give up. What is `wished` for is asked for until there is an answer.
    """

    __slots__ = ("created", "done", "everything", "topics", "waited_for", "wished")

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.created: set[str] = set()
        """Those of the topics that may be created if they are missing."""
        self.everything = False
        self.waited_for = False
        self.wished = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # If only `wanted` asked for a round, nobody looks at its outcome.
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())


class RefreshedMetadata:
    """The metadata source of an ordinary client, and of the daemon's supervisor.

    Invariants
        At most one round of metadata requests is in flight. All that ask meanwhile share the next one, because the
        answer to an earlier request may be too old for them.
        Between two requests that nobody waits for there is at least `metadata_minimum_interval`.
        A broker that fails is closed and deregistered, and the next one is asked. If none is left, the attempt has
        failed, and the next one begins after a backoff. If a broker is silent for `metadata_hedge`, the next one is
        asked as well. So a frozen node delays a refresh by no more than that.
        A topic that was asked for is refreshed with all others every `metadata_max_age`, until nobody asked for it for
        `metadata_idle` and no listener uses it.
    """

    def __init__(self, brokers: Brokers, settings: ClientSettings) -> None:
        self._brokers = brokers
        self._settings = settings
        self._snapshot = Snapshot()
        self._tracked: dict[str, float] = {}
        """When each topic was last asked for."""
        self._next: _Round | None = None
        self._hurry = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._periodic: asyncio.TimerHandle | None = None
        self._last_round = float("-inf")
        self._backoff = settings.retry_backoff()
        self._pause = 0.0
        self._failure: AuthenticationFailed | ConfigurationError | UnsupportedVersion | None = None
        self._last_error: IngestdError | None = None
        self._asked: dict[asyncio.Task[Any], Broker] = {}
        """The brokers of the request in flight, without those that failed."""
        self._tasks = TaskOwner()
        self._closed = False

    @property
    def snapshot(self) -> ClusterMetadata:
        """The newest metadata; empty before the first refresh."""
        return self._snapshot.metadata

    @property
    def failure(self) -> IngestdError | None:
        """The client is closed, cannot be used as it is set up, or was refused when it last asked. None: none of these.

        A broker refuses it (authentication), or speaks no version of Metadata that the client does.
        """
        return Closed("the client is closed") if self._closed else self._failure

    @property
    def last_error(self) -> IngestdError | None:
        """The error of the last attempt to refresh. None if it was answered, or if there was none yet."""
        if self._last_error is None and not self.snapshot.version and self._asked:
            return ConnectionLost(self._unanswered())
        return self._last_error

    def listen(
        self, changed: Callable[[ClusterMetadata], None], uses: Callable[[], Collection[str]] | None = None
    ) -> Callable[[], None]:
        """Call `changed` after every replacement of the snapshot; the returned function ends that.

        `uses()` names the topics that the listener still uses. A listener without it counts as using all topics.
        """
        return self._snapshot.listen(changed, uses)

    def wanted(self, topics: Collection[str], reason: str, *, create: bool = False) -> None:  # noqa: ARG002 - the reason is for sources that report
        """Have these topics refreshed soon, without waiting for it. See `MetadataSource.wanted`."""
        if self._closed:
            return
        self._track(topics)
        self._wish(topics, create=create)

    def hint(self, topic: str, partition: int, leader: int, leader_epoch: int, node: Node | None = None) -> None:
        """Apply a leader that an answer named, if its epoch is newer.

        `node` is the leader's address, if the answer gave it. Without it, an unknown node leads to a refresh.
        """
        self.hints([NewLeader(topic, partition, leader, leader_epoch, node)])

    def hints(self, leaders: Sequence[NewLeader]) -> None:
        """Apply all the leaders that an answer named, as `hint` does, in one replacement of the snapshot."""
        changed = with_leaders(self.snapshot, leaders)
        if changed is not None:
            if changed.nodes is not self.snapshot.nodes:
                self._brokers.replace(changed)
            self._snapshot.replace(changed)
        known = self.snapshot.nodes
        strangers = {new.topic for new in leaders if new.leader >= 0 and new.leader not in known}
        if strangers:
            self.wanted(strangers, "their new leader is not a known node")

    async def refresh(self, topics: Collection[str] | None, timeout: float, *, create: bool = False) -> ClusterMetadata:
        """Refresh (None: every topic known) and return the new snapshot; `create` as with `MetadataSource.wanted`.

        Topics without a leader, and unknown ones, are asked for again a few times. If that does not help, the snapshot
        has their error. Raises `DeadlineExceeded` when no broker answered in time. Raises these as soon as
        no broker answered because of them: `AuthenticationFailed`, `UnsupportedVersion`, and `ConfigurationError` for a
        file or secret that cannot be read. Raises `Closed`, `WrongLoop`.
        """
        deadline = Deadline.after(timeout)
        if topics is not None:
            self._track(topics)
        open_topics = topics
        doing = f"metadata of {', '.join(sorted(topics)[:5])}" if topics else "metadata of the cluster"
        # If all topics are refreshed, those that were unknown before are not worth more attempts.
        given_up = (
            set() if topics is not None else {name for name, was in self.snapshot.topics.items() if is_unknown(was)}
        )
        backoff = self._settings.retry_backoff()
        attempts = 0
        while True:
            await self._refresh_once(open_topics, deadline, doing, create=create)
            attempts += 1
            asked = self._tracked if topics is None else topics
            now = self.snapshot.topics
            open_topics = [name for name in asked if unsettled(now.get(name)) is not ErrorCode.none]
            open_topics = [name for name in open_topics if name not in given_up or not is_unknown(now.get(name))]
            delay = backoff.next_delay()
            if not open_topics or attempts >= self._settings.metadata_attempts or delay >= deadline.remaining:
                return self.snapshot
            await asyncio.sleep(delay)

    async def close(self) -> None:
        """End every refresh. All that wait get `Closed`. Never waits for the network."""
        self._closed = True
        if self._periodic is not None:
            self._periodic.cancel()
        await self._tasks.close()
        if self._next is not None and not self._next.done.done():
            self._next.done.set_exception(Closed("the client is closed"))

    async def _refresh_once(
        self, topics: Collection[str] | None, deadline: Deadline, doing: str, *, create: bool
    ) -> None:
        """Wait for shared rounds until one succeeds. After a failed round the next one begins after a backoff."""
        error: IngestdError | None = None
        while True:
            if self._closed:
                raise Closed("the client is closed")
            waiting = self._ask(topics, create=create)
            waiting.waited_for = True
            self._hurry.set()
            try:
                await deadline.wait_for(asyncio.shield(waiting.done), doing)
            except DeadlineExceeded as late:
                raise DeadlineExceeded(f"{late}; {self._unanswered() if error is None else error}") from error
            except ConnectionLost as failed:
                error = failed
                continue
            return

    def _unanswered(self) -> str:
        brokers = list(self._asked.values())
        asked = ", ".join(f"{broker.node.host}:{broker.node.port}" for broker in brokers)
        reasons = "; ".join(str(broker.last_error) for broker in brokers if broker.last_error is not None)
        return f"no answer from {asked or 'any broker'} yet{f' ({reasons})' if reasons else ''}"

    def _wish(self, topics: Collection[str] | None, *, create: bool = False) -> None:
        self._ask(topics, create=create).wished = True

    def _ask(self, topics: Collection[str] | None, *, create: bool) -> _Round:
        self._brokers.check_place()
        if self._next is None:
            self._next = _Round()
        if topics is None:
            self._next.everything = True
        else:
            self._next.topics.update(topics)
            self._next.created.update(topics if create else ())
        if self._runner is None:
            self._runner = self._tasks.start(self._run(), "refresh metadata")
        return self._next

    async def _run(self) -> None:
        """Send rounds while there are any. Then the task ends."""
        loop = asyncio.get_running_loop()
        try:
            while self._next is not None:
                await self._wait_for_turn(self._next, loop.time())
                current, self._next = self._next, None
                self._last_round = loop.time()
                await self._send(current)
        finally:
            self._runner = None
            if self._next is not None and not self._closed:  # a defect ended one round; the next one goes on
                self._runner = self._tasks.start(self._run(), "refresh metadata")

    async def _wait_for_turn(self, coming: _Round, now: float) -> None:
        """After a failure wait for the backoff. Otherwise wait for the minimum interval, unless somebody waits."""
        self._hurry.clear()
        if self._pause:
            await asyncio.sleep(self._pause)
            return
        interval = self._last_round + self._settings.metadata_minimum_interval - now
        if interval > 0 and not coming.waited_for:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._hurry.wait()

    async def _send(self, current: _Round) -> None:
        try:
            for names, create in self._questions(current):
                news = read_metadata(await self._answer(names, create=create))
                self._brokers.replace(news)
                self._snapshot.replace(merge(self.snapshot, news))
        except (ConnectionLost, AuthenticationFailed, ConfigurationError, UnsupportedVersion) as error:
            self._failure = None if isinstance(error, ConnectionLost) else error
            self._last_error = error
            self._pause = self._backoff.next_delay()
            if current.wished and not self._closed:
                self._wish(None if current.everything else current.topics)
                self._wish(current.created, create=True)
            current.done.set_exception(error)
            return
        except IngestdError as error:
            self._last_error = error
            self._set_periodic()
            current.done.set_exception(error)
            return
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            self._set_periodic()
            current.done.set_exception(
                Closed("the client is closed") if cancelled else IngestdError(f"refreshing metadata failed: {error!r}")
            )
            raise
        self._backoff.reset()
        self._pause = 0.0
        self._failure = None
        self._last_error = None
        if current.topics or current.everything or self._periodic is None:  # a round for brokers alone does not count
            self._set_periodic()
        current.done.set_result(None)

    def _questions(self, current: _Round) -> list[tuple[list[str], bool]]:
        """The topics of each request to make, and whether that request creates missing topics."""
        names = self._tracked.keys() | current.topics if current.everything else current.topics
        created, others = sorted(current.created), sorted(names - current.created)
        return [(created, True), (others, False)] if created and others else [(created or others, bool(created))]

    async def _answer(self, names: list[str], *, create: bool) -> Any:
        """The answer of the first broker that answers.

        When none does: raises `AuthenticationFailed`, `ConfigurationError` or `UnsupportedVersion` if one failed so,
        else `ConnectionLost`.
        """
        failures: dict[str, IngestdError] = {}
        build = requests.metadata(names, allow_auto_topic_creation=create)
        candidates = self._brokers.candidates()
        patience = self._settings.metadata_hedge
        asked = self._asked = {}
        try:
            while True:
                broker = next(candidates, None)
                if broker is not None:
                    name = f"ask {broker.node.host}:{broker.node.port} for metadata"
                    asked[self._tasks.start(self._outcome(broker, build), name)] = broker
                if not asked:
                    raise _nobody_answered(failures.values())
                limit = None if broker is None else patience
                done, _ = await asyncio.wait(asked, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    patience *= 2  # if the whole cluster is slow, its clients must not ask it many times over
                for task in done:
                    failed, outcome = asked.pop(task), task.result()
                    if not isinstance(outcome, IngestdError):
                        return outcome
                    if self._closed:
                        raise Closed("the client is closed") from outcome
                    failures[f"{failed.node.host}:{failed.node.port}"] = outcome
                    self._brokers.deregister(failed, str(outcome))
        finally:
            for task in asked:
                task.cancel()
            self._asked = {}

    async def _outcome(self, broker: Broker, build: Build) -> Any:
        """Ask one broker. Its answer, or the error."""
        try:
            answer = await broker.request(build, self._settings.metadata_request_timeout)
        except IngestdError as error:
            return error
        code = getattr(answer, "error_code", ErrorCode.none)
        if code is not ErrorCode.none:  # REBOOTSTRAP_REQUIRED (KIP-1102): this node cannot be used any more
            return KafkaError(code, "Metadata")
        return answer

    def _track(self, topics: Collection[str]) -> None:
        self._tracked.update(dict.fromkeys(topics, asyncio.get_running_loop().time()))

    def _refresh_periodically(self) -> None:
        """Forget the topics that nobody uses any more, and ask for the others."""
        last = asyncio.get_running_loop().time() - self._settings.metadata_idle
        # The answer to a request under way brings back topics that were forgotten meanwhile.
        self._track(self._snapshot.used(self._tracked.keys() | self.snapshot.topics.keys()))
        self._tracked = {name: asked_at for name, asked_at in self._tracked.items() if asked_at >= last}
        idle = self.snapshot.topics.keys() - self._tracked.keys()
        if idle:
            self._snapshot.replace(without_topics(self.snapshot, idle))
        self._wish(None)

    def _set_periodic(self) -> None:
        if self._periodic is not None:
            self._periodic.cancel()
            self._periodic = None
        if self._settings.metadata_max_age > 0 and not self._closed:
            loop = asyncio.get_running_loop()
            self._periodic = loop.call_later(self._settings.metadata_max_age, self._refresh_periodically)


def is_refusal(error: BaseException) -> bool:
    """Whether a broker and this client do not accept each other, also where they are to be asked again."""
    return isinstance(error, AuthenticationFailed) or isinstance(error.__cause__, AuthenticationFailed)


def _nobody_answered(failures: Collection[IngestdError]) -> IngestdError:
    reasons = "; ".join(map(str, failures))
    if any(isinstance(error, AuthenticationFailed) for error in failures):
        return AuthenticationFailed(reasons)
    if any(isinstance(error, ConfigurationError) for error in failures):
        return ConfigurationError("; ".join(dict.fromkeys(map(str, failures))))
    if any(isinstance(error, UnsupportedVersion) for error in failures):
        return UnsupportedVersion(reasons)
    nobody = ConnectionLost(f"no broker answered: {reasons}")
    nobody.__cause__ = next((error.__cause__ for error in failures if is_refusal(error)), None)
    return nobody
