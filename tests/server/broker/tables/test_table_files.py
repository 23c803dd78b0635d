"""Files that a start would refuse are found without a start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from memory_disk import MemoryDisk

from triomq_server.broker.tables.table_files import refused_files

REFUSED = {
    "config/topics.json": '{"topicConfigTable":{"x":5}}',
    "config/subscriptionGroup.json": '{"subscriptionGroupTable":{"x":[]}}',
    "config/consumerOffset.json": '{"offsetTable":{"T@G":{"0":"abc"}}}',
    "config/delayOffset.json": '{"offsetTable":{"1":1e999}}',
    "config/consumerFilter.json": '{"filterDataByTopic":{"T":3}}',
    "triomq/undeliveredDelays.json": '{"1":2}',
    "triomq/offsetResets.json": '{"resets":[]}',
    "triomq/removedQueues.json": '{"1":2}',
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("text", ["this one", "{"])
async def test_what_a_start_refuses_is_named(name: str, text: str, tmp_path: Path, open_broker: Any) -> None:
    content = REFUSED[name] if text == "this one" else text
    disk = MemoryDisk()
    disk.write(f"/store/{name}", content.encode())
    with pytest.raises(BaseException) as refused:
        async with open_broker(disk=disk):
            pass
    assert "start again" in repr(refused.value)
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(content)
    assert [file for file, _ in refused_files(tmp_path)] == [name]


@pytest.mark.parametrize("content", ['{"T@G":{"0":1e400}}', '{"T@G":{"x":1}}', '{"T@G":{"0":null}}', '{"T@G":3}'])
def test_unusable_times_of_resets_are_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "triomq").mkdir()
    (tmp_path / "triomq" / "offsetResets.json").write_text(f'{{"resets":{content}}}')
    ((_, why),) = refused_files(tmp_path)
    assert "offsetResets.json does not hold what it should: " in why
    assert "move it away, then start again" in why


async def test_sound_and_missing_tables_are_not_refused(tmp_path: Path) -> None:
    assert list(refused_files(tmp_path)) == []
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@G":{0:-1}}}')
    assert list(refused_files(tmp_path)) == []
