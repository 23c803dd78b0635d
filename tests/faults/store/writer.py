"""A process that appends and reports what is safe, until it is killed. Run as a script by `test_killed_writer`.

Arguments: store directory, seed, first record number. Per line on standard output: `queue offset number` of a message
that is on disk (sync flush has reported it).
"""

from __future__ import annotations

import random
import struct
import sys

import trio
import trio.lowlevel

from triomq_protocol.record.batch import encode_batch_element
from triomq_server.config import FlushDiskType, StoreConfig
from triomq_server.store import AppendStatus, NewBatch, NewRecord, open_store

QUEUES = 4
LOG_FILE_BYTES = 1 << 18
QUEUE_FILE_BYTES = 4000


def config(root: str) -> StoreConfig:
    """Small files, so that many file boundaries are crossed."""
    return StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=LOG_FILE_BYTES,
        mapped_file_size_consume_queue=QUEUE_FILE_BYTES,
        max_hash_slot_num=500,
        max_index_num=3000,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
    )


def body(number: int) -> bytes:
    """A body that contains its number and can be checked as a whole."""
    return struct.pack(">q", number) * (1 + number * 37 % 150)


def properties(number: int) -> bytes:
    """Properties that contain the number: no checksum covers them."""
    return f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01k{number}\x02a\x01".encode() + b"%d-" % number * (number % 40) + b"."


async def main(root: str, seed: int, number: int) -> None:
    """Append until killed."""
    chance = random.Random(seed)
    safe: list[str] = []
    async with open_store(config(root)) as store:
        while True:
            for _ in range(chance.randrange(1, 30)):
                queue_id = chance.randrange(QUEUES)
                numbers = [number]
                if chance.random() < 0.1:
                    numbers = list(range(number, number + chance.randrange(1, 6)))
                    elements = b"".join(encode_batch_element(body(n), properties(n)) for n in numbers)
                    result = store.append_batch(NewBatch("T", queue_id, elements, b""))
                else:
                    record = NewRecord(
                        "T", queue_id, body(number), properties(number), uniq_key=f"{number:032X}", keys=f"k{number}"
                    )
                    result = store.append(record)
                number += len(numbers)
                assert result.status is AppendStatus.PUT_OK

                def report(
                    done: bool, queue_id: int = queue_id, first: int = result.queue_offset, numbers: list[int] = numbers
                ) -> None:
                    assert done
                    safe.extend(f"{queue_id} {first + i} {n}" for i, n in enumerate(numbers))

                store.flusher.when_flushed(result.end_offset, trio.current_time() + 60, report)
            store.notify_arrivals()
            await trio.lowlevel.checkpoint()
            if safe:
                sys.stdout.write("\n".join(safe) + "\n")
                sys.stdout.flush()
                safe.clear()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
