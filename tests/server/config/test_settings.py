"""Settings: every key of a real 4.9.7 broker with its default, and what becomes of values that do not fit."""

from __future__ import annotations

import operator
import re
from pathlib import Path

import pytest

from triomq_server.config import (
    WITHOUT_EFFECT,
    BrokerConfig,
    ConfigError,
    NamesrvConfig,
    StoreConfig,
    load_properties,
    printed,
)
from triomq_server.config.findings import touches_safety
from triomq_server.config.settings import keys_of
from triomq_server.replication.rules import HaSettings

# As answered by a real 4.9.7 broker to GET_BROKER_CONFIG; what depends on the machine is left out, and so is
# bitMapLengthConsumeQueueExt, which that broker had computed again. Of slaveReadEnable and cleanFileForciblyEnable we
# differ on purpose.
REAL_BROKER = """
accessMessageInMemoryMaxRatio=40; aclEnable=false; adminBrokerThreadPoolNums=16; autoCreateSubscriptionGroup=true;
autoCreateTopicEnable=true; autoDeleteUnusedStats=false; brokerFastFailureEnable=true; brokerId=0; brokerPermission=6;
brokerRole=ASYNC_MASTER; brokerTopicEnable=true; channelNotActiveInterval=60000; checkCRCOnRecover=true;
cleanResourceInterval=10000; clientAsyncSemaphoreValue=65535;
clientChannelMaxIdleTimeSeconds=120; clientCloseSocketIfTimeout=true; clientManageThreadPoolNums=32;
clientManagerThreadPoolQueueCapacity=1000000; clientOnewaySemaphoreValue=65535;
clientPooledByteBufAllocatorEnable=false; clientSocketRcvBufSize=0; clientSocketSndBufSize=0; clientWorkerThreads=4;
clusterTopicEnable=true; commercialBaseCount=1; commercialBigCount=1; commercialEnable=true; commercialTimerCount=1;
commercialTransCount=1; commitCommitLogLeastPages=4; commitCommitLogThoroughInterval=200;
commitIntervalCommitLog=200; compressedRegister=false; connectTimeoutMillis=3000;
consumerFallbehindThreshold=17179869184; consumerManageThreadPoolNums=32;
consumerManagerThreadPoolQueueCapacity=1000000; debugLockEnable=false; defaultQueryMaxNum=32;
defaultTopicQueueNums=8; deleteCommitLogFilesInterval=100; deleteConsumeQueueFilesInterval=100; deleteWhen=04;
destroyMapedFileIntervalForcibly=120000; disableConsumeIfConsumerReadSlowly=false; diskFallRecorded=true;
diskMaxUsedSpaceRatio=75; duplicationEnable=false; enableCalcFilterBitMap=false; enableConsumeQueueExt=false;
enableDLegerCommitLog=false; enableDetailStat=true; enableLmq=false; enableMultiDispatch=false;
enablePropertyFilter=false; enableScheduleAsyncDeliver=false; enableScheduleMessageStats=true;
endTransactionPoolQueueCapacity=100000; expectConsumerNumUseFilter=32; fastFailIfNoBufferInStorePool=false;
fetchNamesrvAddrByAddressServer=false; fileReservedTime=72; filterDataCleanTimeSpan=86400000; filterServerNums=0;
filterSupportRetry=false; flushCommitLogLeastPages=4; flushCommitLogThoroughInterval=10000;
flushCommitLogTimed=true; flushConsumeQueueLeastPages=2; flushConsumeQueueThoroughInterval=60000;
flushConsumerOffsetHistoryInterval=60000; flushConsumerOffsetInterval=5000; flushDelayOffsetInterval=10000;
flushDiskType=ASYNC_FLUSH; flushIntervalCommitLog=500; flushIntervalConsumeQueue=1000;
flushLeastPagesWhenWarmMapedFile=4096; forceRegister=true; haHousekeepingInterval=20000; haListenPort=10912;
haSendHeartbeatInterval=5000; haSlaveFallbehindMax=268435456; haTransferBatchSize=32768;
heartbeatThreadPoolQueueCapacity=50000; highSpeedMode=false; isEnableBatchPush=false; isolateLogEnable=false;
listenPort=10911; longPollingEnable=true; mappedFileSizeCommitLog=1073741824; mappedFileSizeConsumeQueue=6000000;
mappedFileSizeConsumeQueueExt=50331648; maxDelayTime=40; maxErrorRateOfBloomFilter=20; maxHashSlotNum=5000000;
maxIndexNum=20000000; maxLmqConsumeQueueNum=20000; maxMessageSize=4194304; maxMsgsNumBatch=64;
maxTransferBytesOnMessageInDisk=65536; maxTransferBytesOnMessageInMemory=262144;
maxTransferCountOnMessageInDisk=8; maxTransferCountOnMessageInMemory=32;
messageDelayLevel=1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h; messageIndexEnable=true;
messageIndexSafe=false; messageStorePlugIn=; msgTraceTopicName=RMQ_SYS_TRACE_TOPIC;
notifyConsumerIdsChangedEnable=true; offsetCheckInSlave=false; osPageCacheBusyTimeOutMills=1000;
pullThreadPoolQueueCapacity=100000; putMsgIndexHightWater=600000; putThreadPoolQueueCapacity=10000;
queryThreadPoolQueueCapacity=20000; redeleteHangedFileInterval=120000; regionId=DefaultRegion;
registerBrokerTimeoutMills=6000; registerNameServerPeriod=30000;
replyThreadPoolQueueCapacity=10000; scheduleAsyncDeliverMaxPendingLimit=2000;
scheduleAsyncDeliverMaxResendNum2Blocked=3; sendThreadPoolQueueCapacity=10000; serverAsyncSemaphoreValue=64;
serverCallbackExecutorThreads=0; serverChannelMaxIdleTimeSeconds=120; serverOnewaySemaphoreValue=256;
serverPooledByteBufAllocatorEnable=true; serverSelectorThreads=3; serverSocketBacklog=1024;
serverSocketRcvBufSize=0; serverSocketSndBufSize=0; serverWorkerThreads=8; shortPollingTimeMills=1000;
slaveTimeout=3000; startAcceptSendRequestTimeStamp=0; storeReplyMessageEnable=true;
syncFlushTimeout=5000; traceOn=true; traceTopicEnable=false; transactionCheckInterval=60000; transactionCheckMax=15;
transactionTimeOut=6000; transferMsgByHeap=true; transientStorePoolEnable=false; transientStorePoolSize=5;
useEpollNativeSelector=false; useReentrantLockWhenPutMessage=true; useTLS=false;
waitTimeMillsInHeartbeatQueue=31000; waitTimeMillsInPullQueue=5000; waitTimeMillsInSendQueue=200;
waitTimeMillsInTransactionQueue=3000; warmMapedFileEnable=false; writeBufferHighWaterMark=0;
writeBufferLowWaterMark=0
"""

