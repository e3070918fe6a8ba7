"""The text of a compressed file is that of the file before; what is damaged or cut off is said."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import random
import subprocess
import sys
import tempfile
from functools import partial
from typing import TYPE_CHECKING

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.tail import text as module
from ingestd.tail.text import open_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ingestd.tail.text import Text

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": partial(lzma.compress, preset=1),
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    "lz4": lz4.frame.compress,
}
codecs = pytest.mark.parametrize("codec", COMPRESS)
MIB = 1 << 20


def opened(data: bytes, codec: str = "") -> Text:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return open_text(os.dup(file.fileno()), codec)


def lines(size: int, seed: int = 1) -> bytes:
    """So many bytes of text that is compressed to about a half."""
    return b"".join(map(b"%015x line\n".__mod__, map(random.Random(seed).getrandbits, [60] * (size // 21 + 1))))[:size]


def read_on(text: Text, position: int) -> tuple[bytes, int]:
    """All that can be read from a position, and the number of the error that ended it, 0 at the end."""
    found = b""
    while True:
        try:
            piece = text.read(position + len(found), 1000)
        except OSError as error:
            return found, error.errno or -1
        if not piece:
            return found, 0
        found += piece


members = st.lists(st.binary(max_size=300) | st.integers(0, 99).map(lambda n: lines(n * 40, n)), min_size=1, max_size=4)
reads = st.lists(st.tuples(st.integers(0, 16_000), st.integers(0, 9000)), max_size=12)


@given(codec=st.sampled_from(["", *COMPRESS]), members=members, reads=reads, padding=st.integers(0, 2))
@settings(max_examples=300, deadline=None)
def test_any_bytes_can_be_read_in_any_order(
    codec: str, members: list[bytes], reads: list[tuple[int, int]], padding: int
) -> None:
    whole = b"".join(members)
    stored = bytes(4 * padding).join(map(COMPRESS[codec], members)) if codec else whole
    with pytest.MonkeyPatch.context() as patch, opened(stored, codec) as text:
        patch.setattr(module, "_WINDOW_BYTES", 4000)  # no less than a step gives
        patch.setattr(module, "_BLOCK_BYTES", 100)
        for position, length in reads:
            assert text.read(position, length) == whole[position : position + length]
            view = memoryview(bytearray(b"?" * length))
            count = text.read_into(view, position)
            assert bytes(view) == whole[position : position + length].ljust(length, b"?")
            assert count == len(whole[position : position + length])
            assert text.size <= len(whole)
        assert text.read(len(whole), 1) == b""
        assert text.size == len(whole)
        assert text.complete == bool(codec)


@codecs
def test_a_cut_off_file_gives_what_it_has_then_says_so_and_goes_on_once_it_is_whole(codec: str) -> None:
    whole = lines(3000)
    first = COMPRESS[codec](whole[:2000])
    stored = first + COMPRESS[codec](whole[2000:])
    with tempfile.NamedTemporaryFile() as file, open_text(file.name, codec) as text:
        at = 0
        for byte in range(len(stored)):
            # At the end of the first member nothing is missing yet.
            if byte != len(first):
                data, number = read_on(text, at)
                assert data == whole[at : at + len(data)]
                assert number == errno.EBADMSG
                assert not text.complete
                at += len(data)
            file.write(stored[byte : byte + 1])
            file.flush()
        assert text.read(at, len(whole)) == whole[at:]
        assert text.read(0, len(whole)) == whole
        assert text.read(len(whole), 1) == b""
        assert text.complete


@codecs
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_damage_is_said_and_never_more_than_the_file_held_before(codec: str, data: st.DataObject) -> None:
    stored = bytearray(COMPRESS[codec](lines(2000)))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with opened(bytes(stored), codec) as text:
        found, number = read_on(text, 0)
        assert len(found) < MIB
        assert (number, text.complete) in {(errno.EBADMSG, False), (0, True)}
        assert read_on(text, len(found)) == (b"", number), "it says so again"


@codecs
def test_what_is_not_compressed_is_damaged(codec: str) -> None:
    with opened(b"no such thing\n" * 20, codec) as text:
        for _ in range(2):
            with pytest.raises(OSError, match="damaged: "):
                text.read(0, 10)
        assert not text.complete


@codecs
def test_text_before_the_damage_is_read(codec: str) -> None:
    whole = lines(MIB)
    with opened(COMPRESS[codec](whole) + b"rubbish after it", codec) as text:
        assert text.read(0, 2 * MIB) == whole
        with pytest.raises(OSError, match="trailing garbage"):
            text.read(len(whole), 1)


def test_a_second_member_that_is_damaged_or_cut_off_is_no_garbage() -> None:
    first, second = lines(1000), COMPRESS["gz"](lines(1000))
    for stored, said in [(second[:5], "cut off"), (second[:200], "cut off"), (second[:2] + b"x" * 200, "damaged: ")]:
        with opened(COMPRESS["gz"](first) + stored, "gz") as text:
            text.read(0, 2 * MIB)
            with pytest.raises(OSError, match=said):
                text.read(text.size, 1)


@codecs
def test_a_step_decodes_little_whatever_the_file_holds(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # 64 KiB of a file full of zeros may be gigabytes of text.
    size = 16 * MIB
    with opened(COMPRESS[codec](bytes(size)), codec) as text:
        assert isinstance(text, module.CompressedText)
        steps = []
        step = text._step
        monkeypatch.setattr(text, "_step", lambda: steps.append(step()) or steps[-1])
        assert text.read(size - 1, 2) == b"\0"
        assert sum(map(len, steps)) == size
        assert max(map(len, steps)) <= 128 * 1024
        assert len(text._window) <= 5 * MIB


@codecs
def test_reading_back_a_little_does_not_begin_again(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lines(6 * MIB)
    with opened(COMPRESS[codec](whole), codec) as text:
        offsets = []
        pread = os.pread
        monkeypatch.setattr(module.os, "pread", lambda file, size, at: offsets.append(at) or pread(file, size, at))
        for at in range(0, 5 * MIB, MIB // 2):
            assert text.read(at, MIB) == whole[at : at + MIB]
            back = max(0, at - MIB // 2)
            assert text.read(back, 10) == whole[back : back + 10]
        assert offsets == sorted(set(offsets))
        assert text.read(0, 10) == whole[:10]
        assert offsets.count(0) == 2


def test_zstandard_frames_that_are_skipped_or_flushed_line_by_line_are_read() -> None:
    skipped = b"\x5a\x2a\x4d\x18" + (200_000).to_bytes(4, "little") + bytes(200_000)
    stream = zstandard.ZstdCompressor().compressobj()
    whole = lines(20_000)
    flushed = b"".join(
        stream.compress(line) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for line in whole.splitlines(True)
    )
    with opened(skipped + flushed + stream.flush() + skipped, "zst") as text:
        assert text.read(0, MIB) == whole
        assert text.read(len(whole), 1) == b""
        assert text.complete


def test_a_decoder_that_wants_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MEMORY_BYTES", 8 * MIB)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 16 * MIB}]
    with opened(lzma.compress(b"text", filters=filters), "xz") as text, pytest.raises(OSError, match=r"[Mm]emory"):
        text.read(0, 1)


def test_another_codec_is_refused_and_nothing_opened(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'rar': expected gz, "):
        open_text(os.fspath(tmp_path / "absent"), "rar")
    with pytest.raises(FileNotFoundError):
        open_text(os.fspath(tmp_path / "absent"))


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with open_text(os.fspath(tmp_path / "fifo")) as text, pytest.raises(OSError, match="Illegal seek"):
        text.read(0, 1)


def test_a_file_that_is_not_compressed_is_read_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n")
    with open_text(os.fspath(path)) as text:
        assert text.size == text.status().st_size == 4
        with path.open("ab") as file:
            file.write(b"two\n")
        assert text.read(0, 100) == b"one\ntwo\n"
        assert text.size == 8
        assert not text.complete
    with pytest.raises(OSError, match="Bad file descriptor"):
        text.status()


def test_no_library_is_loaded_before_it_is_needed() -> None:
    code = "import sys, ingestd.tail.text; print({'zstandard', 'lz4'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"set()\n"
