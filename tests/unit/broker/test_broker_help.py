"""`python -m ingestd.broker`: `--help` says of each option what it does; a start that fails says where."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, NoReturn

import pytest

from ingestd.broker import __main__ as broker
from ingestd.broker.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path


def test_every_option_is_explained_and_those_that_choose_say_their_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10000")
    with pytest.raises(SystemExit):
        main(["--help"])
    options = capsys.readouterr().out.partition("options:\n")[2]
    said = [re.split(r"\s{2,}", each.strip(), maxsplit=1) for each in re.split(r"\n  (?=-)", options)]
    assert [option for option, *text in said if not text] == []
    explained = dict(said)
    assert explained["--listen HOST:PORT"].endswith("default: 127.0.0.1:9092")
    assert "default: always" in explained["--flush {os,always}"]


def test_a_full_disk_at_the_start_is_said_with_the_directory_of_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # All that was said was "[Errno 28] No space left on device".
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(broker, "_run", full)
    assert main(["--data", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"ingestd broker: {tmp_path}: No space left on device; make room there\n"