REAL_NAMESRV = """
productEnvName=center; clusterTest=false; orderMessageEnable=false; listenPort=9876; serverWorkerThreads=8;
serverCallbackExecutorThreads=0; serverSelectorThreads=3; serverOnewaySemaphoreValue=256;
serverAsyncSemaphoreValue=64; serverChannelMaxIdleTimeSeconds=120; serverSocketBacklog=1024
"""


def real(text: str) -> dict[str, str]:
    return dict(entry.strip().split("=", 1) for entry in " ".join(text.split()).split("; "))


@pytest.mark.parametrize(("key", "value"), real(REAL_BROKER).items())
def test_broker_default_is_that_of_the_real_one(key: str, value: str) -> None:
    assert BrokerConfig().to_properties()[key] == value


@pytest.mark.parametrize(("key", "value"), real(REAL_NAMESRV).items())
def test_name_server_default_is_that_of_the_real_one(key: str, value: str) -> None:
    assert NamesrvConfig().to_properties()[key] == value


DELAYS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@pytest.mark.parametrize("key", real(REAL_BROKER))
def test_every_key_can_be_set_from_a_file(key: str) -> None:
    other = {"true": "false", "false": "true", "ASYNC_MASTER": "SYNC_MASTER", "ASYNC_FLUSH": "SYNC_FLUSH", DELAYS: "1s"}
    before = BrokerConfig().to_properties()[key]
    after = other.get(before) or (str(int(before) + 1) if before.isdigit() else before + "x")
    if key == "aclEnable":
        return  # it needs other keys, too
    if touches_safety(key) and key in WITHOUT_EFFECT and WITHOUT_EFFECT[key].warns:
        with pytest.raises(ConfigError, match=f"^{key}={after} has no effect"):
            BrokerConfig.from_properties({key: after})
        return
    config, warnings = BrokerConfig.from_properties({key: after})
    forced = {"brokerId": "0", "haListenPort": "10912", "mappedFileSizeConsumeQueue": "6000020"}
    assert config.to_properties()[key] == forced.get(key, after)
    expected = (f"{key}={after} has no effect", "brokerId=1 is a slave's")
    assert [warning for warning in warnings if not warning.startswith(expected)] == []


