"""A Java client in a namespace and ours meet: the same topics and groups on the brokers, the same names for users."""

from __future__ import annotations

from functools import partial
from typing import Any

import trio

import triomq

NAMESPACE = "MQ_INST_1_a"
MESSAGES = 24


async def test_java_and_python_share_a_group_in_a_namespace(
    either: Any, java_client: Any, java_push: Any, topic: str, make_samples: Any
) -> None:
    servers, group = either.namesrv.address, f"G-{topic}"
    samples = make_samples(8)
    seen: list[tuple[str, bytes, int]] = []
    async with triomq.open_client(servers, namespace=NAMESPACE) as client:
        await client.admin.create_topic(topic, queues=4)
        assert f"{NAMESPACE}%{topic}" in await client.admin.topics()
        with java_push(servers, group, topic, namespace=NAMESPACE, fail_first="1", fail_body="retry") as java:
            async with client.push_consumer(group, start_from="earliest") as consumer, trio.open_nursery() as nursery:

                async def handle(message: triomq.ReceivedMessage) -> None:
                    seen.append((message.topic, message.body, message.reconsume_times))
                    if message.body.startswith(b"retry") and not message.reconsume_times:
                        raise triomq.Later(1)

                await consumer.subscribe(topic)
                nursery.start_soon(consumer.run, handle)
                with trio.fail_after(120):
                    while len(consumer.assignment) != 2 or len(java.queues()) != 2:  # noqa: ASYNC110
                        await trio.sleep(0.1)
                producer = client.producer(f"P-{topic}", send_timeout_s=60)
                wanted = {b"retry-%d" % number for number in range(MESSAGES)}
                results = [await producer.send(triomq.Message(topic, body)) for body in sorted(wanted)]
                assert {result.queue.topic for result in results} == {topic}
                sent = await trio.to_thread.run_sync(
                    partial(java_client.send, servers, topic, samples, namespace=NAMESPACE)
                )
                assert len(sent) == len(samples)
                wanted |= {sample.body for sample in samples}

                def consumed() -> set[bytes]:
                    ours = {body for _, body, times in seen if times or not body.startswith(b"retry")}
                    return ours | {body.encode() for body in java.bodies() if body.startswith("retry")}

                def is_done() -> bool:
                    retried = {body for body in wanted if body.startswith(b"retry")}
                    return retried <= consumed() and len(java.bodies()) + len(
                        [each for each in seen if each[2] or not each[1].startswith(b"retry")]
                    ) >= len(wanted)

                with trio.fail_after(120):
                    while not is_done():  # noqa: ASYNC110 - another process is waited for
                        await trio.sleep(0.1)
                consumer.drain()
            assert {name for name, _, _ in seen} == {topic}
            # What it says of its queues comes from inside, where it keeps them as brokers know them.
            assert all(name.startswith(f"{NAMESPACE}%{topic}@") for name in java.queues())
        stored = await trio.to_thread.run_sync(java_client.pull_all, servers, f"{NAMESPACE}%{topic}", len(wanted))
        assert {one.body for one in stored} == wanted
        assert {one.properties["INSTANCE_ID"] for one in stored} == {NAMESPACE}
        progress = await client.groups.progress(group, topic)
        assert {queue.topic for queue in progress} == {topic}
