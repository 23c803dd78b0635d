"""Problems of given settings, and whether a server may start with them.

RocketMQ accepts a file with misspelt keys and unusable values, and runs with its defaults. For settings on which a
cluster's safety depends, that may be weaker than the operator expects: access, encryption, the master that a broker
copies, flushing to disk, paths of files, ports and name servers. Such a finding prevents the start; all others are
warnings, unless they are configured to be errors.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Iterable, Mapping

import msgspec

from triomq_server.config.settings import ConfigError, Unusable, shown

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
"""One word of a key in camel case, or after a dot."""

_HOUR = re.compile(r"[01]?[0-9]|2[0-3]")
"""One hour in deleteWhen."""

_SAFETY_WORDS = frozenset(
    {
        "acl", "auth", "password", "secret", "ssl", "tls",  # who may connect, and what is encrypted
        "role", "leger", "id", "compat",  # whose copy a broker is, and under which rules
        "flush",  # when a message is on disk
        "path", "paths", "dir", "directory",  # where files are
        "port", "ports", "ip", "bind", "address", "addresses", "addr", "namesrv",  # where servers listen, and where they find each other
    }
)  # fmt: skip

FORMER_PATHS = {
    "storePathConsumeQueue": "consumequeue",
    "storePathIndex": "index",
    "storeCheckpoint": "checkpoint",
    "abortFile": "abort",
}
"""Keys of RocketMQ 3 that many files still have, and the places below storePathRootDir that 4.9 uses whatever they say."""

_LIKENESS = 0.8
"""An unknown key with at least this share of common letters counts as a misspelt known one."""

_HINTS_MOST = 20
"""Maximum number of unknown keys that are compared with all known ones; a file may have any number."""

LOG_FILE_LEAST_BYTES = 32_768
"""Minimum size of a log file: the properties of one message may take as much."""

_LINES_MOST = 10
"""Maximum number of findings in one error."""


class Finding(msgspec.Struct, frozen=True):
    """One problem of the settings.

    Attributes:
        key: the key that it concerns.
        problem: the problem.
        result: the consequence if the server starts in spite of it; empty if `problem` states it.
        safety: whether it prevents the server's start.
    """

    key: str
    problem: str
    result: str = ""
    safety: bool = False

    @property
    def warning(self) -> str:
        """The line that a server logs if it starts in spite of the problem."""
        return f"{self.problem}; {self.result}" if self.result else self.problem


def touches_safety(key: str) -> bool:
    """Whether a cluster's safety depends on a key, according to the words in its name."""
    return any(word.lower() in _SAFETY_WORDS for word in _WORD.findall(key))


def respelled(lines: Iterable[tuple[str, str]]) -> list[Finding]:
    """Report old spellings of keys."""
    return [Finding(key, line) for key, line in lines]


def unusable(values: Iterable[Unusable]) -> list[Finding]:
    """Report values that cannot be used, so that another one is in force."""
    return [Finding(each.key, str(each), "it is ignored", touches_safety(each.key)) for each in values]


def misread(values: Iterable[Unusable]) -> list[Finding]:
    """Report values that were read in a way their author may not expect."""
    return [Finding(each.key, str(each), safety=touches_safety(each.key)) for each in values]


def without_effect(lines: Iterable[tuple[str, str]]) -> list[Finding]:
    """Report keys for features that these servers do not have."""
    return [Finding(key, line, safety=touches_safety(key)) for key, line in lines]


def kept_for_the_start(lines: Iterable[tuple[str, str]]) -> list[Finding]:
    """Report keys whose change does nothing until the next start."""
    return [Finding(key, line) for key, line in lines]


def slaves_sent_elsewhere(broker_ip1: str, broker_ip2: str, *, only_ip1: bool) -> list[Finding]:
    """Report an address for slaves that is RocketMQ's default although one for clients was given.

    Args:
        broker_ip1: the address for clients.
        broker_ip2: the address for slaves.
        only_ip1: whether the first was given and the second was not.
    """
    if not only_ip1 or broker_ip1 == broker_ip2:
        return []
    problem = f"brokerIP1={shown(broker_ip1)} is set and brokerIP2 is not"
    return [Finding("brokerIP2", problem, f"slaves are sent to this machine's first address, {broker_ip2}")]


def address_of_no_host(key: str, address: str) -> list[Finding]:
    """Report a listening address in place of one to connect to: it would be registered.

    Args:
        key: brokerIP1 or brokerIP2.
        address: its value, an IP address or a name.
    """
    try:
        if not ipaddress.ip_address(address).is_unspecified:
            return []
    except ValueError:
        return []
    problem = f"{key}={address} is registered, and who connects to it from another machine reaches itself"
    return [Finding(key, problem, "give this machine's address; the broker listens on all interfaces all the same")]


def id_of_master(broker_id: int, role: str) -> list[Finding]:
    """Report a master with an id of its own: members of a set know it by id 0.

    Args:
        broker_id: the given brokerId.
        role: brokerRole, a master's.
    """
    if not broker_id:
        return []
    problem = f"brokerId={broker_id} is a slave's, and brokerRole={role} is a master's"
    return [Finding("brokerId", problem, "the broker runs with id 0")]