def test_old_spelling_of_mapped_is_taken_with_a_warning() -> None:
    config, warnings = BrokerConfig.from_properties({"mapedFileSizeCommitLog": "65536", "warmMappedFileEnable": "true"})
    assert config.store.mapped_file_size_commit_log == 65536
    assert config.store.warm_maped_file_enable is True
    assert [w.split()[0] for w in warnings] == ["mapedFileSizeCommitLog", "warmMappedFileEnable"]


def test_right_spelling_of_mapped_wins() -> None:
    config, warnings = BrokerConfig.from_properties(
        {"mapedFileSizeCommitLog": "65536", "mappedFileSizeCommitLog": "131072"}
    )
    assert config.store.mapped_file_size_commit_log == 131072
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("key", "text", "attribute", "default"),
    [
        ("maxMessageSize", "many", "store.max_message_size", 4_194_304),
        ("maxMessageSize", "1_0", "store.max_message_size", 4_194_304),
        ("consumerFallbehindThreshold", "9223372036854775808", "consumer_fallbehind_threshold", 17179869184),
        ("maxConnections", "0", "max_connections", 10_000),
    ],
)
def test_malformed_number_leaves_the_default_and_a_warning(
    key: str, text: str, attribute: str, default: object
) -> None:
    config, warnings = BrokerConfig.from_properties({key: text})
    assert operator.attrgetter(attribute)(config) == default
    assert len(warnings) == 1
    assert key in warnings[0]
    assert text in warnings[0]


