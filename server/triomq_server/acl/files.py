"""The access control files of a broker: read at the start and when they change, rewritten by requests 50, 51 and 53.

They are the same as RocketMQ's: `conf/plain_acl.yml` below `rocketmqHome`, and every `.yml` and `.yaml` file below
`conf/acl/`. Upstream: `PlainPermissionManager`, `AclFileWatchService`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn, Protocol, TypeVar

import trio

from triomq_protocol.requests import ClusterAclConfig, DataVersion, PlainAccessConfig
from triomq_server.acl import edits
from triomq_server.acl.accounts import MOST_BYTES, AccessRules, AclError, entries, parse, rules_of, white_addresses
from triomq_server.plain_files import open_plain, read_plain, replace_plain

T = TypeVar("T")

Contents = dict[str, edits.Content]
"""What files hold, by path, in the order in which they count."""

WATCH_S = 5.0
"""Interval between checks of the files, as in RocketMQ."""

SETTLE_S = 1.0
"""How long files must stay unchanged before they are used: a half-written file may have fewer accounts or limits."""

UNSETTLED_S = 30.0
"""Changes that continue without a pause for this many seconds are logged."""

NAMES_SHOWN = 10
"""Maximum number of names in one log line."""

MOST_FILES = 1000
MOST_ALL_BYTES = 16 << 20
"""Maximum size of all files together: some 300,000 accounts."""
MOST_DEPTH = 16

_log = logging.getLogger(__name__)


class Run(Protocol):
    """Runs a chore off the event loop, and returns what it returns."""

    async def __call__(self, chore: Callable[[], T]) -> T:
        """Run it."""
        ...


class AclFiles:
    """The access control files, and the rules that were last built from them.

    Args:
        home: `rocketmqHome`.
        clock: wall clock in ms.
        run: runs blocking disk work off the event loop.

    Attributes:
        rules: the rules in force.
        default_file: the file for new accounts.
        on_change: called when new rules have taken effect.
    """

    def __init__(self, home: str, clock: Callable[[], int], run: Run) -> None:
        self._conf = os.path.join(os.path.abspath(home), "conf")
        self.default_file = os.path.join(self._conf, "plain_acl.yml")
        self._clock = clock
        self._run = run
        self._seen: dict[str, bytes] = {}
        self._unusable: tuple[dict[str, bytes], str] | None = None
        self._changing: dict[str, bytes] | None = None
        self._using = trio.Lock()
        self.rules = AccessRules()
        self.on_change: list[Callable[[], None]] = []

    def load(self) -> None:
        """Read the files at startup.

        Raises:
            AclError: a file cannot be read or used, or all files together admit nobody.
        """
        try:
            seen = self._read()
        except OSError as error:
            raise AclError(f"aclEnable=true: {error}") from None
        rules = _rules(seen)
        if rules.admits_nobody:
            raise AclError(
                f"aclEnable=true needs accounts: {self.default_file} has none, and there is none in {self._conf}/acl"
            )
        self._take(seen, rules)

    async def watch(self) -> NoReturn:
        """Task: read the files again once they have changed, and then stayed the same for `SETTLE_S`.

        Files that cannot be used change nothing, and are logged.
        """
        failure = ""
        changing_since_s: float | None = None
        logged = False
        while True:
            await trio.sleep(WATCH_S if self._changing is None else SETTLE_S)
            try:
                async with self._using:
                    seen, rules = await self._run(self._read_changed)
            except (AclError, OSError) as error:
                if str(error) != failure:
                    _log.error("access control stays as it was: %s", error)
                failure = str(error)
            else:
                if self._changing is None:
                    failure = ""
                if rules is not None and seen != self._seen:
                    self._take(seen, rules)
                    _log.info("access control files have changed: %d accounts", len(rules.accounts))
            if self._changing is None:
                changing_since_s, logged = None, False
            elif changing_since_s is None:
                changing_since_s = trio.current_time()
            elif not logged and trio.current_time() - changing_since_s >= UNSETTLED_S:
                logged = True
                text = "access control stays as it was: for %g s its files have not been the same for %g s"
                _log.warning(text, UNSETTLED_S, SETTLE_S)

    async def put_account(self, entry: edits.Content) -> None:
        """Add an account, or change it in its file. Raises AclError, OSError; then nothing has changed."""
        access_key = str(entry["accessKey"])

        def change(contents: Contents) -> Contents:
            path = next(_files_with(contents, access_key), self.default_file)
            return {path: edits.with_account(path, contents.get(path, {}), entry)}

        await self._edit(change)

    async def delete_account(self, access_key: str) -> bool:
        """Delete an account from all files; False if there is none. Raises AclError, OSError; then it still counts."""
        return await self._edit(
            lambda contents: {
                path: edits.without_account(path, contents[path], access_key)
                for path in _files_with(contents, access_key)
            }
        )

    async def put_white(self, addresses: Sequence[str], path: str | None) -> bool:
        """Replace the global white list of a file, by default of `plain_acl.yml`; False if there is no such file.

        Raises AclError, OSError; then nothing has changed.
        """
        path = path or self.default_file

        def change(contents: Contents) -> Contents:
            if path != self.default_file and path not in contents:
                return {}
            return {path: edits.with_white(contents.get(path, {}), addresses)}

        return await self._edit(change)

    async def versions(self) -> dict[str, DataVersion]:
        """The version of each file by path, as last read."""
        seen = self._seen
        return await self._run(lambda: {path: edits.version_of(parse(path, data)) for path, data in seen.items()})

    async def listed(self) -> bytes:
        """The body of the answer to request 54: all accounts with secrets, and the global white lists, as last read."""
        seen = self._seen
        return await self._run(lambda: _listed(seen).encode())

    async def _edit(self, change: Callable[[Contents], Contents]) -> bool:
        """Change files; `change` returns those that are different, of the contents of all. False if there are none."""
        async with self._using:
            now_ms = self._clock()
            changed = await self._run(lambda: self._rewrite(change, now_ms))
            if changed is not None:
                self._take(*changed)
            return changed is not None

    def _rewrite(
        self, change: Callable[[Contents], Contents], now_ms: int
    ) -> tuple[dict[str, bytes], AccessRules] | None:
        """Change files, unless they could then no longer be used together."""
        seen = self._read()  # not the files of the last check: an operator may have moved an account since then
        contents = {path: parse(path, data) for path, data in seen.items()}
        changed = {path: edits.dumped(content, now_ms) for path, content in change(contents).items()}
        if not changed:
            return None
        seen |= changed
        self._check_size(seen)
        contents |= {path: parse(path, data) for path, data in changed.items()}
        rules = rules_of(list(contents.items()))
        if rules.admits_nobody:
            raise AclError("nothing has been changed: nobody could send a request any more")
        for path, data in reversed(changed.items()):  # the entry that counts is in the first of them
            _replace(path, data)
        return seen, rules

    def _take(self, seen: dict[str, bytes], rules: AccessRules) -> None:
        self._seen, self.rules = seen, rules
        if rules.repeated:
            shown = ", ".join(rules.repeated[:NAMES_SHOWN]) + (
                " and others" if len(rules.repeated) > NAMES_SHOWN else ""
            )
            _log.warning("%d accounts are given more than once; the first place counts: %s", len(rules.repeated), shown)
        for changed in self.on_change:
            changed()

    def _read_changed(self) -> tuple[dict[str, bytes], AccessRules | None]:
        """The current contents of the files, and new rules if they have changed, but not since the previous check.

        Raises AclError as long as the files cannot be used.
        """
        before, self._changing = self._changing, None
        seen = self._read()
        if seen == self._seen:
            return seen, None
        if self._unusable is not None and self._unusable[0] == seen:
            raise AclError(self._unusable[1])  # without parsing it again each time
        if seen != before:
            self._changing = seen
            return seen, None
        try:
            return seen, _admitting(_rules(seen))
        except AclError as error:
            self._unusable = seen, str(error)
            raise

    def _read(self) -> dict[str, bytes]:
        """The content of every file, `plain_acl.yml` last. Raises AclError, OSError."""
        paths = [path for path in _below(os.path.join(self._conf, "acl"), MOST_DEPTH) if path != self.default_file]
        if len(paths) > MOST_FILES:
            raise AclError(f"{self._conf}/acl has {len(paths)} files; at most {MOST_FILES} are possible")
        found = {}
        for path in [*paths, self.default_file]:
            try:
                found[path] = read_plain(path, MOST_BYTES + 1)
            except FileNotFoundError:
                continue
            self._check_size(found)
        return found

    def _check_size(self, files: Mapping[str, bytes]) -> None:
        if sum(map(len, files.values())) > MOST_ALL_BYTES:
            raise AclError(
                f"the access control files have more than {MOST_ALL_BYTES} bytes; put fewer accounts in {self._conf}"
            )


def _files_with(contents: Contents, access_key: str) -> Iterator[str]:
    """The paths of the files that have an account."""
    for path, content in contents.items():
        if any(str(entry.get("accessKey")) == access_key for entry in entries(path, content)):
            yield path


def _rules(files: Mapping[str, bytes]) -> AccessRules:
    return rules_of([(path, parse(path, data)) for path, data in files.items()])


def _admitting(rules: AccessRules) -> AccessRules:
    """Return the rules; AclError if they admit nobody, as while a file is being rewritten or has been moved."""
    if rules.admits_nobody:
        raise AclError("the files have no accounts any more, and nobody could send a request")
    return rules


def _listed(files: Mapping[str, bytes]) -> ClusterAclConfig:
    accounts: dict[str, PlainAccessConfig] = {}
    white: list[str] = []
    for path, data in files.items():
        content = parse(path, data)
        white += white_addresses(path, content)
        for entry in entries(path, content):
            key, address = str(entry["accessKey"]), entry.get("whiteRemoteAddress")
            accounts.setdefault(
                key,
                PlainAccessConfig(
                    access_key=key,
                    secret_key=str(entry["secretKey"]),
                    admin=entry.get("admin") is True,
                    default_topic_perm=entry.get("defaultTopicPerm"),
                    default_group_perm=entry.get("defaultGroupPerm"),
                    topic_perms=entry.get("topicPerms"),
                    group_perms=entry.get("groupPerms"),
                    white_remote_address=address,
                ),
            )
    return ClusterAclConfig(global_white_addrs=white, plain_access_configs=list(accounts.values()))


def _below(directory: str, depth: int) -> list[str]:
    """The YAML files in a directory and its subdirectories, sorted; none if there is no such directory.

    Names that begin with two dots are left out.
    """
    found: list[str] = []
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except FileNotFoundError:
        return found
    for entry in entries:
        if entry.name.startswith(".."):
            # Kubernetes has the files of a mounted Secret or ConfigMap there, and links to them in the directory itself.
            continue
        if entry.name.endswith((".yml", ".yaml")):
            found.append(entry.path)
        elif depth and entry.is_dir():
            found += _below(entry.path, depth - 1)
    return found


def _replace(path: str, data: bytes) -> None:
    """Replace a file in one step, durably; it keeps the old file's permissions, or else only its owner can read it.

    A symbolic link stays, and the file that it names is replaced: an operator edits that one.
    """
    path = os.path.realpath(path)
    try:
        mode = os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        mode = 0o600
    temporary = path + ".tmp"
    descriptor = open_plain(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    replace_plain(temporary, path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
