"""The real mqadmin of 4.9.7 and of 5.5.0 on our name server and broker: what it prints is what it prints on the servers
of its own version.

The same script of commands (`mqadmin_commands.py`) runs against a fresh cluster of each kind. What cannot be equal
(addresses, times, ids, rates) is replaced, everything else is compared line by line.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from mqadmin_commands import CASES, GROUP, TOPIC, WITHOUT_REASON, Case, as_rows, cases, comparable

from triomq_benchmarks.clusters.servers import Kind

VERSIONS = ("4.9.7", "5.5.0")
# A consumer that lives longer than a second makes its group's retry topic. On a slow machine, those of `printMsg` and
# `consumeMessage` do: their groups get one beforehand.
GROUPS_OF_TOOLS = ("TOOLS_CONSUMER", "reader")
RETRY_TOPICS = tuple(f"%RETRY%{group}" for group in (GROUP, "java_consumer", *GROUPS_OF_TOOLS))
MESSAGES = 20
# A Java broker makes this topic at its first check of transactions.
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
EARLY_CHECK = {"transactionCheckInterval": 500}

# These commands are wrong on purpose.
FAIL = {
    "topicRoute of no topic",
    "updateTopic with a bad name",
    "queryMsgTraceById",
    "dumpCompactionLog",
    "remappingStaticTopic",
}
# What brokers of 4.9.7 say of a group without members and settings, to commands that go on without them in 5.5.0.
NO_GROUP = f"DESC: THe consumer group <{GROUP}> not exist"

# Prints nothing for a topic before the broker has counted.
RATES = "statsAll"

# Never ends by itself.
ENDLESS = "clusterRT"
ENDLESS_S = 5.0

ROUND_S = 300
"""The tool's first round begins after 20 seconds, and it may have to be started several times."""
ROUND_ENDED = "Execute one round"
OWN_LINE = (
    "[MONITOR] reportUndoneMsgs: UndoneMsgs [consumerGroup=__MONITOR_CONSUMER, topic={}, undoneMsgsTotal=0, "
    "undoneMsgsSingleMQ=0, undoneMsgsDelayTimeMills=0]"
)

# These list settings or counters: their names are compared, their values are each broker's own.
LISTS = {"brokerStatus": ":", "getBrokerConfig": "=", "getNamesrvConfig": "="}


@attrs.frozen
class Printed:
    """What each command of one version's tool printed on clusters of both kinds."""

    version: str
    commands: set[str]
    ours: dict[str, str]
    javas: dict[str, str]


def run_script(client: Any, kind: Kind, servers: Any, make_samples: Any, version: str, files: Path) -> dict[str, str]:
    (files / "topics.json").write_text('[{"topicName":"Listed","readQueueNums":3,"writeQueueNums":3,"perm":6}]')
    (files / "groups.json").write_text('[{"groupName":"listed","retryMaxTimes":5}]')
    with ExitStack() as stack:
        names = stack.enter_context(servers.namesrv(kind, f"admin-{kind}-{version}-namesrv"))
        name = f"admin-{kind}-{version}-broker"
        broker = stack.enter_context(servers.broker(kind, name, names.address, EARLY_CHECK))
        client.admin(names.address, "updateTopic", "-c", "DefaultCluster", "-t", TOPIC, "-r", "4", "-w", "4")
        results = client.send(names.address, TOPIC, make_samples(MESSAGES), "inTurn")
        client.pull_all(names.address, TOPIC, MESSAGES)

        def committed() -> set[int]:
            client.commit(names.address, TOPIC, 3, GROUP)
            return {queue["committed"] for queue in client.offsets(names.address, TOPIC, 0, GROUP)}

        client.eventually(committed, {3}.__eq__)
        client.query_until_found(names.address, TOPIC, f"key-7-{MESSAGES - 1}")
        # A client's heartbeat creates its group's retry topic; its first one may be sent half a minute after its first
        # pull.
        for group in GROUPS_OF_TOOLS:
            client.pull(names.address, TOPIC, group=group)
        client.eventually(
            partial(client.admin, names.address, "topicList"),
            lambda text: all(topic in text for topic in (*RETRY_TOPICS, HALF_TOPIC)),
        )
        filled = {
            "broker": broker.address,
            "names": names.address,
            "files": files,
            "id": results[3]["offsetMsgId"],
            "unique": results[3]["msgId"],
        }
        printed = {}
        for case in cases(version):
            arguments = [part.format(**filled) for part in case.line.split()]
            if case.name == ENDLESS:
                printed[case.name] = client.admin(names.address, *arguments, limit_s=ENDLESS_S)
                continue
            # A loaded machine may refuse a link in the middle of the script, and rates need two samples of ten seconds;
            # commands can be repeated.
            printed[case.name] = client.eventually(
                partial(client.admin, names.address, *arguments),
                partial(is_complete, case, version),
                limit_s=60.0 if case.name == RATES else 10.0,
            )
    return printed