@pytest.mark.parametrize(
    ("text", "expected"), [("true", True), ("TRUE", True), (" true ", True), ("yes", False), ("1", False)]
)
def test_only_the_word_true_is_true(text: str, expected: bool) -> None:
    config, warnings = BrokerConfig.from_properties({"slaveReadEnable": text})
    assert config.slave_read_enable is expected
    assert bool(warnings) is (text in ("yes", "1"))


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("brokerRole", "Slave", "brokerRole=Slave: must be one of ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ("flushDiskType", "SYNC", "flushDiskType=SYNC: must be one of ASYNC_FLUSH, SYNC_FLUSH"),
        ("aclEnable", "true", "aclEnable"),
        ("aclEnable", "yes", "aclEnable=yes: it means false"),
        ("aclEnabled", "true", "unknown key aclEnabled (did you mean aclEnable?)"),
        ("useTLS", "yes", "useTLS=yes: it means false"),
        ("tls.server.mode", "Enforcing", "tls.server.mode=Enforcing: must be disabled or permissive or enforcing"),
        ("tls.server.certpath", "a.pem", "unknown key tls.server.certpath (did you mean tls.server.certPath?)"),
        ("fetchNamesrvAddrByAddressServer", "true", "has no effect: no address server is asked"),
        ("brokerRolle", "SYNC_MASTER", "unknown key brokerRolle (did you mean brokerRole?)"),
        ("flushDisktype", "SYNC_FLUSH", "unknown key flushDisktype (did you mean flushDiskType?)"),
        ("storePathRootdir", "/data", "unknown key storePathRootdir (did you mean storePathRootDir?)"),
        ("storePathRootDir", "a\x00b", "storePathRootDir=a?b: it has characters"),
        ("storePathRootDir", "", "storePathRootDir=: it is empty; leave the key out"),
        ("storePathCommitLog", "/a,/b", "storePathCommitLog=/a,/b: log files in several directories are not possible"),
        ("listenPort", "many", "listenPort=many: not a whole number"),
        ("listenPort", "70000", "listenPort=70000: must lie between 0 and 65535"),
        ("brokerId", "x", "brokerId=x: not a whole number"),
        ("namesrvAddr", "one", "namesrvAddr=one: 'one' is not host:port"),
        ("compat", "4.9.7", "compat=4.9.7: must be safe or 4.9"),
    ],
)
def test_what_touches_safety_prevents_the_start(key: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        BrokerConfig.from_properties({"colour": "blue", key: text})
    if key == "brokerRolle":
        return  # misspelt words are looked for at the start only
    config = BrokerConfig()
    before = config.to_properties()
    with pytest.raises(ConfigError, match=r"^no setting has been changed: "):
        config.update({"fileReservedTime": "1", key: text})
    assert config.to_properties() == before


def test_the_error_names_everything_that_prevents_the_start() -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.from_properties({"brokerRole": "Slave", "useTLS": "yes", "colour": "blue"})
    assert "brokerRole=Slave" in str(refused.value)
    assert "useTLS=yes" in str(refused.value)
    assert "colour" not in str(refused.value)


def test_paths_of_rocketmq_3_may_only_repeat_where_the_files_are() -> None:
    """Most examples of broker.conf on the web have them; RocketMQ 4 does not read them."""
    root = {"storePathRootDir": "/data/store/"}
    same = {
        "storePathConsumeQueue": "/data/store/consumequeue",
        "storePathIndex": "/data/store/index/",
        "storeCheckpoint": "/data/store/checkpoint",
        "abortFile": "/data/store/abort",
    }
    config, warnings = BrokerConfig.from_properties(root | same, strict=True)
    assert warnings == []
    assert config.to_properties().items() >= same.items()

    refused = "storePathIndex=/fast/index has no effect, in RocketMQ 4 neither: the place is /data/store/index; remove the key"
    with pytest.raises(ConfigError, match=f"^{re.escape(refused)}$"):
        BrokerConfig.from_properties(root | same | {"storePathIndex": "/fast/index", "abortFile": "/tmp/abort"})
    _, warnings = BrokerConfig.from_properties(root | same | {"abortFile": "/tmp/abort"})
    assert [warning.partition(";")[0] for warning in warnings] == [
        "abortFile=/tmp/abort has no effect, in RocketMQ 4 neither: the place is /data/store/abort"
    ]
    with pytest.raises(ConfigError, match="unknown key storePathIndex"):
        NamesrvConfig.from_properties(same)


@pytest.mark.parametrize(
    "values", [{"colour": "blue"}, {"slaveReadEnable": "yes"}, {"maxConnections": "0"}, {"enableLmq": "true"}]
)
def test_strict_refuses_what_is_a_warning_otherwise(values: dict[str, str]) -> None:
    assert len(BrokerConfig.from_properties(values)[1]) == 1
    with pytest.raises(ConfigError, match=next(iter(values))):
        BrokerConfig.from_properties(values, strict=True)
    BrokerConfig.from_properties({"slaveReadEnable": "true"}, strict=True)
    with pytest.raises(ConfigError, match="colour"):
        NamesrvConfig.from_properties({"colour": "blue"}, strict=True)


def test_a_file_that_states_every_default_starts() -> None:
    assert BrokerConfig.from_properties(BrokerConfig().to_properties(), strict=True)[1] == []
    assert NamesrvConfig.from_properties(NamesrvConfig().to_properties(), strict=True)[1] == []


def test_a_file_with_many_unknown_keys_is_read_at_once() -> None:
    values = {f"unknown{number:05}": "1" for number in range(5000)}
    assert len(BrokerConfig.from_properties(values)[1]) == 5000
    with pytest.raises(ConfigError, match=r"and 4991 more$"):
        BrokerConfig.from_properties(values | {"aclMode": "1"}, strict=True)
    assert BrokerConfig().update(values) == []


@pytest.mark.parametrize(
    ("values", "in_force"),
    [({}, 262144), ({"haTransferBatchSize": "32768"}, 32768), ({"compat": "4.9"}, 32768)],
)
def test_the_frame_of_replication_that_is_printed_is_the_one_in_force(values: dict[str, str], in_force: int) -> None:
    config, _ = BrokerConfig.from_properties(values)
    assert f"haTransferBatchSize={in_force}\n" in printed(config)
    assert HaSettings.from_config(config.store, compat_49=config.store.compat_49).batch_bytes == in_force


@pytest.mark.parametrize(
    ("key", "given", "in_force"),
    [
        ("registerNameServerPeriod", "1000", "10000"),
        ("registerNameServerPeriod", "30000", "30000"),
        ("registerNameServerPeriod", "3600000", "60000"),
        ("diskMaxUsedSpaceRatio", "1", "10"),
        ("diskMaxUsedSpaceRatio", "99", "95"),
        ("mappedFileSizeConsumeQueue", "6000001", "6000020"),
    ],
)
def test_a_number_that_is_brought_within_bounds_is_printed_as_it_is_used(key: str, given: str, in_force: str) -> None:
    config, _ = BrokerConfig.from_properties({key: given})
    assert f"\n{key}={in_force}\n" in "\n" + printed(config)
    assert config.store.consume_queue_file_bytes == int(config.to_properties()["mappedFileSizeConsumeQueue"])
    assert config.store.disk_ratio_limit == int(config.to_properties()["diskMaxUsedSpaceRatio"]) / 100
    config.update({key: in_force})
    assert config.to_properties()[key] == in_force


def test_unknown_keys_are_kept_and_named() -> None:
    config, warnings = BrokerConfig.from_properties({"colour": "blue", "listenPort": "20911"})
    assert warnings == ["unknown key colour; it is ignored"]
    assert config.to_properties()["colour"] == "blue"
    assert config.listen_port == 20911


def test_what_the_start_forces() -> None:
    config, _ = BrokerConfig.from_properties({"brokerId": "7", "listenPort": "20911", "haListenPort": "5"})
    assert (config.broker_id, config.store.ha_listen_port) == (0, 20912)
    config, _ = BrokerConfig.from_properties({"brokerRole": "SLAVE", "brokerId": "7", "listenPort": "0"})
    assert (config.broker_id, config.store.ha_listen_port) == (7, 0)
    assert config.store.is_slave


@pytest.mark.parametrize("broker_id", ["0", "-1", "x"])
def test_slave_without_an_id_of_its_own_cannot_start(broker_id: str) -> None:
    with pytest.raises(ConfigError, match=r"brokerId greater than 0|brokerId=(-1: must be|x: not a)"):
        BrokerConfig.from_properties({"brokerRole": "SLAVE", "brokerId": broker_id})


def test_a_user_without_a_home_needs_paths_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one with a bare number in a container: HOME is not set, and the number is no user's."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    config, _ = BrokerConfig.from_properties({"storePathRootDir": "/data/store"})
    assert config.store.store_path_root_dir == "/data/store"
    assert BrokerConfig().store.store_path_root_dir == "/store"
    assert NamesrvConfig().kv_config_path == "/namesrv/kvConfig.json"
    monkeypatch.setenv("HOME", "/home/me")
    assert BrokerConfig().store.store_path_root_dir == "/home/me/store"


def test_commitlog_follows_the_root_unless_it_is_given() -> None:
    config, _ = BrokerConfig.from_properties({"storePathRootDir": "/data/a"})
    assert config.store.store_path_commit_log == "/data/a/commitlog"
    config, _ = BrokerConfig.from_properties({"storePathRootDir": "/data/a", "storePathCommitLog": "/fast/log"})
    assert config.store.store_path_commit_log == "/fast/log"


def test_derived_sizes() -> None:
    store = StoreConfig(mapped_file_size_consume_queue=6_000_001, disk_max_used_space_ratio=99, memory_bytes=1000)
    assert store.consume_queue_file_bytes == 6_000_020
    assert store.disk_ratio_limit == 0.95
    assert store.in_memory_limit_bytes == 400
    assert StoreConfig().in_memory_limit_bytes > 0


def test_the_memory_limit_follows_a_change_of_the_running_configuration() -> None:
    config, _ = BrokerConfig.from_properties({"memoryBytes": "1000"})
    assert config.store.in_memory_limit_bytes == 400
    config.update({"accessMessageInMemoryMaxRatio": "10"})
    assert config.store.in_memory_limit_bytes == 100


def test_change_at_run_time_reaches_broker_and_store_but_no_unknown_key() -> None:
    config = BrokerConfig()
    warnings = config.update(
        {"brokerPermission": "4", "fileReservedTime": "1", "colour": "blue", "messageDelayLevel": "1s 2s"}
    )
    assert (config.broker_permission, config.store.file_reserved_time) == (4, 1)
    assert "colour" not in config.to_properties()
    assert warnings == ["messageDelayLevel=1s 2s takes effect at the next start"]
    assert config.update({"messageDelayLevel": "1s 2s", "brokerPermission": "6"}) == []


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("slaveReadEnable", "1", "slaveReadEnable=1: must be true or false"),
        ("traceOn", "ture", "traceOn=ture: must be true or false"),
        ("messageIndexEnable", "", "messageIndexEnable=: must be true or false"),
        ("deleteWhen", "4x", "deleteWhen=4x: '4x' is not an hour from 00 to 23"),
        ("deleteWhen", "04;24", "deleteWhen=04;24: '24' is not an hour from 00 to 23"),
    ],
)
def test_a_running_server_refuses_what_a_file_is_only_warned_about(key: str, text: str, problem: str) -> None:
    config, warnings = BrokerConfig.from_properties({key: text})
    assert len(warnings) == 1
    assert config.update({"fileReservedTime": "1"}) == []
    running = BrokerConfig()
    before = running.to_properties()
    with pytest.raises(ConfigError, match=re.escape(f"no setting has been changed: {problem}")):
        running.update({key: text, "fileReservedTime": "1"})
    assert running.to_properties() == before


