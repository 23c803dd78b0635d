"""Every row of the decision tables of replication."""

import pytest

from triomq_server.config.network import networks
from triomq_server.replication.rules import (
    HaSettings,
    Report,
    acknowledged,
    check_report,
    follows,
    is_known_slave,
    slave_is_near,
    slave_to_close,
    start_offset,
    stays_in_file,
)


@pytest.mark.parametrize(
    ("offset", "first", "compat_49", "expected"),
    [
        (0, True, False, Report.ACCEPT),
        (100, True, False, Report.ACCEPT),
        (101, True, False, Report.AHEAD),
        (101, True, True, Report.ACCEPT),
        (101, False, True, Report.AHEAD),
        (101, False, False, Report.AHEAD),
        (100, False, True, Report.ACCEPT),
        (-1, True, True, Report.NEGATIVE),
        (-1, False, False, Report.NEGATIVE),
    ],
)
def test_report(offset: int, first: bool, compat_49: bool, expected: Report) -> None:
    assert check_report(offset, log_max=100, first=first, compat_49=compat_49) is expected


@pytest.mark.parametrize(
    ("reported", "log_min", "log_max", "compat_49", "expected"),
    [
        (0, 0, 0, True, 0),
        (0, 0, 65536 * 2 + 9, True, 65536 * 2),
        (0, 0, 65536 * 2, True, 65536 * 2),
        (0, 0, 65536 * 2 + 9, False, 0),
        (0, 65536, 65536 * 2 + 9, False, 65536),
        (7, 0, 65536 * 2 + 9, True, 7),
        (7, 65536, 65536 * 2 + 9, False, 7),
    ],
)
def test_start_of_a_stream(reported: int, log_min: int, log_max: int, compat_49: bool, expected: int) -> None:
    offset = start_offset(reported, log_min=log_min, log_max=log_max, file_bytes=65536, compat_49=compat_49)
    assert offset == expected


@pytest.mark.parametrize(
    ("own", "frame", "fits"),
    [
        (0, 0, True),
        (0, 65536, True),
        (0, 65537, False),
        (0, -65536, False),
        (5, 5, True),
        (5, 0, False),
        (5, 6, False),
        (5, 65536, False),
    ],
)
def test_frame_must_continue_the_log(own: int, frame: int, fits: bool) -> None:
    assert follows(own, frame, 65536) is fits


@pytest.mark.parametrize(
    ("offset", "size", "fits"), [(0, 100, True), (0, 101, False), (250, 50, True), (250, 51, False), (0, -1, False)]
)
def test_frame_must_end_in_its_file(offset: int, size: int, fits: bool) -> None:
    assert stays_in_file(offset, size, 100) is fits


@pytest.mark.parametrize(
    ("live", "before", "compat_49", "expected"),
    [
        ([], 0, False, 0),
        ([None], 9, False, 0),
        ([None], 9, True, 9),
        ([5, None, 7], 6, False, 7),
        ([5], 7, False, 5),
        ([5], 7, True, 7),
    ],
)
def test_acknowledged(live: list[int | None], before: int, compat_49: bool, expected: int) -> None:
    assert acknowledged(live, before, compat_49=compat_49) == expected


@pytest.mark.parametrize(
    ("end", "acknowledged_offset", "links", "near"),
    [(10, 10, 0, False), (10, 10, 1, True), (109, 10, 1, True), (110, 10, 2, False), (5, 10, 1, True)],
)
def test_slave_is_near(end: int, acknowledged_offset: int, links: int, near: bool) -> None:
    result = slave_is_near(end, acknowledged_offset=acknowledged_offset, links=links, fall_behind_max_bytes=100)
    assert result is near


def test_settings_from_rocketmq_keys() -> None:
    class Keys:
        mapped_file_size_commit_log = 1024
        ha_send_heartbeat_interval = 1500
        ha_housekeeping_interval = 2500
        ha_transfer_batch_size = 77
        ha_slave_fallbehind_max = 88
        ha_slave_addresses = "10.0.0.0/8"

    settings = HaSettings.from_config(Keys(), compat_49=True)
    assert settings == HaSettings(
        file_bytes=1024,
        heartbeat_s=1.5,
        housekeeping_s=2.5,
        batch_bytes=77,
        fall_behind_max_bytes=88,
        slave_networks=networks("10.0.0.0/8"),
        compat_49=True,
    )


@pytest.mark.parametrize(
    ("peer", "addresses", "expected"),
    [
        ("10.0.0.7:5000", "", True),
        ("10.0.0.7:5000", "10.0.0.7", True),
        ("10.0.0.8:5000", "10.0.0.7", False),
        ("10.1.2.3:5000", "10.0.0.7; 10.1.0.0/16", True),
        ("::ffff:10.1.2.3:5000", "10.1.0.0/16", True),
        ("fe80::1%eth0:5000", "fe80::/10", True),
        ("::1:5000", "10.0.0.0/8", False),
        ("a closed connection", "10.0.0.0/8", False),
    ],
)
def test_known_slaves(peer: str, addresses: str, expected: bool) -> None:
    assert is_known_slave(peer, networks(addresses)) is expected


@pytest.mark.parametrize(
    ("newcomer", "hosts", "reported", "expected"),
    [
        ("new", "abcd", [5, None, 7, None], 1),
        ("b", "bbbb", [5, 6, 7, None], 3),
        ("new", "aabb", [5, 4, 3, 2], 1),
        ("new", "abab", [5, 4, 3, 2], 2),
        ("new", "aaab", [9, 7, 8, 0], 1),
        ("new", "aaab", [9, 7, 7, 0], 1),
        ("new", "abcd", [5, 4, 3, 2], None),
        ("a", "aabb", [5, 4, 3, 2], None),
        ("a", "abbb", [5, 4, 3, 2], 3),
        ("b", "abbb", [5, 4, 3, 2], None),
        ("a", "aaaa", [5, 4, 3, 2], None),
    ],
)
def test_which_slave_is_disconnected_when_all_links_are_in_use(
    newcomer: str, hosts: str, reported: list[int | None], expected: int | None
) -> None:
    assert slave_to_close(newcomer, list(hosts), reported) == expected


@pytest.mark.parametrize(
    ("newcomer", "hosts", "reported", "expected"),
    [
        ("M", "abcd", [5, 4, 3, 9], 0),
        ("M", "abba", [5, 4, 3, 9], 0),
        ("M", "aNbb", [5, 0, 3, 9], 2),
        ("M", "aNNN", [5, 0, 3, 9], 0),
        ("M", "NNNa", [None, 0, 3, 9], 3),
        ("M", "NNMM", [5, 4, 3, 9], None),
        ("M", "NNNM", [5, 4, 3, 9], 2),
        ("new", "NNNN", [5, 4, 3, None], None),
        ("new", "NNNa", [5, 4, 3, 9], None),
        ("new", "NNaa", [0, 1, 3, 2], 3),
    ],
)
def test_brokers_of_the_set_keep_their_places(
    newcomer: str, hosts: str, reported: list[int | None], expected: int | None
) -> None:
    assert slave_to_close(newcomer, list(hosts), reported, {"M", "N"}) == expected
