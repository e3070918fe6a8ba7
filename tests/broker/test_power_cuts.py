"""Cuts of power at every step of random histories: what was acknowledged is there, and nothing that was not committed.

A failure names its seed. `INGESTD_POWER_SEED=7 INGESTD_POWER_SEEDS=1` runs that history again. A campaign:
`INGESTD_POWER_SEEDS=1000 INGESTD_POWER_SHARE=1`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from embedded.histories import History

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST = int(os.environ.get("INGESTD_POWER_SEED", "1"))
SEEDS = int(os.environ.get("INGESTD_POWER_SEEDS", "6"))
SHARE = float(os.environ.get("INGESTD_POWER_SHARE", "0.1"))
"""Of the places where the power may be cut."""
MEMORY = Path("/dev/shm")


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory, where the system has such: the files of each cut are made and removed."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as made:
        yield Path(made)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_a_cut_of_power_takes_nothing_that_was_acknowledged(directory: Path, seed: int) -> None:
    history = History(seed, directory, generations=3, steps=40, share=SHARE)
    history.run()
    assert history.cuts > 100 * SHARE