def main_address_alone(main_address: str | None, ha_address: str | None, *, is_slave: bool) -> list[Finding]:
    """Report a slave whose master is fixed for tables and comparison only, while the log follows the name server.

    Args:
        main_address: haMasterMainAddress.
        ha_address: haMasterAddress.
        is_slave: whether the broker starts as a slave.
    """
    if not is_slave or not main_address or ha_address:
        return []
    problem = f"haMasterMainAddress={shown(main_address)} is set and haMasterAddress is not"
    result = "after a failover the slave waits, since it still compares its log with this address; set both or neither"
    return [Finding("haMasterMainAddress", problem, result)]


def hours(delete_when: str) -> list[Finding]:
    """Report parts of deleteWhen that are not hours of a day. They stay in force: 04 instead would delete files.

    Java's `split` drops empty parts at the end.
    """
    wrong = [part for part in delete_when.rstrip(";").split(";") if not _HOUR.fullmatch(part.strip())]
    if not wrong:
        return []
    problem = f"deleteWhen={shown(delete_when)}: {shown(wrong[0])!r} is not an hour from 00 to 23"
    return [Finding("deleteWhen", problem, "no file is deleted at it, unless the disk is full")]


def changed_hours(before: str, delete_when: str) -> list[Finding]:
    """The same of a change of a running server, which keeps its hours instead."""
    return [msgspec.structs.replace(each, safety=True) for each in hours(delete_when)] if delete_when != before else []


def name_with_separators(broker_name: str) -> list[Finding]:
    """Report a name that commands cannot distinguish from one with an id or a queue after it, or from two names."""
    if not {":", ";"} & set(broker_name):
        return []
    problem = f"brokerName={shown(broker_name)} has ':' or ';' in it"
    return [Finding("brokerName", problem, "commands read it as NAME:ID or BROKER:QUEUE, or as several")]


def small_log_files(file_bytes: int, message_bytes: int) -> list[Finding]:
    """Report log files that are too small for most messages.

    Args:
        file_bytes: mappedFileSizeCommitLog.
        message_bytes: maxMessageSize.
    """
    if file_bytes >= LOG_FILE_LEAST_BYTES:
        return []
    key = "mappedFileSizeCommitLog"
    problem = (
        f"{key}={file_bytes} has no place for messages of maxMessageSize={message_bytes}, and at most for the smallest; "
        f"it must be at least {LOG_FILE_LEAST_BYTES}"
    )
    return [Finding(key, problem, safety=True)]


def several_log_directories(path: str | None) -> list[Finding]:
    """Report a list of directories for the log, which RocketMQ divides at each comma.

    Args:
        path: storePathCommitLog, None if it is not given.
    """
    if path is None or "," not in path:
        return []
    key = "storePathCommitLog"
    problem = f"{key}={shown(path)}: log files in several directories are not possible; give one, without a comma"
    return [Finding(key, problem, safety=touches_safety(key))]


def former_paths(values: Mapping[str, str], root: str) -> list[Finding]:
    """Report keys of RocketMQ 3 that name another place than the one in use.

    Args:
        values: the keys that no settings class has, with their values.
        root: storePathRootDir.
    """
    found: list[Finding] = []
    for key, name in FORMER_PATHS.items():
        place = os.path.join(root, name)
        if key in values and os.path.normpath(values[key]) != os.path.normpath(place):
            problem = (
                f"{key}={shown(values[key])} has no effect, in RocketMQ 4 neither: the place is {shown(place)}; remove the "
                "key"
            )
            found.append(Finding(key, problem, safety=touches_safety(key)))
    return found


def unknown(keys: Iterable[str], known: Iterable[str]) -> list[Finding]:
    """Report keys that no settings class has; one that resembles a known key counts as a misspelling of it."""
    by_lower = {key.lower(): key for key in known}
    found: list[Finding] = []
    for key in keys:
        compared = by_lower if len(found) < _HINTS_MOST else ()
        like = difflib.get_close_matches(key[:64].lower(), compared, 1, _LIKENESS)
        nearest = by_lower[like[0]] if like else None
        hint = f" (did you mean {nearest}?)" if nearest else ""
        safety = touches_safety(key) or (nearest is not None and touches_safety(nearest))
        found.append(Finding(key, f"unknown key {shown(key)}{hint}", "it is ignored", safety))
    return found


def unknown_at_run_time(keys: Iterable[str]) -> list[Finding]:
    """Report unknown keys that affect safety; a running server ignores all others, as RocketMQ does."""
    return [Finding(key, f"unknown key {shown(key)}", safety=True) for key in keys if touches_safety(key)]


def warnings_of(found: Iterable[Finding], *, strict: bool = False, running: bool = False) -> list[str]:
    """The warnings of a server that may start, or of a running one that may change.

    Args:
        found: all findings.
        strict: whether every finding prevents the start.
        running: whether the values change a running server.

    Raises:
        ConfigError: at least one finding prevents the start or the change; the text has all such findings.
    """
    refused = [each.problem for each in found if strict or each.safety]
    if refused:
        more = f"; and {len(refused) - _LINES_MOST} more" if len(refused) > _LINES_MOST else ""
        unchanged = "no setting has been changed: " if running else ""
        raise ConfigError(f"{unchanged}{'; '.join(refused[:_LINES_MOST])}{more}")
    return [each.warning for each in found]
