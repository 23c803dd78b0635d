"""Workload files: TOML or YAML, our keys or those of an OpenMessaging Benchmark workload, nothing unknown let through.

`load_workload` takes the name of a ready workload (`ready/*.toml`) or a path.
"""

from __future__ import annotations

import difflib
import enum
import math
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs

from triomq_benchmarks.workload.quantities import QuantityError, duration_s, rate_per_s, share, size_bytes
from triomq_benchmarks.workload.workload import (
    TAG_WEIGHT_MAX,
    Arrivals,
    ClusterShape,
    Compression,
    ConsumeMode,
    Fault,
    Keys,
    Loop,
    SendMode,
    SlowConsumer,
    Step,
    Threshold,
    Workload,
    WorkloadError,
)

Read = Callable[[object], Any]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise QuantityError(f"{value!r} is not text")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise QuantityError(f"{value!r} is not a whole number")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise QuantityError(f"{value!r} is neither true nor false")
    return value


def _one_of(kind: type[enum.StrEnum]) -> Read:
    def read(value: object) -> object:
        try:
            return kind(str(value))
        except ValueError:
            raise QuantityError(f"{value!r} is none of {', '.join(kind)}") from None

    return read


def _several(read: Read) -> Read:
    def read_all(value: object) -> tuple[Any, ...]:
        if isinstance(value, str):
            return (read(value),)
        if not isinstance(value, Sequence):
            raise QuantityError(f"{value!r} is not a list")
        return tuple(read(each) for each in value)

    return read_all


def _milliseconds(value: object) -> float:
    return duration_s(value) * 1000


def _weights(value: object) -> dict[str, float]:
    if isinstance(value, list | tuple):
        return {_text(tag): 1.0 for tag in value}
    if not isinstance(value, Mapping):
        raise QuantityError(f"{value!r} is not a table of tags; write it like tags = {{ new = 3, old = 1 }}")
    weights = {}
    for tag, weight in value.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise QuantityError(f"the weight {weight!r} of tag {tag} is not a number")
        # Compared with the limit as it is: a float does not hold every integer.
        weights[str(tag)] = float(weight) if weight <= TAG_WEIGHT_MAX else math.inf
    return weights


