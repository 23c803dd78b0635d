"""The real mqadmin on our name server and broker: what it prints is what it prints on the real ones.

The same script of commands runs against a fresh cluster of each kind; what cannot be equal (addresses, times, ids,
rates) is replaced, everything else is compared line by line.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import partial
from typing import Any

import attrs
import pytest

from triomq_benchmarks.clusters.servers import Kind

TOPIC = "Orders"
GROUP = "auditors"
RETRY_TOPICS = ("%RETRY%auditors", "%RETRY%java_consumer")
MESSAGES = 20
# A Java broker makes this topic at its first check of transactions.
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
EARLY_CHECK = {"transactionCheckInterval": 500}

# Name of the case, command line; {broker}, {id} and {unique} are put in per cluster.
SCRIPT: list[tuple[str, str]] = [
    ("clusterList", "clusterList"),
    ("topicList", "topicList"),
    ("topicList by cluster", "topicList -c"),
    ("topicRoute", f"topicRoute -t {TOPIC}"),
    ("topicRoute of no topic", "topicRoute -t Nowhere"),
    ("topicStatus", f"topicStatus -t {TOPIC}"),
    ("topicClusterList", f"topicClusterList -t {TOPIC}"),
    ("updateTopicPerm", f"updateTopicPerm -t {TOPIC} -b {{broker}} -p 4"),
    ("topicRoute after updateTopicPerm", f"topicRoute -t {TOPIC}"),
    ("updateTopicPerm again", f"updateTopicPerm -t {TOPIC} -b {{broker}} -p 6"),
    ("updateTopic to more queues", f"updateTopic -b {{broker}} -t {TOPIC} -r 6 -w 6"),
    ("updateTopic with a bad name", "updateTopic -b {broker} -t b@d -r 6 -w 6"),
    ("updateOrderConf put", f"updateOrderConf -t {TOPIC} -m put -v broker-a:4"),
    ("updateOrderConf get", f"updateOrderConf -t {TOPIC} -m get"),
    ("updateOrderConf delete", f"updateOrderConf -t {TOPIC} -m delete"),
    ("brokerStatus", "brokerStatus -b {broker}"),
    ("getBrokerConfig", "getBrokerConfig -b {broker}"),
    ("updateBrokerConfig", "updateBrokerConfig -b {broker} -k flushIntervalCommitLog -v 400"),
    ("queryMsgByKey", f"queryMsgByKey -t {TOPIC} -k key-7-3"),
    ("queryMsgById", "queryMsgById -i {id}"),
    ("queryMsgByUniqueKey", f"queryMsgByUniqueKey -t {TOPIC} -i {{unique}}"),
    ("queryMsgByOffset", f"queryMsgByOffset -t {TOPIC} -b broker-a -i 0 -o 0"),
    ("printMsg", f"printMsg -t {TOPIC} -d true"),
    ("queryCq", f"queryCq -t {TOPIC} -q 0 -i 0 -b {{broker}}"),
    ("updateSubGroup", "updateSubGroup -b {broker} -g billing -r 3"),
    ("consumerProgress", f"consumerProgress -g {GROUP}"),
    ("consumerConnection", f"consumerConnection -g {GROUP}"),
    ("producerConnection", f"producerConnection -g java_producer -t {TOPIC}"),
    ("brokerConsumeStats", "brokerConsumeStats -b {broker}"),
    ("resetOffsetByTime", f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s 0 -f true"),
    ("consumerProgress after the reset", f"consumerProgress -g {GROUP}"),
    ("cloneGroupOffset", f"cloneGroupOffset -s {GROUP} -d copies -t {TOPIC} -o true"),
    ("statsAll", "statsAll -a"),
    ("getNamesrvConfig", "getNamesrvConfig"),
    ("updateNamesrvConfig", "updateNamesrvConfig -k orderMessageEnable -v true"),
    ("updateKvConfig", "updateKvConfig -s space -k key -v value"),
    ("deleteKvConfig", "deleteKvConfig -s space -k key"),
    ("wipeWritePerm", "wipeWritePerm -b broker-a"),
    ("topicRoute after wipeWritePerm", f"topicRoute -t {TOPIC}"),
    ("addWritePerm", "addWritePerm -b broker-a"),
    ("cleanExpiredCQ", "cleanExpiredCQ -c DefaultCluster"),
    ("cleanUnusedTopic", "cleanUnusedTopic -c DefaultCluster"),
    ("deleteSubGroup", "deleteSubGroup -c DefaultCluster -g billing"),
    ("deleteTopic", f"deleteTopic -c DefaultCluster -t {TOPIC}"),
    ("topicList after deleteTopic", "topicList"),
]

# These commands are wrong on purpose.
REFUSED = {"topicRoute of no topic", "updateTopic with a bad name"}

# Prints nothing for a topic before the broker has counted.
RATES = "statsAll"

# These list settings or counters: their names are compared, their values are each broker's own.
LISTS = {"brokerStatus": ":", "getBrokerConfig": "=", "getNamesrvConfig": "="}

OWN = [
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d([,.:]\d+)?", "TIME"),
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"\S*interop\S*", "PATH"),
    (r"-?\d+\.\d+(\(\d+,\d+ms\))?", "RATE"),
    (r"(consumer|producer)-+\d+", r"\1-N"),
    (r"\d{10,}", "N"),
    (r"[ \t]+", " "),
]


@attrs.frozen
class Printed:
    """What each command printed on the clusters of both kinds."""

    ours: dict[str, str]
    javas: dict[str, str]


def run_script(client: Any, kind: Kind, servers: Any, make_samples: Any) -> dict[str, str]:
    with ExitStack() as stack:
        names = stack.enter_context(servers.namesrv(kind, f"admin-{kind}-namesrv"))
        broker = stack.enter_context(servers.broker(kind, f"admin-{kind}-broker", names.address, EARLY_CHECK))
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
        client.eventually(
            partial(client.admin, names.address, "topicList"),
            lambda text: all(topic in text for topic in (*RETRY_TOPICS, HALF_TOPIC)),
        )
        printed = {}
        for case, line in SCRIPT:
            filled = line.format(broker=broker.address, id=results[3]["offsetMsgId"], unique=results[3]["msgId"])
            # A loaded machine may refuse a link in the middle of the script, and rates need two samples of ten seconds;
            # commands can be repeated.
            printed[case] = client.eventually(
                partial(client.admin, names.address, *filled.split()),
                partial(is_complete, case),
                limit_s=60.0 if case == RATES else 10.0,
            )
    return printed


def is_complete(case: str, text: str) -> bool:
    return case in REFUSED or (TOPIC in text if case == RATES else "Exception" not in text)


@pytest.fixture(scope="module")
def printed(fresh_java_client: Any, servers: Any, make_samples: Any) -> Printed:
    with fresh_java_client("admin-of-ours") as ours, fresh_java_client("admin-of-javas") as javas:
        return Printed(
            ours=run_script(ours, Kind.OURS, servers, make_samples),
            javas=run_script(javas, Kind.JAVA, servers, make_samples),
        )


def comparable(text: str) -> list[str]:
    for pattern, name in OWN:
        text = re.sub(pattern, name, text)
    # Tables come out of hash maps and sets; where in Java an error was thrown is Java's.
    return sorted(line.strip() for line in text.splitlines() if not line.startswith((" at ", " ...")))


@pytest.mark.parametrize("case", [case for case, _ in SCRIPT if case not in LISTS])
def test_prints_the_same(printed: Printed, case: str) -> None:
    assert printed.javas[case].strip(), "the real servers print something"
    assert comparable(printed.ours[case]) == comparable(printed.javas[case])


@pytest.mark.parametrize("case", LISTS)
def test_lists_the_same_names(printed: Printed, case: str) -> None:
    def names(text: str) -> set[str]:
        # The path of the log is part of one name.
        found = {line.partition(LISTS[case])[0].strip() for line in text.splitlines() if LISTS[case] in line}
        return {name.partition("_/")[0] for name in found}

    # Ours needs no home.
    assert names(printed.javas[case]) - names(printed.ours[case]) <= {"rocketmqHome"}


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
