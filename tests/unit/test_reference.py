"""config/REFERENCE.md says what the settings classes say, and each key says what it means."""

from __future__ import annotations

from reference import PAGE, render, tables


def test_the_configuration_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "make reference"


def test_every_key_of_a_table_that_a_user_writes_often_says_what_it_means() -> None:
    silent = [
        f"{title} {key}"
        for title, schema in tables()
        if not title.startswith("[pipelines")
        for key, value in schema["properties"].items()
        if "description" not in value and key != "name"
    ]
    assert silent == []
