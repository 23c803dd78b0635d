"""Every command of `mqadmin` 4.9.7 and 5.5.0, and what comes of it on our servers; printed as a table by `as_page`.

A case is one command line; the first word of its name is the command. Its outcomes, for 4.9.7 and 5.5.0:

- `=`: prints the same on our servers as on the real ones, where the case has a line; `""`: the tool has no such command;
- `names`: a list of settings or counters; it has all names of 4.9.7;
- a sentence that begins with `differs:`, or with `refused:` where our servers answer with the reason.
"""

from __future__ import annotations

import re

import attrs

TOPIC = "Orders"
GROUP = "auditors"

NO_POP = "no pop consumption"
_POP = f"refused: {NO_POP}"
_LITE = "refused: no lite topics"
_CONTROLLER = "refused: no controller; `triomq admin role` changes the role of a broker"
_AUTH = "refused: no users and ACLs of RocketMQ 5; accounts of `plain_acl.yml` instead"
_STATIC = "refused: no static topics"
_COLD = "refused: reads of old messages are not limited by group"
_CONTAINER = "refused: our broker is not a container, as RocketMQ's broker by default"
_ROCKSDB = "refused: nothing is stored in RocksDB"
_SETTINGS = "differs: our broker's settings are those of 4.9.7"
_SECRET = "differs: the reason for refusing an account does not show its secret key"


@attrs.frozen
class Case:
    """One command line; `{broker}`, `{id}`, `{unique}`, `{files}` and `{names}` are put in. No line: it has a test of its own.

    Attributes:
        guarded: whether it is run on servers with access control, by `test_access_control`.
    """

    name: str
    line: str
    on_4: str
    on_5: str
    guarded: bool = False

    @property
    def command(self) -> str:
        """The name of the command."""
        return self.name.partition(" ")[0]

    def outcome(self, version: str) -> str:
        """What comes of it with the tool of a version; empty if that has no such command."""
        return self.on_4 if version.startswith("4.") else self.on_5


def case(name: str, line: str, on_4: str = "=", on_5: str = "=") -> Case:
    return Case(name, line, on_4, on_5)


def guarded(name: str, line: str, on_4: str = "=") -> Case:
    return Case(name, line, on_4, "", guarded=True)


def only_5(name: str, line: str, outcome: str) -> Case:
    return Case(name, line, "", outcome)


