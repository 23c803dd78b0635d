"""The keys of RocketMQ 4.9 that are accepted and have no effect here, each with the reason.

A key is in this table or the servers read it: a test compares both. A key that only sizes or tunes a part which these
servers do not have is accepted silently. A key that an operator relies on, such as a security switch, a source of addresses or
a data path, gives a warning when it is set away from its default.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from triomq_server.config.settings import default_of, keys_of, shown, to_text


class WithoutEffect(msgspec.Struct, frozen=True):
    """The reason why one key has no effect.

    Attributes:
        reason: what happens instead.
        warns: whether a value other than the default gives a warning.
    """

    reason: str
    warns: bool = False


def _table(warned: Mapping[str, str], silent: Mapping[str, str]) -> Mapping[str, WithoutEffect]:
    """One entry per key; keys in `silent` that share a reason are listed together."""
    table = {key: WithoutEffect(reason, warns=True) for key, reason in warned.items()}
    for keys, reason in silent.items():
        table.update(dict.fromkeys(keys.split(), WithoutEffect(reason)))
    return dict(sorted(table.items()))


_WARNED = {
    # discovery of name servers and members
    "fetchNamesrvAddrByAddressServer": "no address server is asked; name servers are those of namesrvAddr",
    "rmqAddressServerDomain": "no address server is asked; name servers are those of namesrvAddr",
    "rmqAddressServerSubGroup": "no address server is asked; name servers are those of namesrvAddr",
    "clusterTest": "no other name server is asked; routes are those registered here",
    # type and location of the store
    "enableDLegerCommitLog": "there is no DLedger; the broker runs in the role of brokerRole",
    "storePathDLedgerCommitLog": "there is no DLedger; the log is in storePathCommitLog",
    "readOnlyCommitLogStorePaths": "log files in other directories are not read; the log is in storePathCommitLog",
    "messageStorePlugIn": "no plug-in is loaded; messages are kept in the default store",
    "duplicationEnable": "the log is recovered as always, without a confirmed offset",
    "transientStorePoolEnable": "there is no pool of buffers; records are written into the mapped file at once",
    "enableLmq": "there are no light message queues; INNER_MULTI_DISPATCH is only stored",
    "enableMultiDispatch": "there are no light message queues; INNER_MULTI_DISPATCH is only stored",
    "enableConsumeQueueExt": "there are no extended queue files; filters read the messages",
    # delivery to consumers
    "enableCalcFilterBitMap": "no bit map is computed; filters read the messages",
    "filterServerNums": "no filter server is started; filter by tags or SQL92 expressions",
    "disableConsumeIfConsumerReadSlowly": "slow groups stay enabled; slaveReadEnable lets them read from a slave",
    "consumerFallbehindThreshold": "slow groups stay enabled; slaveReadEnable lets them read from a slave",
    # limits and deadlines
    "brokerFastFailureEnable": "requests do not queue; maxWaitingRequests limits those that wait",
    "channelNotActiveInterval": "a client is dropped after 120 s without a heartbeat",
    "connectTimeoutMillis": "each caller limits its own connection attempts",
    "clientChannelMaxIdleTimeSeconds": "the servers' own links are kept until the peer closes them",
    "serverSocketSndBufSize": "the system chooses the size of socket buffers",
    "serverSocketRcvBufSize": "the system chooses the size of socket buffers",
    "clientSocketSndBufSize": "the system chooses the size of socket buffers",
    "clientSocketRcvBufSize": "the system chooses the size of socket buffers",
    "serverSocketBacklog": "a listener's backlog is 1024",
    "writeBufferHighWaterMark": "linkOutputLimitBytes limits the unsent bytes of a link",
    "writeBufferLowWaterMark": "linkOutputLimitBytes limits the unsent bytes of a link",
}

_SILENT = {
    """serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads clientWorkerThreads
    clientCallbackExecutorThreads sendMessageThreadPoolNums putMessageFutureThreadPoolNums pullMessageThreadPoolNums
    processReplyMessageThreadPoolNums queryMessageThreadPoolNums adminBrokerThreadPoolNums clientManageThreadPoolNums
    consumerManageThreadPoolNums heartbeatThreadPoolNums endTransactionThreadPoolNums""": (
        "one event loop needs no thread pools"
    ),
    """putThreadPoolQueueCapacity replyThreadPoolQueueCapacity heartbeatThreadPoolQueueCapacity
    clientManagerThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity serverOnewaySemaphoreValue
    serverAsyncSemaphoreValue clientOnewaySemaphoreValue clientAsyncSemaphoreValue waitTimeMillsInSendQueue
    waitTimeMillsInPullQueue waitTimeMillsInHeartbeatQueue waitTimeMillsInTransactionQueue""": (
        "requests do not queue: maxWaitingRequests limits those that wait"
    ),
    """serverPooledByteBufAllocatorEnable clientPooledByteBufAllocatorEnable useEpollNativeSelector transferMsgByHeap
    clientCloseSocketIfTimeout useReentrantLockWhenPutMessage osPageCacheBusyTimeOutMills debugLockEnable
    warmMapedFileEnable flushLeastPagesWhenWarmMapedFile highSpeedMode isolateLogEnable""": (
        "tunes the Java implementation"
    ),
    """transientStorePoolSize fastFailIfNoBufferInStorePool commitIntervalCommitLog commitCommitLogLeastPages
    commitCommitLogThoroughInterval""": "there is no pool of buffers, see transientStorePoolEnable",
    "flushCommitLogTimed": "the log is flushed every flushIntervalCommitLog",
    "mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt": "no extended queue files, see enableConsumeQueueExt",
    "expectConsumerNumUseFilter maxErrorRateOfBloomFilter": "no bit map is computed, see enableCalcFilterBitMap",
    "maxLmqConsumeQueueNum": "there are no light message queues, see enableLmq",
    "dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId isEnableBatchPush": "no DLedger, see enableDLegerCommitLog",
    """enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    enableScheduleMessageStats maxDelayTime""": "delayed messages are always delivered level by level, and counted",
    "putMsgIndexHightWater": "the index is written with each message and never falls behind",
    "destroyMapedFileIntervalForcibly redeleteHangedFileInterval": "a file in use can be deleted at once",
    "diskFallRecorded enableDetailStat autoDeleteUnusedStats": "statistics are kept; unused ones go after two days",
    "commercialEnable commercialTimerCount commercialTransCount commercialBigCount commercialBaseCount": (
        "counts for the billing of a cloud service"
    ),
    "flushConsumerOffsetHistoryInterval": "RocketMQ 4.9 does not use it either",
    "productEnvName": "shown to tools only",
}

WITHOUT_EFFECT = _table(_WARNED, _SILENT)
"""Reason by key, sorted by key."""


def changed_without_effect(target: object) -> dict[str, WithoutEffect]:
    """Keys of a settings object that have no effect and are not at their defaults."""
    return {
        key: WITHOUT_EFFECT[key]
        for key, field in keys_of(type(target)).items()
        if key in WITHOUT_EFFECT and getattr(target, field.name) != default_of(field)
    }


def without_effect_lines(target: object) -> list[tuple[str, str]]:
    """A pair of key and line for each changed key that an operator relies on but that has no effect."""
    text = to_text(target)
    return [
        (key, f"{key}={shown(text.get(key, ''))} has no effect: {entry.reason}")
        for key, entry in changed_without_effect(target).items()
        if entry.warns
    ]
