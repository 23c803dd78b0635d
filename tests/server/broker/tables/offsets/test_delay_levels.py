"""Progress with delayed messages: the values sent to slaves, and those accepted from a slave."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from text_file import TextFile

from triomq_server.broker.tables.offsets.delay_levels import DelayOffsets


@pytest.mark.parametrize(
    ("received", "taken"),
    [
        (b'{"offsetTable":{1:7}}', {1: 7, 2: 3}),
        (b'{"offsetTable":{1:4,2:2}}', {1: 4, 2: 3}),
        (b'{"offsetTable":{1:4611686018427387904,2:11,9:5}}', {1: 10, 2: 10, 9: 0}),
        (b'{"offsetTable":{1:-5}}', {1: 0, 2: 3}),
    ],
    ids=["further", "not as far", "beyond the messages", "negative"],
)
def test_progress_is_taken_up_to_the_end_of_a_level(received: bytes, taken: dict[int, int]) -> None:
    offsets = DelayOffsets(None)
    offsets.table = {2: 3}
    offsets.take_later(received, lambda level: {1: 10, 2: 10}.get(level, 0))
    assert offsets.table == taken


async def test_a_received_table_is_kept_as_it_came() -> None:
    file = TextFile()
    delays = DelayOffsets(file)
    assert delays.encode() == b'{"offsetTable":{}}'
    await delays.save_received(b'{"offsetTable":{1:2,3:4}}', 500)
    assert file.text == b'{"offsetTable":{1:2,3:4}}'
    assert delays.log_end == 500
    again = DelayOffsets(file, log_end=700)
    again.load()
    assert again.encode() == b'{"offsetTable":{1:2,3:4}}'
    assert again.table == {1: 2, 3: 4}
    assert again.log_end == 700


def test_rocketmqs_slaves_get_only_deliveries_that_they_have_copies_of() -> None:
    careful, plain = DelayOffsets(None), DelayOffsets(None, careful=False)
    for delays in (careful, plain):
        delays.advance(1, 1, 100)
        delays.advance(2, 5, 200)
        delays.advance(1, 2, 300)
        assert delays.table == {1: 2, 2: 5}
        assert delays.log_end == 300
    assert plain.for_rocketmq_slaves(0) == b'{"offsetTable":{1:2,2:5}}'
    assert careful.for_rocketmq_slaves(99) == b'{"offsetTable":{}}'
    assert careful.for_rocketmq_slaves(200) == b'{"offsetTable":{1:1,2:5}}'
    assert careful.for_rocketmq_slaves(0) == b'{"offsetTable":{1:1,2:5}}'
    assert careful.for_rocketmq_slaves(300) == b'{"offsetTable":{1:2,2:5}}'


@pytest.mark.parametrize(
    ("acknowledged", "told"),
    [
        (0, None),
        (999, None),
        (1000, b'{"offsetTable":{1:7}}'),
        (1099, b'{"offsetTable":{1:7}}'),
        (1100, b'{"offsetTable":{1:8}}'),
    ],
)
def test_after_a_start_they_keep_theirs_until_they_have_the_log(acknowledged: int, told: bytes | None) -> None:
    delays = DelayOffsets(TextFile(b'{"offsetTable":{1:7}}'), log_end=1000)
    delays.load()
    delays.advance(1, 8, 1100)
    assert delays.for_rocketmq_slaves(acknowledged) == told
    assert delays.encode() == b'{"offsetTable":{1:8}}'


def test_a_master_that_has_delivered_nothing_reports_it() -> None:
    delays = DelayOffsets(TextFile(), log_end=1000)
    delays.load()
    assert delays.for_rocketmq_slaves(0) == b'{"offsetTable":{}}'


@pytest.mark.parametrize("cancelled_at_s", [1, 3])
async def test_a_write_that_is_cancelled_is_done_later(
    cancelled_at_s: float, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while the log is flushed, nor while the file waits for its thread."""
    file = TextFile()
    delays = DelayOffsets(file)
    delays.advance(1, 1, 100)

    async def slow(*_args: object) -> None:
        await trio.sleep(2)

    monkeypatch.setattr(file, "save_in_background", slow)
    with trio.move_on_after(cancelled_at_s):
        await delays.persist_in_background(slow)
    assert delays.changed
    delays.persist()
    assert file.text == b'{\n\t"offsetTable":{1:1\n\t}\n}'
    assert not delays.changed