def test_the_page_lists_the_keys_that_wait_for_the_next_start() -> None:
    classes = (BrokerConfig, StoreConfig, NamesrvConfig)
    waiting = {key for cls in classes for key, field in keys_of(cls).items() if field.metadata.get("triomq.at_start")}
    page = (Path(__file__).parents[3] / "docs" / "reference" / "configuration.md").read_text()
    listed = page.partition("take effect at the next start;")[2].partition(". One")[0]
    assert set(re.findall("`([a-zA-Z]+)`", listed)) == waiting
    assert all(listed.count(f"`{key}`") == 1 for key in waiting)


HOSTILE = ["-1", str((1 << 63) - 1), "nan", "inf", "x", "", "9" * 5000, "a\x00b", "a\nb", "a" * 5000]


@pytest.mark.parametrize("key", [*keys_of(BrokerConfig), *keys_of(StoreConfig)])
def test_values_of_a_file_are_in_range_or_ignored(key: str) -> None:
    for text in HOSTILE:
        try:
            config, _ = BrokerConfig.from_properties({key: text})
        except ConfigError:
            if not touches_safety(key) and key != "messageDelayLevel":
                raise
        else:
            config.check()


@pytest.mark.parametrize("key", keys_of(NamesrvConfig))
def test_values_of_a_name_servers_file_are_in_range_or_ignored(key: str) -> None:
    for text in HOSTILE:
        try:
            config, _ = NamesrvConfig.from_properties({key: text})
        except ConfigError:
            if not touches_safety(key):
                raise
        else:
            config.check()