def is_complete(case: Case, version: str, text: str) -> bool:
    if case.name == RATES:
        return TOPIC in text
    if case.name in FAIL or case.outcome(version).startswith("refused"):
        return "Connect" not in text
    return "Exception" not in text or NO_GROUP in text


@pytest.fixture(scope="module", params=VERSIONS)
def printed(request: pytest.FixtureRequest, make_samples: Any, tmp_path_factory: pytest.TempPathFactory) -> Printed:
    version = request.param
    suffix = "" if version == "4.9.7" else "_5"
    start = request.getfixturevalue(f"fresh_java_client{suffix}")
    servers, theirs = request.getfixturevalue("servers"), request.getfixturevalue(f"servers{suffix}")
    folder = tmp_path_factory.mktemp("interop-mqadmin")
    found = {}
    for kind, kinds_servers in ((Kind.OURS, servers), (Kind.JAVA, theirs)):
        with start(f"admin-{version}-of-{kind}") as client:
            listed = client.driver.call({"op": "admin", "arguments": []}, 60)["output"]
            files = folder / kind
            files.mkdir()
            found[kind] = run_script(client, kind, kinds_servers, make_samples, version, files)
    return Printed(version, set(re.findall(r"^   (\w+) ", listed, re.MULTILINE)), found[Kind.OURS], found[Kind.JAVA])


COUNTS = "statsAll"
"""Prints rates and counts of the last minutes, which depend on when it is asked."""


def test_prints_the_same(printed: Printed, subtests: pytest.Subtests) -> None:
    for case in cases(printed.version):
        if case.outcome(printed.version) == "=":
            with subtests.test(case=case.name, version=printed.version):
                assert printed.javas[case.name].strip(), "the real servers print something"
                ours, theirs = (comparable(each[case.name], printed.version) for each in (printed.ours, printed.javas))
                if case.name == COUNTS:
                    ours, theirs = ([re.sub(r"\d+", "N", line) for line in lines] for lines in (ours, theirs))
                assert ours == theirs


def test_lists_the_same_names(printed: Printed, subtests: pytest.Subtests) -> None:
    def names(case: str, text: str) -> set[str]:
        # The path of the log is part of one name.
        found = {line.partition(LISTS[case])[0].strip() for line in text.splitlines() if LISTS[case] in line}
        return {name.partition("_/")[0] for name in found}

    for case in cases(printed.version):
        if case.outcome(printed.version) == "names":
            with subtests.test(case=case.name, version=printed.version):
                theirs = names(case.name, printed.javas[case.name])
                # Ours needs no home.
                assert theirs - names(case.name, printed.ours[case.name]) <= {"rocketmqHome"}


def test_what_differs_is_answered_or_refused_with_the_reason(printed: Printed, subtests: pytest.Subtests) -> None:
    for case in cases(printed.version):
        outcome, text = case.outcome(printed.version), printed.ours[case.name]
        with subtests.test(case=case.name, version=printed.version):
            if outcome.startswith("differs"):
                assert text.strip()
                assert "Exception" not in text
            elif outcome.startswith("refused"):
                reason = r"request type \d+ not supported: \w+|CODE: 1 .*RocketMQ 5"
                assert re.search(r"\berror\b" if case.command in WITHOUT_REASON else reason, text)
                assert "Timeout" not in text


def test_no_command_of_the_tool_is_missing(printed: Printed) -> None:
    assert printed.commands == {case.command for case in CASES if case.outcome(printed.version)}


def test_the_page_has_this_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "mqadmin.md"
    assert [line for line in page.read_text().splitlines() if line.startswith("| `")] == as_rows()