def _settings(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise QuantityError(f"{value!r} is not a table of RocketMQ's configuration keys")
    return {str(key): str(each).lower() if isinstance(each, bool) else str(each) for key, each in value.items()}


_CLUSTER_KEYS: Mapping[str, tuple[str, Read]] = {
    "masters": ("masters", _count),
    "slaves": ("slaves", _count),
    "sync_replication": ("sync_replication", _flag),
    "memory": ("memory_bytes", size_bytes),
    "settings": ("settings", _settings),
}


def _cluster(value: object) -> ClusterShape:
    if not isinstance(value, Mapping):
        raise QuantityError(
            f"{value!r} is not a table; write [cluster] with masters, slaves, sync_replication, memory, settings"
        )
    fields = {}
    for key, each in value.items():
        if key not in _CLUSTER_KEYS:
            raise QuantityError(unknown_key(f"cluster.{key}", [f"cluster.{known}" for known in _CLUSTER_KEYS]))
        field, read = _CLUSTER_KEYS[key]
        fields[field] = read(each)
    return ClusterShape(**fields)


KEYS: Mapping[str, tuple[str, Read]] = {
    "name": ("name", _text),
    "description": ("description", _text),
    "topics": ("topics", _count),
    "topic_names": ("topic_names", _several(_text)),
    "create_topics": ("create_topics", _flag),
    "queues": ("queues_per_topic", _count),
    "body": ("body_bytes", size_bytes),
    "payload_file": ("payload_file", _text),
    "random": ("random_share", share),
    "payloads": ("payload_pool", _count),
    "tags": ("tags", _weights),
    "keys": ("keys", _one_of(Keys)),
    "compression": ("compression", _one_of(Compression)),
    "ordered": ("ordered_share", share),
    "send": ("send_mode", _one_of(SendMode)),
    "batch": ("batch", _count),
    "loop": ("loop", _one_of(Loop)),
    "in_flight": ("in_flight", _count),
    "producers": ("producers", _count),
    "rate": ("rate_per_s", rate_per_s),
    "rate_to": ("rate_to_per_s", rate_per_s),
    "steps": ("steps", _several(Step.parse)),
    "arrivals": ("arrivals", _one_of(Arrivals)),
    "send_timeout": ("send_timeout_s", duration_s),
    "consume": ("consume", _one_of(ConsumeMode)),
    "groups": ("groups", _count),
    "consumers": ("consumers", _count),
    "pull_batch": ("pull_batch", _count),
    "read_preference": ("read_preference", _text),
    "slow_consumer": ("slow_consumer", SlowConsumer.parse),
    "backlog": ("backlog_bytes", size_bytes),
    "duration": ("duration_s", duration_s),
    "warm_up": ("warm_up_s", duration_s),
    "drain": ("drain_s", duration_s),
    "lateness_limit": ("lateness_limit_ms", _milliseconds),
    "errors_allowed": ("errors_allowed", share),
    "late_allowed": ("late_allowed", share),
    "repeats_allowed": ("repeats_allowed", share),
    "thresholds": ("thresholds", _several(Threshold.parse)),
    "faults": ("faults", _several(Fault.parse)),
    "cluster": ("cluster", _cluster),
}
"""Key of a file -> field of `Workload`, and the function that reads its value."""


def _minutes(value: object) -> float:
    return _number(value) * 60


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise QuantityError(f"{value!r} is not a number")
    if not abs(value) <= sys.float_info.max:
        raise QuantityError("it is not a finite number")
    return float(value)


def _omb_rate(value: object) -> float:
    if not (rate := _number(value)):
        raise QuantityError(
            "0 asks for the highest rate; look for it from one on, with --find-max-rate --set producerRate=1000, or send as "
            "fast as answers come, with --set loop=closed --set producerRate=1000 (the number has no effect then)"
        )
    return rate


def _distributor(value: object) -> Keys:
    known = {"NO_KEY": Keys.NONE, "KEY_ROUND_ROBIN": Keys.ROUND_ROBIN, "RANDOM_NANO": Keys.RANDOM}
    if not isinstance(value, str) or value not in known:
        raise QuantityError(f"{value!r} is none of {', '.join(known)}")
    return known[value]


def _omb_pool(value: object) -> int:
    return max(1, _count(value))


OPENMESSAGING_KEYS: Mapping[str, tuple[str, Read]] = {
    "partitionsPerTopic": ("queues_per_topic", _count),
    "messageSize": ("body_bytes", _count),
    "payloadFile": ("payload_file", _text),
    "randomBytesRatio": ("random_share", share),
    "randomizedPayloadPoolSize": ("payload_pool", _omb_pool),
    "keyDistributor": ("keys", _distributor),
    "producersPerTopic": ("producers", _count),
    "producerRate": ("rate_per_s", _omb_rate),
    "subscriptionsPerTopic": ("groups", _count),
    "consumerPerSubscription": ("consumers", _count),
    "consumerBacklogSizeGB": ("backlog_bytes", lambda value: int(min(_number(value) * (1 << 30), sys.float_info.max))),
    "testDurationMinutes": ("duration_s", _minutes),
    "warmupDurationMinutes": ("warm_up_s", _minutes),
}
"""Fields of an OpenMessaging Benchmark workload; `name` and `topics` are the same as ours."""

IGNORED_KEYS: Mapping[str, str] = {
    "useRandomizedPayloads": "bodies are made from a pool of generated payloads anyway; randomBytesRatio says how random",
    "backlogDrainRatio": "a backlog counts as drained when it is gone",
}
"""Fields of an OpenMessaging Benchmark workload that have no meaning here, and the reasons."""

_READERS: Mapping[str, tuple[str, Read]] = {**KEYS, **OPENMESSAGING_KEYS}


def unknown_key(key: str, known: Sequence[str]) -> str:
    """The error text for an unknown key."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"unknown key {key}: {hint}"


def workload_from(values: Mapping[str, object], origin: str) -> Workload:
    """Build a workload from the contents of a file.

    Args:
        values: the file's keys and values.
        origin: the file's name, for messages, and the workload's name if it has none.

    Raises:
        WorkloadError: a key is unknown, a value cannot be read, or they contradict.
    """
    fields: dict[str, Any] = {}
    came_from: dict[str, str] = {}
    ignored: dict[str, str] = {}
    for key, value in values.items():
        if key in IGNORED_KEYS:
            ignored[key] = IGNORED_KEYS[key]
            continue
        if key not in _READERS:
            raise WorkloadError(f"{origin}: {unknown_key(str(key), [*_READERS, *IGNORED_KEYS])}")
        field, read = _READERS[key]
        if field in came_from:
            raise WorkloadError(f"{origin}: {came_from[field]} and {key} mean the same; leave one out")
        came_from[field] = key
        if value is None and key == "payloadFile":
            continue
        try:
            fields[field] = read(value)
        except (QuantityError, WorkloadError) as error:
            raise WorkloadError(f"{origin}: {key}: {error}") from error
    fields.setdefault("name", Path(origin).stem)
    return Workload(**fields, ignored=ignored)


def load_workload(name: str, changes: Sequence[str] = ()) -> tuple[Workload, Path | None]:
    """Read a built-in workload, or a file.

    Args:
        name: name of a built-in workload, or the path of a `.toml`, `.yaml` or `.yml` file.
        changes: `key=value` each, in a file's terms, which override the file.

    Returns:
        The workload, and the folder that is the base of relative file names in it.

    Raises:
        WorkloadError: it cannot be read; the message has the reason.
    """
    values, folder, origin = _read(name)
    for change in changes:
        key, sign, text = change.partition("=")
        if not sign:
            raise WorkloadError(f"--set {change}: write it like --set rate=2000/s")
        _put(values, key.strip(), _value(text.strip()))
    return workload_from(values, origin), folder


def _put(values: dict[str, Any], key: str, value: object) -> None:
    """Set a key, in a table if it has a dot, and drop other keys of the same meaning."""
    table, dot, inner = key.partition(".")
    if dot:
        if not isinstance(held := values.get(table, {}), Mapping):
            raise WorkloadError(f"--set {key}: {table} is {held!r}, and not a table")
        values[table] = {**held, inner: value}
        return
    if key in _READERS:
        field = _READERS[key][0]
        for other in [each for each in values if _READERS.get(each, ("", None))[0] == field]:
            del values[other]
    values[key] = value


def _value(text: str) -> object:
    """Parse a value as TOML; anything else is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def ready_workloads() -> dict[str, Workload]:
    """All built-in workloads by name."""
    folder = files(__package__) / "ready"
    names = sorted(each.name.removesuffix(".toml") for each in folder.iterdir() if each.name.endswith(".toml"))
    return {name: load_workload(name)[0] for name in names}


def _read(name: str) -> tuple[dict[str, Any], Path | None, str]:
    if "/" not in name and not Path(name).suffix:
        ready = files(__package__) / "ready" / f"{name}.toml"
        if ready.is_file():
            return tomllib.loads(ready.read_text()), None, name
        known = [each.name.removesuffix(".toml") for each in (files(__package__) / "ready").iterdir()]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
        raise WorkloadError(f"no ready workload is called {name}: {hint}; a file needs its ending, .toml or .yaml")
    path = Path(name)
    try:
        text = path.read_text()
    except OSError as error:
        raise WorkloadError(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{name} is not text in UTF-8: {error.reason} at byte {error.start}") from error
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text), path.parent, name
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, lists in lists
            raise WorkloadError(f"{name} is not TOML: {error}") from error
    if path.suffix in {".yaml", ".yml"}:
        return _read_yaml(text, name), path.parent, name
    raise WorkloadError(f"{name}: a workload is a .toml or a .yaml file")


def _read_yaml(text: str, name: str) -> dict[str, Any]:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise WorkloadError(f"{name}: reading YAML needs PyYAML: pip install 'triomq[bench]'") from error
    try:
        values = yaml.safe_load(text)
    except Exception as error:  # KeyError, IndexError and more at values with wrong tags
        raise WorkloadError(f"{name} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise WorkloadError(f"{name} has no keys")
    return values


def with_name_servers(workload: Workload) -> Workload:
    """The workload for a cluster that this run does not start.

    Raises:
        WorkloadError: it has faults, which need processes that we started.
    """
    if workload.faults:
        raise WorkloadError(
            f"workload {workload.name} has faults ({workload.faults[0]}); they are done only to a cluster that is started "
            "for the run: --target ours or --target java"
        )
    return attrs.evolve(workload, cluster=ClusterShape())
