"""`python -m ingestd.broker --help` says of each option what it does."""

from __future__ import annotations

import re

import pytest

from ingestd.broker.__main__ import main


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