def monitored(client: Any, home: Path, names: str) -> list[str]:
    """What the first round of `startMonitoring` wrote into the log, without times.

    The tool goes on until its process ends. Its start fails where its first request takes three seconds, as in a process
    that is still loading its classes on a busy machine: it runs in one that has run other commands, and is started again.
    """
    deadline = time.monotonic() + ROUND_S
    while "SubCommandException" in (printed := client.admin(names, "startMonitoring")):
        assert time.monotonic() < deadline, printed[-2000:]
    text = ""
    while ROUND_ENDED not in text:
        assert time.monotonic() < deadline, text[-2000:]
        time.sleep(0.2)
        text = "".join(log.read_text(errors="replace") for log in sorted(home.glob("logs/**/*.log")))
    lines = re.findall(rf"\[MONITOR\].*|{ROUND_ENDED}.*", text)
    # On a busy machine the next round has begun.
    (end, *_) = (n for n, line in enumerate(lines) if line.startswith(ROUND_ENDED))
    return sorted(
        re.sub(r"((?:spent timemills: |DelayTimeMills=)\d*?)[1-9]\d*", r"\1N", line) for line in lines[: end + 1]
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_monitoring_finds_the_same(
    request: pytest.FixtureRequest, make_samples: Any, scratch: Path, version: str
) -> None:
    suffix = "" if version == "4.9.7" else "_5"
    start = request.getfixturevalue(f"fresh_java_client{suffix}")
    theirs = request.getfixturevalue(f"servers{suffix}")
    found: dict[Kind, list[str]] = {}

    def look(kind: Kind, servers: Any) -> None:
        name = f"monitor-{kind}-{version}"
        with ExitStack() as stack:
            names = stack.enter_context(servers.namesrv(kind, f"{name}-namesrv"))
            stack.enter_context(servers.broker(kind, f"{name}-broker", names.address))
            client = stack.enter_context(start(name, {"rocketmq.client.logLevel": "INFO"}))
            client.admin(names.address, "updateTopic", "-c", "DefaultCluster", "-t", TOPIC, "-r", "4", "-w", "4")
            client.send(names.address, TOPIC, make_samples(MESSAGES), "inTurn")

            def committed() -> set[int]:
                client.commit(names.address, TOPIC, 3, GROUP)
                return {queue["committed"] for queue in client.offsets(names.address, TOPIC, 0, GROUP)}

            client.eventually(committed, {3}.__eq__)
            # The tool takes the names of groups from their retry topics.
            client.admin(
                names.address, "updateTopic", "-c", "DefaultCluster", "-t", f"%RETRY%{GROUP}", "-r", "1", "-w", "1"
            )
            client.eventually(partial(client.admin, names.address, "topicList"), lambda text: f"%RETRY%{GROUP}" in text)
            found[kind] = monitored(client, scratch / name, names.address)

    with ThreadPoolExecutor() as threads:
        kinds = ((Kind.OURS, request.getfixturevalue("servers")), (Kind.JAVA, theirs))
        for each in [threads.submit(look, kind, servers) for kind, servers in kinds]:
            each.result()
    assert any(f"consumerGroup={GROUP}, topic={TOPIC}, undoneMsgsTotal=8," in line for line in found[Kind.JAVA])
    assert _others(found[Kind.OURS]) == _others(found[Kind.JAVA])


def _others(lines: list[str]) -> list[str]:
    """Without what the tool says of its own consumer: which queues that has got when the round begins is chance."""
    own = [line for line in lines if "consumerGroup=__MONITOR_CONSUMER," in line]
    assert set(own) <= {OWN_LINE.format(topic) for topic in ("OFFSET_MOVED_EVENT", "%RETRY%__MONITOR_CONSUMER")}
    return [line for line in lines if line not in own]


def test_accepts_binary_headers_too(binary_java_client: Any, either: Any, topic: str) -> None:
    servers, broker = either.namesrv.address, either.broker.address
    assert broker in binary_java_client.admin(servers, "clusterList")
    created = binary_java_client.admin(servers, "updateTopic", "-b", broker, "-t", topic, "-r", "3", "-w", "3")
    assert "success" in created
    assert '"readQueueNums":3' in binary_java_client.eventually(
        partial(binary_java_client.admin, servers, "topicRoute", "-t", topic), lambda text: "readQueueNums" in text
    )
    # The real broker answers with an error until it has taken its first sample of itself.
    assert "brokerVersionDesc" in binary_java_client.eventually(
        partial(binary_java_client.admin, servers, "brokerStatus", "-b", broker), lambda text: "VersionDesc" in text
    )