@pytest.mark.parametrize(
    "values",
    [
        {"haSendHeartbeatInterval": "20000"},
        {"haHousekeepingInterval": "4000"},
        {"maxIndexNum": "100000000", "maxHashSlotNum": "100000000"},
        {"listenPort": "2"},
        {"listenPort": "65535"},
    ],
)
def test_settings_that_contradict_each_other_stop_the_start(values: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        BrokerConfig.from_properties(values)


@pytest.mark.parametrize("attribute", ["register_broker_timeout_mills", "listen_port", "default_topic_queue_nums"])
def test_a_program_may_not_set_what_a_file_may_not(attribute: str) -> None:
    config = BrokerConfig(namesrv_addr="127.0.0.1:9876")
    config.check()
    setattr(config, attribute, -1)
    with pytest.raises(ConfigError, match="-1: must"):
        config.check()


def test_name_servers_and_address() -> None:
    config = BrokerConfig(namesrv_addr=" a:1; b:2;;", broker_ip1="10.0.0.1", listen_port=1234)
    assert config.name_servers == ["a:1", "b:2"]
    assert config.address == "10.0.0.1:1234"


def test_printed_form_is_sorted_lines_without_escapes() -> None:
    text = printed(NamesrvConfig(kv_config_path="/a b:c", listen_port=1))
    assert "kvConfigPath=/a b:c\n" in text
    assert "listenPort=1\n" in text
    assert text.splitlines() == sorted(text.splitlines())


def test_sample_slave_file() -> None:
    config, warnings = BrokerConfig.from_properties(
        load_properties(
            "brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=1\nbrokerRole=SLAVE\n"
            "flushDiskType=ASYNC_FLUSH\ndeleteWhen=04\nfileReservedTime=48\nnamesrvAddr=127.0.0.1:9876\n"
            "brokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\nlistenPort=11011\nstorePathRootDir=/data/rmq/broker-a-s\n"
            "slaveReadEnable=true\n"
        )
    )
    assert warnings == []
    assert (config.broker_name, config.broker_id, config.store.ha_listen_port) == ("broker-a", 1, 11012)
    assert config.slave_read_enable


@pytest.mark.parametrize(
    ("values", "deleted"),
    [
        ({}, False),
        ({"compat": "4.9"}, True),
        ({"cleanFileForciblyEnable": "true"}, True),
        ({"compat": "4.9", "cleanFileForciblyEnable": "false"}, False),
    ],
)
def test_nothing_is_lost_silently_unless_the_file_or_4_9_allows_it(values: dict[str, str], deleted: bool) -> None:
    config, _ = BrokerConfig.from_properties(values)
    assert config.store.clean_file_forcibly_enable is deleted


@pytest.mark.parametrize(
    ("values", "for_slaves", "warned"),
    [
        ({}, "192.0.2.8", False),
        ({"brokerIP1": "127.0.0.1"}, "127.0.0.1", False),
        ({"brokerIP1": ""}, "192.0.2.8", False),
        ({"brokerIP2": "192.0.2.9"}, "192.0.2.9", False),
        ({"brokerIP1": "127.0.0.1", "brokerIP2": "192.0.2.9"}, "192.0.2.9", False),
        ({"brokerIP1": "127.0.0.1", "compat": "4.9"}, "192.0.2.8", True),
        ({"brokerIP1": "192.0.2.8", "compat": "4.9"}, "192.0.2.8", False),
        ({"brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1", "compat": "4.9"}, "127.0.0.1", False),
    ],
)
def test_slaves_are_sent_to_the_one_address_that_is_given(
    values: dict[str, str], for_slaves: str, warned: bool
) -> None:
    config, warnings = BrokerConfig.from_properties(values, broker_ip2="192.0.2.8")
    assert config.broker_ip2 == for_slaves
    expected = (
        "brokerIP1=127.0.0.1 is set and brokerIP2 is not; slaves are sent to this machine's first address, 192.0.2.8"
    )
    assert warnings == ([expected] if warned else [])


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        ({"brokerIP1": "0.0.0.0"}, ["brokerIP1=0.0.0.0"]),
        ({"brokerIP1": "::"}, ["brokerIP1=::"]),
        ({"brokerIP1": "10.0.0.7", "brokerIP2": "0.0.0.0"}, ["brokerIP2=0.0.0.0"]),
        ({"brokerIP1": "10.0.0.7"}, []),
        ({"brokerIP1": "broker-a.example"}, []),
        ({"brokerIP1": "::1"}, []),
    ],
)
def test_an_address_to_listen_on_is_not_one_to_connect_to(values: dict[str, str], warned: list[str]) -> None:
    _, warnings = BrokerConfig.from_properties(values)
    assert [line.partition(" is registered")[0] for line in warnings] == warned


