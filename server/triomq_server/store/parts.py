"""What a store is made of, and how its parts come to know each other."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from triomq_server.config import StoreConfig

from .checkpoint import Checkpoint
from .commitlog import CommitLog
from .consume_queue import ConsumeQueues
from .disk import Disk
from .dispatch import Dispatcher, parse_delay_levels
from .flush import Flusher
from .index import Index
from .recovery import RecoveryReport
from .retention import Cleaner


@attrs.define
class StoreParts:
    """The parts of one store; `build` makes them, empty and without touching a file."""

    config: StoreConfig
    disk: Disk
    checkpoint: Checkpoint
    commitlog: CommitLog
    queues: ConsumeQueues
    index: Index | None
    dispatcher: Dispatcher
    flusher: Flusher
    cleaner: Cleaner
    recovery_report: RecoveryReport | None = None

    @classmethod
    def build(cls, config: StoreConfig, disk: Disk, clock: Callable[[], int]) -> StoreParts:
        """The parts for the directory that `config` names; `clock` gives ms since the epoch."""
        root = config.store_path_root_dir
        checkpoint = Checkpoint(disk, f"{root}/checkpoint")
        log = CommitLog(config, disk, clock)
        queues = ConsumeQueues(disk, f"{root}/consumequeue", config.consume_queue_file_bytes)
        index = None
        if config.message_index_enable:
            index = Index(disk, f"{root}/index", config.max_hash_slot_num, config.max_index_num, clock)
        delays = parse_delay_levels(config.message_delay_level)
        as_in_49 = config.compat == "4.9"
        dispatcher = Dispatcher(
            log, queues, index, checkpoint, delays, exact_repeats=not as_in_49, vouches_early=as_in_49
        )
        flusher = Flusher(config, disk, log, queues, index, checkpoint)
        cleaner = Cleaner(config, disk, log, queues, index, clock)
        return cls(config, disk, checkpoint, log, queues, index, dispatcher, flusher, cleaner)
