"""Every known key is read by the servers or listed with the reason why it has no effect, and the reason is true."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from triomq_server.config import WITHOUT_EFFECT, BrokerConfig, NamesrvConfig, StoreConfig, changed_without_effect
from triomq_server.config.settings import keys_of

ROOT = Path(__file__).parents[3]
SETTINGS = (BrokerConfig, StoreConfig, NamesrvConfig)


def attributes_read() -> set[str]:
    """The names of all attributes that the server's code reads."""
    found = set()
    for file in (ROOT / "server").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
    return found


def attributes() -> dict[str, str]:
    """Key to attribute, of all settings classes."""
    return {key: field.name for settings in SETTINGS for key, field in keys_of(settings).items()}


def test_each_known_key_is_read_or_listed_and_none_is_both() -> None:
    read, known = attributes_read(), attributes()
    unread = {key for key, attribute in known.items() if attribute not in read}
    assert unread == set(WITHOUT_EFFECT)


def test_each_reason_refers_to_keys_that_have_an_effect_or_a_reason_of_their_own() -> None:
    known = attributes()
    for key, entry in WITHOUT_EFFECT.items():
        assert entry.reason, key
        for word in entry.reason.replace(",", " ").replace(";", " ").split():
            if word[:1].islower() and any(letter.isupper() for letter in word):
                assert word in known, f"{key}: {word} is not a key"


def test_the_reference_lists_the_same_keys_and_reasons() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text()
    rows = set(_rows(page))
    assert rows == {(key, "yes" if entry.warns else "", entry.reason) for key, entry in WITHOUT_EFFECT.items()}


def _rows(page: str) -> Iterator[tuple[str, str, str]]:
    section = page.partition("## Keys without effect")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith("`"):
            for key in cells[0].split(","):
                yield key.strip(" `"), cells[1], cells[2]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("enableCalcFilterBitMap", "true"),
        ("disableConsumeIfConsumerReadSlowly", "true"),
        ("brokerFastFailureEnable", "false"),
        ("channelNotActiveInterval", "1"),
        ("enableLmq", "true"),
        ("duplicationEnable", "true"),
    ],
)
def test_a_key_that_operators_rely_on_gives_a_warning(key: str, value: str) -> None:
    _, warnings = BrokerConfig.from_properties({key: value})
    assert warnings == [f"{key}={value} has no effect: {WITHOUT_EFFECT[key].reason}"]


def test_the_default_written_out_gives_no_warning() -> None:
    values = {key: value for key, value in BrokerConfig().to_properties().items() if key in WITHOUT_EFFECT}
    assert BrokerConfig.from_properties(values)[1] == []


@pytest.mark.parametrize("key", ["sendMessageThreadPoolNums", "serverSelectorThreads", "maxDelayTime"])
def test_a_key_that_only_tunes_is_accepted_silently(key: str) -> None:
    config, warnings = BrokerConfig.from_properties({key: "99"})
    assert warnings == []
    assert config.to_properties()[key] == "99"
    assert key in {**changed_without_effect(config), **changed_without_effect(config.store)}


def test_the_name_server_warns_too() -> None:
    _, warnings = NamesrvConfig.from_properties({"clusterTest": "true", "serverWorkerThreads": "3"})
    assert [warning.partition(" ")[0] for warning in warnings] == ["clusterTest=true"]


def test_a_change_at_run_time_is_warned_of_once() -> None:
    config = BrokerConfig()
    assert [line.partition(" ")[0] for line in config.update({"enableLmq": "true"})] == ["enableLmq=true"]
    assert config.update({"slaveReadEnable": "true"}) == []
