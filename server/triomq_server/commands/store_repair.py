"""``triomq admin repair-store``: repairs a stopped broker's log and tables with those of another broker of its set."""

from __future__ import annotations

import json
import mmap
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import attrs
import click
import trio

from triomq_protocol.codes import RequestCode
from triomq_server.commands.options import EXIT_FAILED, EXIT_USAGE, fail

if TYPE_CHECKING:
    from triomq_server.replication.log_copy import LogCopy
    from triomq_server.store.files.segments import Segment
    from triomq_server.store.log_repair import Place
    from triomq_server.wire import Link

    OpenLink = Callable[[str], AbstractAsyncContextManager[Link]]

CONNECT_TIMEOUT_S = 10.0
_LARGEST_RECORD_BYTES = 1 << 24
"""What is read to find out a record's size: RocketMQ's brokers give whole records only."""

TABLES = (
    ("topics.json", RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable"),
    ("subscriptionGroup.json", RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable"),
    ("consumerOffset.json", RequestCode.GET_ALL_CONSUMER_OFFSET, "offsetTable"),
    ("delayOffset.json", RequestCode.GET_ALL_DELAY_OFFSET, "offsetTable"),
)
"""The files below `config`, which request answers with each, and the member that holds the table."""


@attrs.frozen
class Outcome:
    """What became of one damaged place or table.

    Attributes:
        what: the damage.
        found: what the other broker has instead; empty if it has nothing that fits.
        source: which one.
        repaired: whether it has been written.
        reasons: why others, or all, are of no use.
    """

    what: str
    found: str = ""
    source: str = ""
    repaired: bool = False
    reasons: tuple[str, ...] = ()


class UnusableCopyError(Exception):
    """The other broker's copy does not fit."""


@click.command("repair-store")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--from", "sources", multiple=True, required=True, metavar="HOST:PORT",
    help="A broker of the same set, its main port; may be repeated, the first one with a sound copy is taken.",
)  # fmt: skip
@click.option(
    "--log", type=click.Path(exists=True, file_okay=False, path_type=Path), help="storePathCommitLog, if set."
)
@click.option("--yes", is_flag=True, help="Write; without it nothing is changed.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def repair_store(directory: Path, sources: tuple[str, ...], log: Path | None, yes: bool, as_json: bool) -> None:
    """Repair damaged records and tables of the store in DIRECTORY (storePathRootDir) from a broker of its set.

    The broker of this store must be stopped. Exit status 1: something is damaged still.
    """
    from triomq_server.store import StoreDamaged, StoreLocked

    try:
        outcomes = trio.run(repair, directory, sources, log, yes)
    except StoreLocked as error:
        fail(f"{error}: stop the broker first", EXIT_USAGE)
    except (StoreDamaged, OSError) as error:
        fail(str(error), EXIT_USAGE)
    if as_json:
        click.echo(json.dumps([attrs.asdict(one) for one in outcomes]))
    else:
        _print(outcomes, yes=yes)
    if any(not one.repaired for one in outcomes):
        raise SystemExit(EXIT_FAILED)


def _print(outcomes: list[Outcome], *, yes: bool) -> None:
    for one in outcomes:
        click.echo(one.what)
        for reason in one.reasons:
            click.echo(f"    {reason}")
        if one.found:
            click.echo(f"    {'repaired' if one.repaired else 'can be repaired'} from {one.source}: {one.found}")
    repairable, repaired = sum(bool(one.found) for one in outcomes), sum(one.repaired for one in outcomes)
    if not outcomes:
        click.echo("nothing is damaged")
    elif yes:
        click.echo(f"{repaired} of {len(outcomes)} repaired; queue entries are written again by the next start")
    else:
        click.echo(f"{repairable} of {len(outcomes)} can be repaired; nothing has been changed (--yes writes)")


async def repair(
    root: Path, sources: Sequence[str], log: Path | None, write: bool, open_link: OpenLink | None = None
) -> list[Outcome]:
    """Repair what can be repaired; every damaged place and table has an outcome.

    Args:
        root: the store's directory.
        sources: main ports of other brokers of the set.
        log: the log's directory, if it is another than `commitlog` below.
        write: whether to write; else only what would be written is found out.
        open_link: the network.

    Raises:
        StoreLocked: the broker of this store runs.
        StoreDamaged: there is no log, or its files have different lengths.
        OSError: a file cannot be read or written.
    """
    from triomq_server.store import RealDisk
    from triomq_server.store.checking import log_files
    from triomq_server.store.log_repair import damaged_places
    from triomq_server.wire import open_link as open_tcp_link

    disk = RealDisk()
    release = disk.lock(f"{root}/lock")
    try:
        segments = list(log_files(log or root / "commitlog"))
        places = await disk.run(lambda: list(damaged_places(segments, root / "triomq" / "damaged")))
        tables = [(name, what) for name, _, member in TABLES if (what := _flaw_of_table(root, name, member))]
        if not places and not tables:
            return []
        opener = open_link or open_tcp_link
        outcomes = [await _repair_place(root, segments, place, sources, write, opener) for place in places]
        outcomes += [await _repair_table(root, name, what, sources, write, opener) for name, what in tables]
        return [one for one in outcomes if one is not None]
    finally:
        release()


# -- the log


async def _repair_place(
    root: Path, segments: list[Segment], place: Place, sources: Sequence[str], write: bool, open_link: OpenLink
) -> Outcome | None:
    """None if the copy has the same bytes: then it is the log's own mark at a file's end that was taken for damage."""
    from triomq_server.store import RealDisk
    from triomq_server.store.log_repair import is_same, tail_as_written, write_place

    place = tail_as_written(segments, place)
    what = f"log offset {place.start}, {place.stop - place.start} bytes: {place.what}"
    reasons = []
    for source in sources:
        with tempfile.TemporaryFile(dir=root) as spool:  # a place may be as large as the log
            try:
                async with _opened(source, open_link) as link:
                    records, place = await _fetch(link, segments, place, spool)
            except UnusableCopyError as error:
                reasons.append(f"{source}: {error}")
                continue
            with _mapped(spool) as data:
                if is_same(segments, place, data):
                    return None
                if write:
                    write_place(RealDisk(), root, segments, place, data)
        return Outcome(what, f"{records} records", source, write, tuple(reasons))
    if not place.after:
        reasons.append("this is the log's end: without a repair the next start cuts it off")
    return Outcome(what, reasons=tuple(reasons))


async def _fetch(link: Link, segments: list[Segment], place: Place, spool: IO[bytes]) -> tuple[int, Place]:
    """Copy a place's bytes from another broker into a file, and check them.

    Returns:
        The number of records, and the place; at the log's end, up to where its last record reaches.
    """
    from triomq_server.replication.log_copy import LogCopy
    from triomq_server.store.log_repair import flaw_of_copy, size_of_next

    copy = LogCopy(link)
    for nearest in (place.before[::-1], place.after):
        for offset, size in nearest:
            if await _read(copy, offset, size) == _own_bytes(segments, offset, size):
                break
        else:
            if nearest:
                raise UnusableCopyError(
                    f"the records around log offset {place.start} are others: it is no copy of this log"
                )
    at = place.start
    while at < place.stop:
        if place.after:
            data = await _some(copy, at, place.stop - at)
        else:
            size = size_of_next(await _some(copy, at, _LARGEST_RECORD_BYTES), at, segments[0].size)
            data = await _read(copy, at, size)
        spool.write(data)
        at += len(data)
    spool.flush()
    place = attrs.evolve(place, stop=at)
    with _mapped(spool) as view:
        records, flaw = flaw_of_copy(view, place, segments[0].size)
    if flaw:
        raise UnusableCopyError(flaw)
    return records, place


async def _read(copy: LogCopy, offset: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await _some(copy, offset + len(data), size - len(data))
    return data


async def _some(copy: LogCopy, offset: int, size: int) -> bytes:
    from triomq_server.replication.log_copy import NotThereError
    from triomq_server.wire import LinkError

    try:
        return await copy.read(offset, size)
    except (NotThereError, LinkError, OSError) as error:
        raise UnusableCopyError(str(error)) from error


def _own_bytes(segments: list[Segment], offset: int, size: int) -> bytes:
    segment = next(segment for segment in segments if segment.base <= offset < segment.end)
    return bytes(segment.buffer[offset - segment.base : offset - segment.base + size])


@contextmanager
def _mapped(spool: IO[bytes]) -> Iterator[mmap.mmap]:
    with mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


@asynccontextmanager
async def _opened(address: str, open_link: OpenLink) -> AsyncIterator[Link]:
    """A link to a broker. Raises UnusableCopyError if there is none."""
    from triomq_server.wire import LinkError

    with trio.CancelScope() as scope:
        scope.deadline = trio.current_time() + CONNECT_TIMEOUT_S
        try:
            async with open_link(address) as link:
                scope.deadline = float("inf")
                yield link
        except (OSError, LinkError, ValueError) as error:
            raise UnusableCopyError(f"cannot be asked: {error}") from error
    if scope.cancelled_caught:
        raise UnusableCopyError(f"does not answer within {CONNECT_TIMEOUT_S:.0f} s")


# -- the tables


def _flaw_of_table(root: Path, name: str, member: str) -> str:
    """What is wrong with a table, in words; empty if a start can read it, or its backup."""
    from triomq_server.store import RealDisk
    from triomq_server.store.files.config_files import ConfigFile, ConfigFileDamaged

    try:
        content = ConfigFile(f"{root}/config/{name}", RealDisk()).load()
    except ConfigFileDamaged:
        return f"config/{name} cannot be read, nor its backup"
    if content is None:
        return f"config/{name} is missing or empty, and so is its backup"
    if not isinstance(content, Mapping) or not isinstance(content.get(member), Mapping):
        return f"config/{name} does not hold its table"
    return ""


async def _repair_table(
    root: Path, name: str, what: str, sources: Sequence[str], write: bool, open_link: OpenLink
) -> Outcome | None:
    """None if the table is missing, and is empty on the other broker too."""
    from triomq_server.store import RealDisk
    from triomq_server.store.files.config_files import ConfigFile

    code, member = next((code, member) for table, code, member in TABLES if table == name)
    reasons, empty = [], False
    for source in sources:
        try:
            async with _opened(source, open_link) as link:
                body, entries = await _table_of(link, code, member)
        except UnusableCopyError as error:
            reasons.append(f"{source}: {error}")
            continue
        if not entries:
            empty = True
            continue
        if write:
            _keep_aside(root, name)
            ConfigFile(f"{root}/config/{name}", RealDisk()).save(body)
        return Outcome(what, f"{entries} entries", source, write, tuple(reasons))
    if empty and not reasons and "missing" in what:  # it has never been written
        return None
    return Outcome(what, reasons=(*reasons, *(["the other broker has an empty table"] if empty else [])))


async def _table_of(link: Link, code: RequestCode, member: str) -> tuple[bytes, int]:
    """Another broker's table as it sends it, and the number of its entries but for groups that every broker has."""
    from triomq_protocol.errors import BodyError
    from triomq_protocol.names import SYSTEM_GROUPS
    from triomq_protocol.wire import fastjson
    from triomq_server.replication.log_copy import NotThereError, fetch_table
    from triomq_server.wire import LinkError

    try:
        body = await fetch_table(link, code)
        content = fastjson.loads(body, tolerant_bytes=len(body))
    except (NotThereError, BodyError, LinkError) as error:
        raise UnusableCopyError(str(error)) from error
    entries = content.get(member) if isinstance(content, Mapping) else None
    if not isinstance(entries, Mapping):
        raise UnusableCopyError(f"{code.name} is answered with something else than the table")
    return body, len(set(entries) - set(SYSTEM_GROUPS))


def _keep_aside(root: Path, name: str) -> None:
    """Copy what cannot be read to `triomq/damaged`."""
    folder = root / "triomq" / "damaged"
    for file in (root / "config" / name, root / "config" / f"{name}.bak"):
        if file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file.name).write_bytes(file.read_bytes())