CASES = (
    case("clusterList", "clusterList"),
    only_5("clusterList with more", "clusterList -m", "="),
    case("topicList", "topicList"),
    case("topicList by cluster", "topicList -c"),
    case("topicRoute", f"topicRoute -t {TOPIC}"),
    case("topicRoute of no topic", "topicRoute -t Nowhere"),
    case("topicStatus", f"topicStatus -t {TOPIC}"),
    case("topicClusterList", f"topicClusterList -t {TOPIC}"),
    case("updateTopicPerm", f"updateTopicPerm -t {TOPIC} -b {{broker}} -p 4"),
    case("topicRoute after updateTopicPerm", f"topicRoute -t {TOPIC}"),
    case("updateTopicPerm again", f"updateTopicPerm -t {TOPIC} -b {{broker}} -p 6"),
    case("updateTopic to more queues", f"updateTopic -b {{broker}} -t {TOPIC} -r 6 -w 6"),
    case("updateTopic with a bad name", "updateTopic -b {broker} -t b@d -r 6 -w 6", "=", ""),  # 5.5.0: another code
    only_5("updateTopic with a type", "updateTopic -b {broker} -t Fifo -a +message.type=FIFO", "="),
    only_5(
        "updateTopic of another store",
        "updateTopic -b {broker} -t Fifo -a +cleanup.policy=COMPACTION",
        "refused: attributes that ask for another store; those of no effect are taken, none is stored",
    ),
    only_5("updateTopicList", "updateTopicList -b {broker} -f {files}/topics.json", "="),
    case("updateOrderConf put", f"updateOrderConf -t {TOPIC} -m put -v broker-a:4"),
    case("updateOrderConf get", f"updateOrderConf -t {TOPIC} -m get"),
    case("updateOrderConf delete", f"updateOrderConf -t {TOPIC} -m delete"),
    case("brokerStatus", "brokerStatus -b {broker}", "names", "differs: our broker's counters are those of 4.9.7"),
    case("getBrokerConfig", "getBrokerConfig -b {broker}", "names", _SETTINGS),
    case("updateBrokerConfig", "updateBrokerConfig -b {broker} -k flushIntervalCommitLog -v 400"),
    case("queryMsgByKey", f"queryMsgByKey -t {TOPIC} -k key-7-3"),
    case("queryMsgById", "queryMsgById -i {id}", "=", ""),
    only_5("queryMsgById of a topic", f"queryMsgById -t {TOPIC} -i {{id}}", "="),
    case("queryMsgByUniqueKey", f"queryMsgByUniqueKey -t {TOPIC} -i {{unique}}"),
    case("queryMsgByOffset", f"queryMsgByOffset -t {TOPIC} -b broker-a -i 0 -o 0"),
    case("queryMsgTraceById", "queryMsgTraceById -i {unique}"),
    case("printMsg", f"printMsg -t {TOPIC} -d true"),
    case("printMsgByQueue", f"printMsgByQueue -t {TOPIC} -a broker-a -i 0 -p true -d true -f true"),
    case("queryCq", f"queryCq -t {TOPIC} -q 0 -i 0 -b {{broker}}"),
    case("sendMsgStatus", "sendMsgStatus -b broker-a -c 3"),
    case("checkMsgSendRT", f"checkMsgSendRT -t {TOPIC} -a 3 -s 10"),
    case("clusterRT", "clusterRT -a 3 -s 10 -i 60"),
    case("sendMessage", f"sendMessage -t {TOPIC} -p hello -b broker-a -i 1"),
    case("consumeMessage", f"consumeMessage -t {TOPIC} -g reader -b broker-a -i 2 -o 0 -c 2"),
    case("allocateMQ", f"allocateMQ -t {TOPIC} -i 127.0.0.1,127.0.0.2"),
    case("startMonitoring", ""),
    case("updateSubGroup", "updateSubGroup -b {broker} -g billing -r 3"),
    only_5("updateSubGroupList", "updateSubGroupList -b {broker} -f {files}/groups.json", "="),
    only_5("setConsumeMode to pull", f"setConsumeMode -b {{broker}} -t {TOPIC} -g billing -m PULL", "="),
    only_5("setConsumeMode to pop", f"setConsumeMode -b {{broker}} -t {TOPIC} -g billing -m POP -q 8", _POP),
    case("getConsumerConfig", "getConsumerConfig -g billing"),
    case("consumerProgress", f"consumerProgress -g {GROUP}"),
    case("consumerConnection", f"consumerConnection -g {GROUP}"),
    case("producerConnection", f"producerConnection -g java_producer -t {TOPIC}"),
    case("producer", "producer -b {broker}"),
    case("consumerStatus", "consumerStatus -g java_consumer"),
    case("brokerConsumeStats", "brokerConsumeStats -b {broker}"),
    case("resetOffsetByTime", f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s 0 -f true"),
    only_5(
        "resetOffsetByTime of a queue",
        f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s 0 -b {{broker}} -q 0 -o 1",
        "=",
    ),
    case("consumerProgress after the reset", f"consumerProgress -g {GROUP}"),
    case("skipAccumulatedMessage", f"skipAccumulatedMessage -g {GROUP} -t {TOPIC} -f true"),
    case("updateSubGroup for copies", "updateSubGroup -b {broker} -g copies"),
    case("cloneGroupOffset", f"cloneGroupOffset -s {GROUP} -d copies -t {TOPIC} -o true"),
    case("statsAll", "statsAll -a"),
    case("getNamesrvConfig", "getNamesrvConfig", "names", "differs: our name server's settings are those of 4.9.7"),
    case("updateNamesrvConfig", "updateNamesrvConfig -k orderMessageEnable -v true"),
    case("updateKvConfig", "updateKvConfig -s space -k key -v value"),
    case("deleteKvConfig", "deleteKvConfig -s space -k key"),
    case("wipeWritePerm", "wipeWritePerm -b broker-a"),
    case("topicRoute after wipeWritePerm", f"topicRoute -t {TOPIC}"),
    case("addWritePerm", "addWritePerm -b broker-a"),
    case("cleanExpiredCQ", "cleanExpiredCQ -c DefaultCluster"),
    case("deleteExpiredCommitLog", "deleteExpiredCommitLog -c DefaultCluster"),
    case("cleanUnusedTopic", "cleanUnusedTopic -c DefaultCluster"),
    guarded("updateAclConfig", "updateAclConfig -b {broker} -a visitor -s visitor-secret -t A=PUB -g G=SUB -m false"),
    guarded("updateAclConfig in the cluster", "updateAclConfig -c DefaultCluster -a visitor -s visitor-secret -i SUB"),
    guarded("updateAclConfig with a short key", "updateAclConfig -b {broker} -a short -s visitor-secret", _SECRET),
    guarded("updateGlobalWhiteAddr", "updateGlobalWhiteAddr -b {broker} -g 10.9.*.*,10.8.7.6"),
    guarded("getAclConfig", "getAclConfig -b {broker}"),
    guarded("clusterAclConfigVersion", "clusterAclConfigVersion -b {broker}"),
    guarded("clusterAclConfigVersion of the cluster", "clusterAclConfigVersion -c DefaultCluster"),
    guarded("deleteAclConfig", "deleteAclConfig -b {broker} -a visitor"),
    guarded("deleteAclConfig of nobody", "deleteAclConfig -b {broker} -a nobody-1"),
    guarded("getAclConfig afterwards", "getAclConfig -c DefaultCluster"),
    case("exportMetadata", "exportMetadata -c DefaultCluster -f {files}/export"),
    case("exportConfigs", "exportConfigs -c DefaultCluster -f {files}/export"),
    case("exportMetrics", "exportMetrics -c DefaultCluster -f {files}/export"),
    only_5("addBroker", "addBroker -c {broker} -b {files}/none.conf", _CONTAINER),
    only_5("removeBroker", "removeBroker -c {broker} -b DefaultCluster:broker-a:0", _CONTAINER),
    only_5(
        "resetMasterFlushOffset",
        "resetMasterFlushOffset -b {broker} -o 0",
        "refused: brokers of RocketMQ 5 cannot replicate with ours",
    ),
    only_5("updateStaticTopic", "updateStaticTopic -c DefaultCluster -t Static -qn 2", _STATIC),
    only_5("remappingStaticTopic", f"remappingStaticTopic -c DefaultCluster -t {TOPIC}", "="),
    only_5("exportMetadataInRocksDB", "exportMetadataInRocksDB -p {files}/none -t topics", "="),
    only_5("exportPopRecord", "exportPopRecord -b {broker} -d true", _POP),
    only_5("haStatus", "haStatus -b {broker}", "="),
    only_5("getSyncStateSet", "getSyncStateSet -a {names} -c DefaultCluster", _CONTROLLER),
    only_5("getBrokerEpoch", "getBrokerEpoch -c DefaultCluster", _CONTROLLER),
    only_5("getControllerMetaData", "getControllerMetaData -a {names}", _CONTROLLER),
    only_5("getControllerConfig", "getControllerConfig -a {names}", _CONTROLLER),
    only_5("updateControllerConfig", "updateControllerConfig -a {names} -k key -v value", _CONTROLLER),
    only_5("electMaster", "electMaster -a {names} -b 1 -bn broker-a -c DefaultCluster", _CONTROLLER),
    only_5("cleanBrokerMetadata", "cleanBrokerMetadata -a {names} -bn broker-a -c DefaultCluster -b 1", _CONTROLLER),
    only_5("dumpCompactionLog", "dumpCompactionLog -f {files}/none", "="),
    only_5("getColdDataFlowCtrInfo", "getColdDataFlowCtrInfo -b {broker}", _COLD),
    only_5(
        "updateColdDataFlowCtrGroupConfig", "updateColdDataFlowCtrGroupConfig -b {broker} -g billing -v 1000", _COLD
    ),
    only_5("removeColdDataFlowCtrGroupConfig", "removeColdDataFlowCtrGroupConfig -b {broker} -g billing", _COLD),
    only_5(
        "setCommitLogReadAheadMode",
        "setCommitLogReadAheadMode -b {broker} -m 0",
        "refused: the kernel decides how far the log is read ahead",
    ),
    only_5("createUser", "createUser -b {broker} -u user -p secret12", _AUTH),
    only_5("updateUser", "updateUser -b {broker} -u user -p secret34", _AUTH),
    only_5("getUser", "getUser -b {broker} -u user", _AUTH),
    only_5("listUser", "listUser -b {broker}", _AUTH),
    only_5("copyUser", "copyUser -f {broker} -t {broker}", _AUTH),
    only_5("deleteUser", "deleteUser -b {broker} -u user", _AUTH),
    only_5("createAcl", f"createAcl -b {{broker}} -s User:user -r Topic:{TOPIC} -a PUB -d ALLOW", _AUTH),
    only_5("updateAcl", f"updateAcl -b {{broker}} -s User:user -r Topic:{TOPIC} -a SUB -d ALLOW", _AUTH),
    only_5("getAcl", "getAcl -b {broker} -s User:user", _AUTH),
    only_5("listAcl", "listAcl -b {broker}", _AUTH),
    only_5("copyAcl", "copyAcl -f {broker} -t {broker}", _AUTH),
    only_5("deleteAcl", "deleteAcl -b {broker} -s User:user", _AUTH),
    only_5("rocksDBConfigToJson", "rocksDBConfigToJson -c DefaultCluster -t topics", _ROCKSDB),
    only_5("checkRocksdbCqWriteProgress", "checkRocksdbCqWriteProgress -c DefaultCluster", _ROCKSDB),
    only_5("switchTimerEngine", "switchTimerEngine -b {broker} -e F", "refused: no timer wheel; delay levels work"),
    only_5("getBrokerLiteInfo", "getBrokerLiteInfo -b {broker}", _LITE),
    only_5("getParentTopicInfo", f"getParentTopicInfo -p {TOPIC}", _LITE),
    only_5("getLiteTopicInfo", f"getLiteTopicInfo -p {TOPIC} -l lite", _LITE),
    only_5("getLiteClientInfo", f"getLiteClientInfo -p {TOPIC} -g billing -c client", _LITE),
    only_5("getLiteGroupInfo", f"getLiteGroupInfo -p {TOPIC} -g billing", _LITE),
    only_5("triggerLiteDispatch", f"triggerLiteDispatch -p {TOPIC} -g billing", _LITE),
    case("deleteSubGroup", "deleteSubGroup -c DefaultCluster -g billing"),
    case("deleteTopic", f"deleteTopic -c DefaultCluster -t {TOPIC}"),
    case("topicList after deleteTopic", "topicList"),
)
"""In this order, for each changes what the next ones find."""

OURS = {
    "clusterList": "`triomq cluster-status`",
    "topicList": "`triomq topics`",
    "topicRoute": "`triomq topics TOPIC`; addresses: `triomq cluster-status`",
    "topicStatus": "`triomq topics TOPIC`",
    "topicClusterList": "`triomq topics TOPIC` names the brokers, `triomq cluster-status` their clusters",
    "updateTopicPerm": "`triomq topics TOPIC --create --perm`",
    "updateTopic": "`triomq topics TOPIC --create`",
    "updateTopicList": "`triomq topics TOPIC --create`, topic by topic",
    "updateOrderConf": "`triomq kv put NAMESPACE KEY VALUE`, `triomq kv delete NAMESPACE KEY`",
    "brokerStatus": "`triomq brokers status BROKER`",
    "getBrokerConfig": "`triomq brokers config BROKER`",
    "updateBrokerConfig": "`triomq brokers set BROKER`",
    "queryMsgByKey": "`triomq message key TOPIC KEY`",
    "queryMsgById": "`triomq message id OFFSET_ID`",
    "queryMsgByUniqueKey": "`triomq message unique-key TOPIC MESSAGE_ID`",
    "queryMsgByOffset": "`triomq message at TOPIC BROKER:QUEUE OFFSET`",
    "queryMsgTraceById": "`triomq message trace MESSAGE_ID`",
    "printMsg": "`triomq pull TOPIC`, `triomq consume TOPIC --until-end`",
    "printMsgByQueue": "`triomq pull TOPIC --queue`",
    "queryCq": "`triomq message entries TOPIC BROKER:QUEUE OFFSET`",
    "sendMsgStatus": "`triomq send TOPIC`",
    "checkMsgSendRT": "`triomq bench run WORKLOAD --target`",
    "clusterRT": "`triomq bench run WORKLOAD --target`",
    "sendMessage": "`triomq send TOPIC`",
    "consumeMessage": "`triomq pull TOPIC --offset --max`",
    "allocateMQ": "`triomq offsets show GROUP --owners`: as it is, not as it would be",
    "startMonitoring": "`triomq doctor`",
    "updateSubGroup": "`triomq groups GROUP --create`",
    "updateSubGroupList": "`triomq groups GROUP --create`, group by group",
    "setConsumeMode": NO_POP,
    "getConsumerConfig": "`triomq groups GROUP --settings`",
    "consumerProgress": "`triomq groups`, `triomq offsets show GROUP --owners`",
    "consumerConnection": "`triomq groups GROUP`",
    "producerConnection": "`triomq brokers producers BROKER`",
    "producer": "`triomq brokers producers BROKER`",
    "consumerStatus": "`client.groups.running_info` of the SDK; differing subscriptions: `triomq doctor`",
    "brokerConsumeStats": "`triomq brokers consume-stats BROKER`",
    "resetOffsetByTime": "`triomq offsets reset GROUP TOPIC`",
    "skipAccumulatedMessage": "`triomq offsets reset GROUP TOPIC`, with `latest`",
    "cloneGroupOffset": "`triomq offsets clone SOURCE TARGET`",
    "statsAll": "`triomq traffic`",
    "getNamesrvConfig": "`triomq name-servers config`",
    "updateNamesrvConfig": "`triomq name-servers set`",
    "updateKvConfig": "`triomq kv put NAMESPACE KEY VALUE`",
    "deleteKvConfig": "`triomq kv delete NAMESPACE KEY`",
    "wipeWritePerm": "`triomq brokers write-permission NAME`, with `off`",
    "addWritePerm": "`triomq brokers write-permission NAME`, with `on`",
    "cleanExpiredCQ": "`triomq brokers clean BROKER`, with `queues`",
    "deleteExpiredCommitLog": "`triomq brokers clean BROKER`, with `log`",
    "cleanUnusedTopic": "`triomq brokers clean BROKER`, with `topics`",
    "updateAclConfig": "`triomq accounts set ACCESS_KEY`",
    "deleteAclConfig": "`triomq accounts delete ACCESS_KEY`",
    "clusterAclConfigVersion": "`triomq accounts versions`",
    "updateGlobalWhiteAddr": "`triomq accounts white-list`",
    "getAclConfig": "`triomq accounts list BROKER --secrets`",
    "exportMetadata": "`triomq topics --json`, `triomq groups GROUP --settings --json`",
    "exportConfigs": "`triomq brokers config BROKER --json`",
    "exportMetrics": "`triomq brokers status BROKER --json`",
    "remappingStaticTopic": "no static topics; an ordinary one is refused as by RocketMQ",
    "exportMetadataInRocksDB": "nothing is stored in RocksDB",
    "haStatus": "`triomq admin ha`",
    "dumpCompactionLog": "no compaction",
    "deleteSubGroup": "`triomq groups GROUP --delete`",
    "deleteTopic": "`triomq topics TOPIC --delete`",
}
"""Command of `mqadmin` -> ours that does it, or why there is none; what our servers refuse needs none."""

WITHOUT_REASON = frozenset({"getParentTopicInfo", "getLiteTopicInfo", "getLiteClientInfo", "getLiteGroupInfo",
                            "triggerLiteDispatch"})  # fmt: skip
"""Commands that print `error` for any refusal; the real broker refuses them for ordinary topics, too."""


OWN = [
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d([,.:]\d+)?", "TIME"),
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"\S*interop\S*", "PATH"),
    (r"-?\d+\.\d+(\(\d+,\d+ms[^)]*\))?", "RATE"),
    (r"\brt=\d+ms", "rt=RATE"),
    (r"true +\d+$", "true RATE"),
    (r"(consumer|producer)(-+\d+)+", r"\1-N"),
    (r"^broker-a .* NO_CONSUMER$", ""),  # the topic of sendMsgStatus, if the broker has counted
    (r"(PlainAccessConfig)@[0-9a-f]+", r"\1@ADDRESS"),
    (r"\d{10,}", "N"),
    (r"[ \t]+", " "),
]

