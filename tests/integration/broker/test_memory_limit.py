"""In a container the memory limit counts, not the machine's memory: a reader behind 40 % of it is sent to a slave."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from raw_broker import ask, frame, header, started_broker

LIMIT_BYTES = 10_000_000
SEND, PULL = 10, 11

# A mount namespace of its own, in which the limits of this process's control group are other ones.
MOUNTED = ["unshare", "-rm", "sh", "-c", 'mount --bind "$0" /sys/fs/cgroup && exec "$@"']


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """Control groups, of both versions, of which the outermost has a limit."""
    root = tmp_path / "cgroup"
    (root / "memory").mkdir(parents=True)
    (root / "memory.max").write_text(f"{LIMIT_BYTES}\n")
    (root / "memory" / "memory.limit_in_bytes").write_text(f"{LIMIT_BYTES}\n")
    unusable = shutil.which("unshare") is None or subprocess.run([*MOUNTED, root, "true"], check=False).returncode
    if unusable:
        pytest.skip("this system does not let us mount control groups")
    return root


def send(port: int, body: bytes) -> None:
    request = header(
        SEND, producerGroup="P", topic="T", defaultTopic="TBW102", defaultTopicQueueNums=1, queueId=0, sysFlag=0,
        bornTimestamp=int(time.time() * 1000), flag=0, properties="", reconsumeTimes=0, unitMode="false",
    )  # fmt: skip
    # 12: there is no slave.
    assert ask(port, frame(request, body))[0]["code"] in (0, 11, 12)


def suggested(port: int) -> str:
    """Which broker the next pull should go to, after one of the first message."""
    request = header(
        PULL, consumerGroup="G", topic="T", queueId=0, queueOffset=0, maxMsgNums=1, sysFlag=4, commitOffset=0,
        suspendTimeoutMillis=0, subscription="*", subVersion=0, expressionType="TAG",
    )  # fmt: skip
    answer = ask(port, frame(request))[0]
    assert answer["code"] == 0, answer
    fields = answer["extFields"]
    assert isinstance(fields, dict)
    return str(fields["suggestWhichBrokerId"])


def test_a_reader_behind_the_container_s_memory_is_sent_to_the_slave(tmp_path: Path, groups: Path) -> None:
    with started_broker(tmp_path / "store", "slaveReadEnable=true", before=[*MOUNTED, str(groups)]) as port:
        for _ in range(3):
            send(port, bytes(1_000_000))
        assert suggested(port) == "0"
        for _ in range(3):
            send(port, bytes(1_000_000))
        assert suggested(port) == "1"
