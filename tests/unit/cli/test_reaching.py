"""What a tool says of brokers that it does not reach: why, once, and nothing where nothing is wrong."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest

from ingestd.cli import reaching
from ingestd.cli.configured import ClusterAccess
from ingestd.cli.reaching import saying_who_is_not_reached
from ingestd.client.status import BrokerStatus
from ingestd.errors import DeadlineExceeded, IngestdError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.client.client import Client

ADDRESS = "kafka-1:9092"


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "_FIRST_LOOK", 0.0)
    monkeypatch.setattr(reaching, "_PATIENCE", 0.2)
    monkeypatch.setattr(reaching, "_BETWEEN_LOOKS", 0.0)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a broker that takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.usefixtures("hurry")
async def test_a_broker_that_answers_nothing_is_named_also_by_the_error(
    silent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error was `refreshing metadata: not done within 1 s`: of whom, it did not say."""
    with pytest.raises(DeadlineExceeded, match=rf" not done within \S+ s; no answer from {silent} yet$"):
        async with ClusterAccess((silent,), timeout=1.0).client():
            pass
    assert capsys.readouterr() == ("", f"ingestd: {silent}: no answer; still trying\n")


@pytest.mark.usefixtures("hurry")
async def test_a_broker_that_refused_is_not_said_to_give_no_answer(
    silent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(DeadlineExceeded):
        async with ClusterAccess((silent, closed), timeout=2.0).client():
            pass
    said = capsys.readouterr().err
    assert f"{silent}: no answer" in said
    assert f"{closed}: no answer" not in said


@pytest.mark.usefixtures("hurry")
async def test_an_error_that_names_the_broker_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(DeadlineExceeded) as caught:
        async with ClusterAccess((closed,), timeout=2.0).client():
            pass
    assert str(caught.value).count(closed) == 1
    assert capsys.readouterr() == ("", f"ingestd: {closed}: Connection refused; still trying\n")


def broker(error: str | None = "ConnectionLost: refused", *, backoff: float = 0.5, up: bool = False) -> BrokerStatus:
    return BrokerStatus(1, ADDRESS, None, "control", up, 0, backoff, error)


FAILING = [broker()]
OTHER = [broker("ConnectionLost: timed out")]
TRYING = [broker(backoff=0.0)]
WELL = [broker(None, backoff=0.0, up=True)]
IDLE = [broker("ConnectionLost: closed by the broker", backoff=0.0)]
UNUSED = [broker(None, backoff=0.0)]
ONE_PURPOSE = [broker(), broker(None, backoff=0.0, up=True)]


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize(
    ("looks", "said"),
    [
        ([WELL, FAILING, WELL], []),
        ([WELL, FAILING, FAILING, FAILING], ["refused"]),
        ([FAILING, FAILING, TRYING, TRYING, FAILING, FAILING], ["refused"]),
        ([FAILING, FAILING, OTHER, OTHER], ["refused", "timed out"]),
        ([FAILING, FAILING, WELL, FAILING, FAILING], ["refused", "refused"]),
        ([WELL, IDLE, IDLE, IDLE], []),
        ([UNUSED, UNUSED, UNUSED], []),
        ([ONE_PURPOSE, ONE_PURPOSE], []),
    ],
    ids=["one look", "once", "while tried again", "when it changes", "again", "idle", "unused", "reached otherwise"],
)
async def test_of_a_known_cluster_it_is_said_what_fails_and_lasts(
    looks: list[list[BrokerStatus]], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    seen = asyncio.Event()

    class Known:
        """A client that has metadata, and whose connections are as in `looks`."""

        def __init__(self) -> None:
            self.metadata = self.snapshot = self
            self.version = 1
            self._looks = iter(looks)

        def status(self) -> Any:
            found = next(self._looks, None)
            if found is None:
                seen.set()
            self.brokers = found or looks[-1]
            return self

    async with saying_who_is_not_reached(cast("Client", Known()), [ADDRESS]):
        await asyncio.wait_for(seen.wait(), 10)
    assert capsys.readouterr().err.splitlines() == [f"ingestd: {ADDRESS}: {why}; still trying" for why in said]


@pytest.mark.usefixtures("hurry")
async def test_what_ends_the_tool_is_left_to_its_own_error(capsys: pytest.CaptureFixture[str]) -> None:
    asked = asyncio.Event()

    class Refused:
        def __init__(self) -> None:
            self.metadata = self.snapshot = self
            self.version = 0

        async def refresh(self, *_: object) -> None:
            asked.set()
            raise IngestdError("not authenticated")

    async with saying_who_is_not_reached(cast("Client", Refused()), [ADDRESS]):
        await asyncio.wait_for(asked.wait(), 10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("errors", "can"), [(subprocess.PIPE, "True"), (subprocess.STDOUT, "False")])
def test_nothing_is_said_amid_the_output(errors: int, can: str) -> None:
    """`ingestd topics list > topics.json 2>&1`: a line amid JSON would be worse than silence."""
    program = "from ingestd.cli import reaching; print(reaching._can_be_said())"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=errors, text=True, check=True)
    assert done.stdout.strip() == can
