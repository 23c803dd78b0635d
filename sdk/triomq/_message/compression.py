"""Compressed bodies: zlib always, LZ4 and Zstandard when their libraries are installed (docs/protocol/messages.md §5).

Upstream: ``Compressor``, ``CompressorFactory``, ``CompressionType``.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import threading
import zlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from triomq._arguments.kinds import check_methods
from triomq._error_text import error_text, named_error, shown
from triomq.errors import InvalidCall, MessageIllegal
from triomq_protocol.record.layout import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

_zlib_stream: Callable[[], Any] = zlib.decompressobj
_zlib_error: Any = zlib.error
# Two to four times as fast, and readers of a body wait for it in the loop. There is no wheel for some machines.
with contextlib.suppress(ImportError):
    from isal import isal_zlib

    _zlib_stream, _zlib_error = isal_zlib.decompressobj, isal_zlib.error

COMPRESS_FROM_BYTES: Final = 4096
"""Bodies from this size on are compressed (``compressMsgBodyOverHowmuch``)."""

MAX_DECOMPRESSED_BYTES: Final = 64 * 1024 * 1024
"""A body that grows beyond this is refused: 4 MiB of well compressed zeros would fill the memory."""

_FRAMES_MAX: Final = 16_384
"""A body of 4 MiB has this many of 256 bytes; of empty ones it has 450,000, which take half a second."""

_ONE_CALL_BYTES: Final = 8 * 1024 * 1024
"""A Zstandard frame that states at most this size is decompressed by one call, which is faster, and again if others
follow it."""

_ZSTD_STEP_BYTES: Final = 1024
"""Frames are read in steps of this size: the library has no bound for a step's result, which is 32 MiB at most, as
4 bytes may stand for 128 KiB."""

_LZ4_STEP_BYTES: Final = 8192
"""The same for LZ4: the result is 2 MiB at most. One call for the whole body takes twice as long: its result grows by
copies."""


class Compressor(Protocol):
    """Compresses bodies before they are sent; large ones are compressed in threads, several at the same time."""

    @property
    def sys_flag(self) -> int:
        """The message sysFlag bits that state how to decompress."""

    def compress(self, body: bytes, /) -> bytes:
        """The compressed body."""


class ZlibCompressor:
    """Zlib (RFC 1950); the only kind that clients and brokers of all versions read.

    Args:
        level: 1-9, upstream's default is 5.
    """

    sys_flag: int = COMPRESSED | COMPRESSION_ZLIB

    def __init__(self, level: int = 5) -> None:
        self._level = level

    def compress(self, body: bytes, /) -> bytes:
        """The compressed body."""
        return zlib.compress(body, self._level)


class Lz4Compressor:
    """LZ4 frames; needs the package ``lz4``.

    Args:
        level: see ``lz4.frame.compress``.
    """

    sys_flag: int = COMPRESSED | COMPRESSION_LZ4

    def __init__(self, level: int = 0) -> None:
        self._lz4 = _library("lz4.frame", "lz4")
        self._level = level

    def compress(self, body: bytes, /) -> bytes:
        """The compressed body."""
        # Java's clients read only independent blocks, and drop any other message and those after it in the same pull.
        return bytes(self._lz4.compress(body, compression_level=self._level, block_linked=False))


class ZstdCompressor:
    """One Zstandard frame; needs the package ``zstandard``.

    Args:
        level: 1-22.
    """

    sys_flag: int = COMPRESSED | COMPRESSION_ZSTD

    def __init__(self, level: int = 5) -> None:
        self._zstandard = _library("zstandard", "zstandard")
        self._level = level
        # The library's object must not be used by two threads at once: the process would be killed by SIGSEGV.
        self._of_thread = threading.local()
        self._of_thread.compressor = self._zstandard.ZstdCompressor(level=level)

    def compress(self, body: bytes, /) -> bytes:
        """The compressed body."""
        compressor = getattr(self._of_thread, "compressor", None)
        if compressor is None:
            compressor = self._of_thread.compressor = self._zstandard.ZstdCompressor(level=self._level)
        return bytes(compressor.compress(body))


def checked_compressor(compressor: Compressor | None) -> Compressor | None:
    """The user's compressor, checked.

    Raises:
        InvalidCall: it is not a compressor, or its flag is none that readers can decompress.
    """
    if compressor is None:
        return None
    check_methods("compressor", compressor, "compress")
    flag = getattr(compressor, "sys_flag", None)
    if not isinstance(flag, int) or not flag & COMPRESSED or flag & ~(COMPRESSED | COMPRESSION_MASK):
        raise InvalidCall(
            f"sys_flag of the compressor {type(compressor).__name__} is {shown(flag)}; it is that of the compressor in triomq.plugins whose format this "
            "one writes, such as ZlibCompressor.sys_flag"
        )
    return compressor


def compress(compressor: Compressor, body: bytes) -> bytes:
    """Call a user's compressor.

    Raises:
        InvalidCall: it has raised, or returned something other than bytes.
    """
    try:
        data: object = compressor.compress(body)
    except Exception as error:
        raise InvalidCall(f"the compressor {type(compressor).__name__} failed: {named_error(error)}") from error
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidCall(f"the compressor {type(compressor).__name__} returned {type(data).__name__}, not bytes")
    if not data:
        raise InvalidCall(f"the compressor {type(compressor).__name__} returned no bytes for a body of {len(body)}")
    return bytes(data)


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body before compression; unchanged if the flag states that it was not compressed.

    Raises:
        MessageIllegal: it does not match the flag, or grows beyond :data:`MAX_DECOMPRESSED_BYTES`.
        InvalidCall: the library it needs is not installed.
    """
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & COMPRESSION_MASK
    if kind in (0, COMPRESSION_ZLIB):
        return _unzlib(body)
    if kind == COMPRESSION_LZ4:
        return _unlz4(body)
    if kind == COMPRESSION_ZSTD:
        return _unzstd(body)
    raise MessageIllegal(f"the body is compressed in an unknown way, sysFlag {sys_flag:#x}")