@pytest.mark.parametrize("key", ["brokerIP1", "brokerIP2"])
def test_brackets_around_an_address_prevent_the_start(key: str) -> None:
    """They would be looked up as the name of a host."""
    with pytest.raises(ConfigError, match=rf"{key}=\[::1\]: IPv6 addresses are written without brackets here"):
        BrokerConfig.from_properties({key: "[::1]"})


@pytest.mark.parametrize(
    ("values", "slave_ms", "flush_ms"),
    [
        ({}, 1200, 1200),
        ({"compat": "4.9"}, 3000, 5000),
        ({"slaveTimeout": "3000", "syncFlushTimeout": "5000"}, 3000, 5000),
    ],
)
def test_sends_wait_less_long_than_producers(values: dict[str, str], slave_ms: int, flush_ms: int) -> None:
    config, _ = BrokerConfig.from_properties(values)
    assert (config.store.slave_timeout, config.store.sync_flush_timeout) == (slave_ms, flush_ms)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, True),
        ({"compat": "4.9"}, False),
        ({"compat": "4.9", "slaveReadEnable": "true"}, True),
        ({"slaveReadEnable": "false"}, False),
    ],
)
def test_slaves_are_read_unless_the_file_or_4_9_disables_it(values: dict[str, str], expected: bool) -> None:
    config, _ = BrokerConfig.from_properties(values)
    assert config.slave_read_enable is expected


@pytest.mark.parametrize("levels", ["", "1s foo", "1S", "-1s", "s", "5", "1s,2s", "9999999999999s"])
def test_delay_levels_that_mean_nothing_stop_the_start(levels: str) -> None:
    with pytest.raises(ConfigError, match=r"messageDelayLevel=.*is not a delay"):
        BrokerConfig.from_properties({"messageDelayLevel": levels})


def test_a_delay_fits_into_an_entry() -> None:
    config, _ = BrokerConfig.from_properties({"messageDelayLevel": "1s 36500000000d"})
    assert config.store.delay_levels_ms[1] + (1 << 42) < 1 << 63
    for levels in ("1s 36500000001d", "999999999999d"):
        with pytest.raises(ConfigError, match="d is too long; at most 36500000000d are possible"):
            BrokerConfig.from_properties({"messageDelayLevel": levels})


def test_delay_levels() -> None:
    config, warnings = BrokerConfig.from_properties({"messageDelayLevel": " 1s  5m 2h 1d "})
    assert config.store.delay_levels_ms == [1000, 300_000, 7_200_000, 86_400_000]
    assert not warnings
    config.update({"messageDelayLevel": "1s"})
    assert len(config.store.delay_levels_ms) == 4, "a broker's levels are those it started with"