# What is another version's, not another implementation's: its name, its system topics, the topic of a command that ours
# refuses, what its broker adds to each message, and so sizes and places of messages. Tools are producers now and then.
OWN_5 = [
    (r"V[45]_\d_\d", "VERSION"),
    (r"^(DefaultCluster )?(RMQ_SYS_|rmq_sys_)\S* *$", ""),
    (r"^Static$", ""),
    (r"^producer group \(CLIENT_INNER_PRODUCER\).*$", ""),
    (r"https?://rocketmq.apache.org/\S+", "FAQ"),
    (r"(MSG_REGION=DefaultRegion|WAIT=true|TRACE_ON=true), ", ""),
    (r", (MSG_REGION=DefaultRegion|WAIT=true|TRACE_ON=true)", ""),
    (r"\b(storeSize|commitLogOffset|physicOffset|physicSize)=\d+", r"\1=N"),
    (r"^(CommitLog Offset:|#MasterCommitLogMaxOffset) ?\d+", r"\1 N"),
    (r"@\d+ *$", "@N"),
    (r"\b\d+-\d+\(", "N-N("),  # what the timer wheel has done
    (r"OK, \d+", "OK, N"),
]


def comparable(text: str, version: str) -> list[str]:
    """The lines that a tool of this version printed, without what two servers of one kind print differently."""
    found = []
    for line in text.splitlines():
        # Where in Java an error was thrown is Java's; its logging library prints at the first use.
        if line.startswith((" at ", "\tat ", " ...", "\t...")) or re.match(r"\d\d:\d\d:\d\d,\d+ \|-", line):
            continue
        for pattern, name in OWN if version == "4.9.7" else [*OWN, *OWN_5]:
            line = re.sub(pattern, name, line)
        found.append(line.strip())
    # Tables come out of hash maps and sets.
    return sorted(line for line in found if line)


def cases(version: str) -> list[Case]:
    """The cases that are run with the tool of a version, on servers without access control."""
    return [one for one in CASES if one.line and one.outcome(version) and not one.guarded]


def guarded_cases() -> list[Case]:
    """Those that are run on servers with access control."""
    return [one for one in CASES if one.guarded]


def _cell(outcomes: list[str]) -> str:
    found = [one for one in outcomes if one]
    if not found:
        return "–"
    notes = list(dict.fromkeys(one for one in found if one.startswith(("differs", "refused"))))
    same = "same names" if "names" in found else "same"
    if not notes:
        return same
    return "; ".join(notes if all(one in notes for one in found) else [same, *notes])


def as_rows() -> list[str]:
    """The table of the page `docs/reference/mqadmin.md`, a line for each command."""
    rows = []
    for command in dict.fromkeys(one.command for one in CASES):
        mine = [one for one in CASES if one.command == command]
        cells = f"{_cell([one.on_4 for one in mine])} | {_cell([one.on_5 for one in mine])}"
        rows.append(f"| `{command}` | {cells} | {OURS.get(command, '–')} |")
    return rows