def _unzlib(body: bytes) -> bytes:
    stream = _zlib_stream()
    try:
        data: bytes = stream.decompress(body, MAX_DECOMPRESSED_BYTES + 1)
    except _zlib_error as error:
        raise MessageIllegal("the body is not a zlib stream", remark=error_text(error)) from error
    if not stream.eof and len(data) <= MAX_DECOMPRESSED_BYTES:
        raise MessageIllegal("the body's zlib stream is cut short")
    if len(data) > MAX_DECOMPRESSED_BYTES:
        raise _too_large()
    return data


def _unlz4(body: bytes) -> bytes:
    new_stream = _library("lz4.frame", "lz4").LZ4FrameDecompressor
    try:
        return _join_frames(new_stream, body, _LZ4_STEP_BYTES)
    except RuntimeError as error:
        raise MessageIllegal("the body is not an LZ4 frame", remark=error_text(error)) from error


def _unzstd(body: bytes) -> bytes:
    zstandard = _library("zstandard", "zstandard")
    try:
        declared = zstandard.frame_content_size(body)  # -1: not stated
        if declared > MAX_DECOMPRESSED_BYTES:
            raise _too_large()
        # Not its stream reader, which takes a truncated frame for a complete one.
        decompressor = zstandard.ZstdDecompressor()
        # After a first frame that is empty, or states no size, as one from a stream, this call ignores the others.
        if 0 < declared <= _ONE_CALL_BYTES:
            with contextlib.suppress(zstandard.ZstdError):
                return bytes(decompressor.decompress(body, MAX_DECOMPRESSED_BYTES, allow_extra_data=False))
        # Maybe several frames, or frames to skip (RFC 8878, section 3); or an error, which comes again.
        return _join_frames(decompressor.decompressobj, body, _ZSTD_STEP_BYTES)
    except zstandard.ZstdError as error:
        what = f"the body is not a whole Zstandard frame of at most {MAX_DECOMPRESSED_BYTES} bytes"
        raise MessageIllegal(what, remark=error_text(error)) from error


def _join_frames(new_stream: Callable[[], Any], frames: bytes, step_bytes: int) -> bytes:
    """Decompress one frame after the other.

    Args:
        new_stream: makes the object that decompresses one frame.
        frames: the frames, at least one.
        step_bytes: how much of them is given to it at a time.
    """
    # Not a list of parts: they and the joined body would be in memory together.
    body = io.BytesIO()
    at = size = count = 0
    while at < len(frames) or not count:
        count += 1
        if count > _FRAMES_MAX:
            raise MessageIllegal(f"the body has more than {_FRAMES_MAX} compressed frames")
        stream = new_stream()
        while not stream.eof:
            step = frames[at : at + step_bytes]
            if not step:
                raise MessageIllegal("the last frame of the body is cut short")
            at += len(step)
            part = stream.decompress(step)
            size += len(part)
            if size > MAX_DECOMPRESSED_BYTES:
                raise _too_large()
            body.write(part)
        at -= len(stream.unused_data or b"")
    return body.getvalue()


def _too_large() -> MessageIllegal:
    return MessageIllegal(f"the body grows beyond {MAX_DECOMPRESSED_BYTES} bytes when decompressed")


def _library(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidCall(f"this compression needs the package {package}: pip install {package}") from error