@pytest.mark.parametrize(("text", "compat"), [("4.9", "4.9"), ("safe", "safe"), (" 4.9 ", "4.9")])
def test_known_behaviours(text: str, compat: str) -> None:
    config, warnings = BrokerConfig.from_properties({"compat": text})
    assert (config.store.compat, warnings) == (compat, [])


@pytest.mark.parametrize("text", ["4.9.7", '"4.9"', "Safe", ""])
@pytest.mark.parametrize("kind", [BrokerConfig, NamesrvConfig])
def test_an_unknown_behaviour_is_not_replaced_silently(kind: type[BrokerConfig | NamesrvConfig], text: str) -> None:
    with pytest.raises(ConfigError, match=f"compat={text}: must be safe or 4.9, written exactly so"):
        kind.from_properties({"compat": text})


@pytest.mark.parametrize("key", ["brokerName", "brokerClusterName"])
def test_a_name_that_is_empty_is_ignored(key: str) -> None:
    config, warnings = BrokerConfig.from_properties({key: ""})
    assert warnings == [f"{key}=: it is empty; leave the key out for its default; it is ignored"]
    assert config.to_properties()[key] == BrokerConfig().to_properties()[key]


@pytest.mark.parametrize("key", ["kvConfigPath", "configStorePath", "bindAddress"])
def test_what_a_name_server_needs_is_not_empty(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}=: it is empty"):
        NamesrvConfig.from_properties({key: ""})


def test_log_files_that_hold_no_message_are_refused() -> None:
    refused = r"mappedFileSizeCommitLog=10 .*maxMessageSize=4194304.*at least 32768"
    for compat in ("safe", "4.9"):
        with pytest.raises(ConfigError, match=refused):
            BrokerConfig.from_properties({"mappedFileSizeCommitLog": "10", "compat": compat})
    assert BrokerConfig.from_properties({"mappedFileSizeCommitLog": "32768"})[1] == []


def test_a_masters_id_that_is_not_0_is_logged() -> None:
    given = {"brokerId": "5", "brokerRole": "SYNC_MASTER"}
    config, warnings = BrokerConfig.from_properties(given)
    assert config.broker_id == 0
    assert warnings == ["brokerId=5 is a slave's, and brokerRole=SYNC_MASTER is a master's; the broker runs with id 0"]
    with pytest.raises(ConfigError, match="brokerId=5 is a slave's"):
        BrokerConfig.from_properties(given, strict=True)
    assert BrokerConfig.from_properties({"brokerId": "0", "brokerRole": "SYNC_MASTER"})[1] == []


def test_a_master_that_is_fixed_for_tables_alone_is_a_warning() -> None:
    main = {"haMasterMainAddress": "10.0.0.1:10911", "brokerRole": "SLAVE", "brokerId": "1"}
    assert BrokerConfig.from_properties(main)[1] == [
        (
            "haMasterMainAddress=10.0.0.1:10911 is set and haMasterAddress is not; after a failover the slave waits, "
            "since it still compares its log with this address; set both or neither"
        )
    ]
    assert BrokerConfig.from_properties({**main, "haMasterAddress": "10.0.0.1:10912"})[1] == []
    assert BrokerConfig.from_properties({**main, "brokerRole": "SYNC_MASTER", "brokerId": "0"})[1] == []


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        ({"deleteWhen": "99"}, "deleteWhen=99: '99' is not an hour"),
        ({"deleteWhen": "04;x"}, "deleteWhen=04;x: 'x' is not an hour"),
        ({"brokerName": "a:b"}, "brokerName=a:b has ':' or ';' in it"),
        ({"brokerName": "a;b"}, "brokerName=a;b has ':' or ';' in it"),
    ],
)
def test_values_without_their_effect_are_accepted_with_a_warning(values: dict[str, str], warning: str) -> None:
    config, (line,) = BrokerConfig.from_properties(values)
    assert line.startswith(warning)
    assert values.items() <= config.to_properties().items()
    with pytest.raises(ConfigError, match=re.escape(warning)):
        BrokerConfig.from_properties(values, strict=True)


def test_hours_are_written_in_either_way() -> None:
    for hour in ("04", "4", "00; 23;7", "04;", "4;5;;"):
        assert BrokerConfig.from_properties({"deleteWhen": hour})[1] == []
        assert BrokerConfig().update({"deleteWhen": hour}) == []


def test_the_error_for_a_number_that_is_too_large_names_the_maximum() -> None:
    with pytest.raises(ConfigError, match=f"brokerId={1 << 63}: must lie between 0 and {(1 << 63) - 1}"):
        BrokerConfig.from_properties({"brokerId": str(1 << 63)})
