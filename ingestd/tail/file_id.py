"""File identity: the kernel's own name of a file, the same through every rename, link and open.

A file handle (`name_to_handle_at(2)`) holds the inode and its generation, so an inode that is used again gives another
handle. Not every file system keeps that promise, and not every sandbox allows the call. There, device, inode and birth
time are what is known.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from typing import TYPE_CHECKING, Final, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DELETED_SUFFIX", "FileId", "identify", "lists_other_inodes", "may_hold"]

DELETED_SUFFIX: Final = " (deleted)"
"""What the kernel adds in /proc/self/fd to the path of a file that has no name any more."""

# From linux/magic.h and, for ZFS, from OpenZFS.
_OVERLAYFS: Final = 0x794C7630
_TRUSTED: Final = frozenset({
    0xEF53,  # ext2, ext3, ext4
    0x58465342,  # XFS
    0x9123683E,  # btrfs
    0x01021994,  # tmpfs
    0xF2F52010,  # f2fs
    0x2FC12FC1,  # ZFS
    _OVERLAYFS,
})  # fmt: skip

_EMPTY_PATH: Final = 0x1000
_HANDLE_FID: Final = 0x200  # Linux 6.6: a handle to compare, where there is none to open a file by
_DONT_SYNC: Final = 0x4000  # a birth time does not change: no server needs to be asked for it
_BIRTH: Final = 0x800  # STATX_BTIME
_HANDLE_BYTES: Final = 128  # MAX_HANDLE_SZ

_STATX: Final = struct.Struct("=I76xqI")  # stx_mask, …, stx_btime
_HANDLE: Final = struct.Struct("=Ii")  # bytes of it, type; the bytes follow
_STATFS: Final = struct.Struct("=I52x8s")  # f_type, …, f_fsid
_LAYOUT_KNOWN: Final = os.uname().machine in {"x86_64", "aarch64", "riscv64", "ppc64le", "loongarch64"} and (
    ctypes.sizeof(ctypes.c_long) == 8
)
"""Elsewhere `struct statfs` differs, and files have no handle."""


class FileId(NamedTuple):
    """What the kernel knows a file by.

    birth: nanoseconds since 1970, 0 where unknown. handle: its type and bytes in hex, "" where there is none to trust.
    volume: the file system, in hex. It may change when that is mounted anew. A disk and its copy have the same one.
    """

    device: int
    inode: int
    birth: int = 0
    handle: str = ""
    volume: str = ""

    def same(self, other: FileId) -> bool:
        """Whether both are one file, by the strongest that both have. For two looks of one daemon."""
        if self.handle and other.handle:
            return self.handle == other.handle and self.volume == other.volume
        return self.device == other.device and self.inode == other.inode and self._born_alike(other)

    def resembles(self, other: FileId) -> bool:
        """Whether both may be one file, after a reboot or under another kernel too. The bytes decide then.

        The same handle on another volume need not be the same file: btrfs numbers the files of each new disk alike.
        """
        if self.handle and other.handle:
            return self.handle == other.handle and (self.volume == other.volume or self._born_alike(other))
        return self.inode == other.inode and self._born_alike(other)

    def _born_alike(self, other: FileId) -> bool:
        return self.birth == other.birth or not (self.birth and other.birth)


class _Buffers(threading.local):
    """What the kernel writes into, and how it is handed over: files are looked at in several threads."""

    def __init__(self) -> None:
        self.statfs = ctypes.create_string_buffer(120)
        self.statx = ctypes.create_string_buffer(256)
        self.handle = ctypes.create_string_buffer(_HANDLE.size + _HANDLE_BYTES)
        self.statfs_at, self.statx_at, self.handle_at = map(ctypes.byref, (self.statfs, self.statx, self.handle))
        self.mount_at = ctypes.byref(ctypes.c_int())


_buffers = _Buffers()


def _function(name: str) -> Callable[..., int]:
    """A function of the C library that answers 0 if it could; one that never can where the library lacks it."""
    try:
        return cast("Callable[..., int]", getattr(ctypes.CDLL(None), name))
    except (AttributeError, OSError):
        return lambda *_: -1


_fstatfs = _function("fstatfs" if _LAYOUT_KNOWN else "")
_statx = _function("statx")
_name_to_handle_at = _function("name_to_handle_at")


def identify(descriptor: int, status: os.stat_result | None = None) -> FileId:
    """The identity of an open file; O_PATH is enough. `status`: its `os.fstat`, if at hand. Raises `OSError`.

    Nothing is remembered between calls: a device number may be another file system's the next time.
    """
    status = status or os.fstat(descriptor)
    device, inode = status.st_dev, status.st_ino
    kind, volume = _file_system(descriptor)
    handle = _handle_of(descriptor) if kind in _TRUSTED else ""
    if not handle:
        volume = ""
    elif kind == _OVERLAYFS:
        # A handle may be that of the image's file. What became of it has the same one in every overlay over that image,
        # and under each of its hard links, which are files of their own once they are written to.
        volume += f"-{device:x}-{inode:x}"
    return FileId(device, inode, _birth_of(descriptor), handle, volume)


def may_hold(directory: str, file: FileId) -> bool:
    """Whether a directory is on the file system that a file was on. Raises `OSError`.

    On an overlay, files may have other device numbers than directories. It has one id.
    """
    descriptor = os.open(directory, os.O_PATH | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_dev == file.device:
            return True
        return bool(file.volume) and file.volume.partition("-")[0] == _file_system(descriptor)[1]
    finally:
        os.close(descriptor)


def lists_other_inodes(directory: str) -> bool:
    """Whether it may list files under other inode numbers than they have: on an overlay. Raises `OSError`."""
    descriptor = os.open(directory, os.O_PATH | os.O_CLOEXEC)
    try:
        return _file_system(descriptor)[0] == _OVERLAYFS
    finally:
        os.close(descriptor)


def _file_system(descriptor: int) -> tuple[int, str]:
    """Its type and its id in hex; (0, "") where the kernel does not say."""
    buffers = _buffers
    if _fstatfs(descriptor, buffers.statfs_at):
        return 0, ""
    kind, volume = _STATFS.unpack_from(buffers.statfs)
    return kind, volume.hex()


def _handle_of(descriptor: int) -> str:
    """The handle in hex; "" where there is none (EOPNOTSUPP, EOVERFLOW), or no leave to ask (EPERM, ENOSYS)."""
    buffers = _buffers
    for flags in (_EMPTY_PATH, _EMPTY_PATH | _HANDLE_FID):
        _HANDLE.pack_into(buffers.handle, 0, _HANDLE_BYTES, 0)
        if not _name_to_handle_at(descriptor, b"", buffers.handle_at, buffers.mount_at, flags):
            length, kind = _HANDLE.unpack_from(buffers.handle)
            return f"{kind:02x}{buffers.handle.raw[_HANDLE.size : _HANDLE.size + length].hex()}"
    return ""


def _birth_of(descriptor: int) -> int:
    """Nanoseconds since 1970; 0 where the file system or the kernel does not say."""
    buffers = _buffers
    if _statx(descriptor, b"", _EMPTY_PATH | _DONT_SYNC, _BIRTH, buffers.statx_at):
        return 0
    mask, seconds, nanoseconds = _STATX.unpack_from(buffers.statx)
    return max(0, seconds * 1_000_000_000 + nanoseconds) if mask & _BIRTH else 0
