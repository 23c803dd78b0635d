"""Access control, checked by RocketMQ's own tool and client: the same requests by the same accounts, on the real broker
and on ours."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from mqadmin_commands import comparable, guarded_cases
from replaced_files import text_of

import triomq
from triomq_benchmarks.clusters.processes import DriverError
from triomq_benchmarks.clusters.servers import Kind

ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: reader-1, secretKey: reader-secret, admin: false, defaultTopicPerm: SUB, defaultGroupPerm: SUB}
"""
MESSAGE = SimpleNamespace(for_java=lambda: {"body": "aGVsbG8=", "flag": 0, "properties": {}})
REFUSED = "org.apache.rocketmq.acl.common.AclException"


def test_the_real_tool_is_allowed_and_refused(
    servers: Any, scratch: Path, java_client: Any, fresh_java_client: Any, subtests: pytest.Subtests
) -> None:
    """It prints on our broker what it prints on the real one."""
    theirs, ours = (
        use_the_real_tool(kind, servers, scratch, java_client, fresh_java_client) for kind in (Kind.JAVA, Kind.OURS)
    )
    for case in guarded_cases():
        with subtests.test(case=case.name):
            assert theirs[case.name].strip(), "the real servers print something"
            assert "visitor-secret" not in ours[case.name] or case.command == "getAclConfig"
            same = comparable(ours[case.name], "4.9.7") == comparable(theirs[case.name], "4.9.7")
            assert same is (case.on_4 == "="), (ours[case.name], theirs[case.name])


def use_the_real_tool(
    kind: Kind, servers: Any, scratch: Path, java_client: Any, fresh_java_client: Any
) -> dict[str, str]:
    """What each command about accounts prints for an operator."""
    home = scratch / f"acl-{kind}-broker"
    (home / "conf").mkdir(parents=True)
    file = home / "conf" / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    settings: dict[str, object] = {"aclEnable": True}
    if kind is Kind.OURS:
        settings |= {"rocketmqHome": home, "haSlaveAddresses": "127.0.0.1"}
    for name in ("operator", "reader-1"):
        tools = scratch / f"acl-{kind}-{name}" / "conf" / "tools.yml"
        tools.parent.mkdir(parents=True)
        tools.write_text(f"accessKey: {name}\nsecretKey: {name.removesuffix('-1')}-secret\n")
    with (
        servers.namesrv(kind, f"acl-{kind}-namesrv") as names,
        servers.broker(kind, home.name, names.address, settings) as broker,
        fresh_java_client(f"acl-{kind}-operator") as operator,
        fresh_java_client(f"acl-{kind}-reader-1") as reader,
    ):
        create = ("updateTopic", "-b", broker.address, "-t", "Guarded", "-r", "2", "-w", "2")
        assert "success" in operator.admin(names.address, *create)
        for client, why in ((reader, "Need admin permission"), (java_client, "No accessKey is configured")):
            printed = client.admin(names.address, *create)
            assert REFUSED in printed
            assert why in printed
        with pytest.raises(DriverError, match="still failed"):
            java_client.send(names.address, "Guarded", [MESSAGE])
        assert "brokerName" in operator.admin(names.address, "getBrokerConfig", "-b", broker.address)
        assert REFUSED in java_client.admin(names.address, "getBrokerConfig", "-b", broker.address)
        found = {}
        for case in guarded_cases():
            arguments = [part.format(broker=broker.address) for part in case.line.split()]
            found[case.name] = operator.admin(names.address, *arguments)
            if case.name == "updateAclConfig":
                assert "visitor-secret" in file.read_text()
        assert "visitor" not in file.read_text()
        return found


@pytest.mark.parametrize("kind", [Kind.JAVA, Kind.OURS])
async def test_our_client_is_allowed_and_refused(kind: Kind, servers: Any, scratch: Path) -> None:
    home = scratch / f"acl-sdk-{kind}-broker"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    tools = scratch / f"acl-sdk-{kind}-tools.yml"
    tools.write_text("accessKey: operator\nsecretKey: operator-secret\n")
    settings: dict[str, object] = {"aclEnable": True}
    if kind is Kind.OURS:
        settings |= {"rocketmqHome": home, "haSlaveAddresses": "127.0.0.1"}
    with (
        servers.namesrv(kind, f"acl-sdk-{kind}-namesrv") as names,
        servers.broker(kind, home.name, names.address, settings),
    ):
        await send_pull_and_push(names.address, triomq.Credentials.from_file(tools))
        await change_accounts(names.address, triomq.Credentials.from_file(tools), kind)
        for account, why in (
            (None, "No accessKey is configured"),
            (triomq.Credentials("operator", "wrong-secret"), "Check signature failed for accessKey=operator"),
            (triomq.Credentials("stranger", "operator-secret"), "No acl config for stranger"),
            (triomq.Credentials("reader-1", "reader-secret"), "No default permission for topic:Guarded"),
        ):
            async with triomq.open_client(names.address, credentials=account) as client:
                with pytest.raises(triomq.errors.AccessRefused, match=why) as caught:
                    await client.producer("sdk-refused", send_timeout_s=60).send(triomq.Message("Guarded", b"refused"))
                assert caught.value.advice in str(caught.value)


async def change_accounts(servers: str, account: triomq.Credentials, kind: Kind) -> None:
    async with triomq.open_client(servers, credentials=account, route_wait_s=120) as client:
        (broker,) = await client.admin.broker_sets()
        (before,) = await client.accounts.versions()
        added = triomq.admin.Account(
            access_key="visitor", secret_key="visitor-secret", topic_perms={"A": "PUB|SUB"}, group_perms={"G": "SUB"}
        )
        assert len(await client.accounts.put(added)) == 1
        await client.accounts.set_white_list(["10.9.*.*"])
        found = await client.accounts.list(broker)
        assert [each.access_key for each in found.accounts] == ["operator", "reader-1", "visitor"]
        visitor = found.accounts[2]
        assert (visitor.secret_key, visitor.admin, visitor.topic_perms) == ("visitor-secret", False, {"A": "PUB|SUB"})
        assert list(found.white_addresses) == ["10.9.*.*"]
        (after,) = await client.accounts.versions()
        assert (after.path, after.broker) == (before.path, broker)
        assert after.changes == before.changes + 2
        assert len(await client.accounts.delete("visitor")) == 1
        with pytest.raises(triomq.MQError, match="deleted failed"):
            await client.accounts.delete("visitor")
    if kind is Kind.JAVA:
        return  # every account may change accounts there (docs/explanation/compatibility.md)
    visiting = triomq.Credentials("reader-1", "reader-secret")
    async with triomq.open_client(servers, credentials=visiting, route_wait_s=120) as client:
        with pytest.raises(triomq.errors.AccessRefused, match="admin"):
            await client.accounts.put(added)


async def send_pull_and_push(servers: str, account: triomq.Credentials) -> None:
    got: set[bytes] = set()
    async with triomq.open_client(servers, credentials=account, route_wait_s=120) as client:
        await client.admin.create_topic("Guarded", queues=2)
        producer = client.producer("sdk-guarded", send_timeout_s=60)
        sent = await producer.send(triomq.Message("Guarded", b"one", keys="the-key"))
        await find(client, sent.message_id)
        await producer.send(triomq.Message("Guarded", b"z" * 10_000))
        await producer.send_batch([triomq.Message("Guarded", b"two"), triomq.Message("Guarded", b"three")])
        async with client.pull_consumer("sdk-pull") as consumer:
            queues = await consumer.fetch_queues("Guarded")
            with trio.fail_after(240):
                # Java's broker makes queue entries some time after it has acknowledged.
                while len(got) < 4:
                    for queue in queues:
                        got |= {message.body for message in (await consumer.pull(queue, 0)).messages}
            for queue in queues:
                await consumer.commit(queue, 1)
        assert got == {b"one", b"z" * 10_000, b"two", b"three"}
        got.clear()
        async with client.push_consumer("sdk-push", start_from="earliest") as pushed:
            await pushed.subscribe("Guarded")
            with trio.fail_after(240):
                async for delivery in pushed:
                    async with delivery:
                        got.add(delivery.message.body)
                    if len(got) == 4:
                        break


def copied(home: Path) -> tuple[bool, bool]:
    """Whether a slave has the topic, and the message."""
    topics, log = home / "store" / "config" / "topics.json", home / "store" / "commitlog" / f"{0:020}"
    return (
        '"Guarded"' in text_of(topics),
        log.exists() and b"for the slave" in log.read_bytes(),
    )


@pytest.mark.parametrize(("master", "slave"), [(Kind.JAVA, Kind.OURS), (Kind.OURS, Kind.OURS), (Kind.OURS, Kind.JAVA)])
def test_a_slave_signs_what_it_asks_its_master(
    master: Kind, slave: Kind, servers: Any, scratch: Path, fresh_java_client: Any
) -> None:
    """Without a white list. The broker of 4.9.7 signs nothing: it copies the log, but no topics."""
    name = f"acl-set-{master}-{slave}"
    home, slave_home = scratch / f"{name}-master", scratch / f"{name}-slave"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(f"{ACCOUNTS}- {{accessKey: the-set, secretKey: set-secret}}\n")
    (scratch / f"{name}.yml").write_text("accessKey: the-set\nsecretKey: set-secret\n")
    tools = scratch / f"{name}-operator" / "conf" / "tools.yml"
    tools.parent.mkdir(parents=True)
    tools.write_text("accessKey: operator\nsecretKey: operator-secret\n")
    settings: dict[str, object] = {"aclEnable": True, "haSendHeartbeatInterval": 500}
    if master is Kind.OURS:
        settings |= {"rocketmqHome": home, "haSlaveAddresses": "127.0.0.1"}
    follows: dict[str, object] = {"brokerRole": "SLAVE", "brokerId": 1, "haSendHeartbeatInterval": 500}
    if slave is Kind.OURS:
        follows["aclCredentialsFile"] = scratch / f"{name}.yml"
    with (
        servers.namesrv(Kind.OURS, f"{name}-namesrv") as names,
        servers.broker(master, home.name, names.address, settings) as leading,
        servers.broker(slave, slave_home.name, names.address, follows),
        fresh_java_client(f"{name}-operator") as operator,
    ):
        created = operator.admin(names.address, "updateTopic", "-b", leading.address, "-t", "Guarded")
        assert "success" in created
        sent = operator.admin(names.address, "sendMessage", "-t", "Guarded", "-p", "for the slave")
        assert "SEND_OK" in sent
        wanted = (slave is Kind.OURS, True)
        if slave is Kind.JAVA:
            asked = "request code 21 of "
            text = operator.eventually(leading.log.read_text, lambda text: asked in text)
            assert "No accessKey is configured" in text[text.index(asked) :].partition("\n")[0]
        found = operator.eventually(lambda: copied(slave_home), lambda found: found == wanted)
        assert found == wanted


AUTH = "org.apache.rocketmq.auth."
USERS_OF_5 = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{AUTH}authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{AUTH}authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": "true",
    "authorizationProvider": f"{AUTH}authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{AUTH}authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": '{"username":"operator","password":"operator-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"operator","secretKey":"operator-secret"}',
}


async def test_our_client_signs_as_a_user_of_5_5_0(servers_5: Any, scratch: Path, fresh_java_client_5: Any) -> None:
    """The name of a user is the access key, the password the secret key."""
    tools = scratch / "acl-5-operator" / "conf" / "tools.yml"
    tools.parent.mkdir(parents=True)
    tools.write_text("accessKey: operator\nsecretKey: operator-secret\n")
    with (
        servers_5.namesrv(Kind.JAVA, "acl-5-namesrv") as names,
        servers_5.broker(Kind.JAVA, "acl-5-broker", names.address, USERS_OF_5) as broker,
        fresh_java_client_5("acl-5-operator") as tool,
    ):
        user = triomq.Credentials("operator", "operator-secret")
        async with triomq.open_client(names.address, credentials=user) as client:
            with trio.fail_after(240):
                await client.admin.create_topic("Guarded")
                async with client.producer("P-guarded") as producer:
                    sent = await producer.send(triomq.Message("Guarded", b"signed", keys="the-key"))
                await find(client, sent.message_id)
                async with client.push_consumer("G-guarded", start_from="earliest") as consumer:
                    await consumer.subscribe("Guarded")
                    async for delivery in consumer:
                        async with delivery:
                            assert delivery.message.body == b"signed"
                        break
                with pytest.raises(triomq.errors.UnsupportedRequest, match="users and rules"):
                    await client.accounts.list("broker-a")
        for command in (
            ("createUser", "-u", "sender", "-p", "sender-secret", "-t", "Normal"),
            ("createAcl", "-s", "User:sender", "-r", "Topic:Guarded", "-a", "Pub", "-d", "Allow"),
        ):
            printed = await trio.to_thread.run_sync(
                tool.admin, names.address, command[0], "-b", broker.address, *command[1:]
            )
            assert "success" in printed
        await send_alone(names.address, triomq.Credentials("sender", "sender-secret"))
        for wrong, advice in (
            (triomq.Credentials("operator", "another-secret"), "not the user's password"),
            (triomq.Credentials("nobody", "nobody-secret"), "does not know this user"),
            (None, "was not signed"),
        ):
            async with triomq.open_client(names.address, credentials=wrong) as client:
                with trio.fail_after(240), pytest.raises(triomq.errors.PermissionDenied, match=advice):
                    async with client.producer("P-guarded") as producer:
                        await producer.send(triomq.Message("Guarded", b"not signed"))
                with trio.fail_after(60), pytest.raises(triomq.errors.PermissionDenied):
                    await client.admin.create_topic("Unguarded")
                assert [each.kind for each in await client.doctor.findings()] == ["access_refused"]


async def find(client: triomq.Client, message_id: str) -> None:
    """By key and by id. Brokers differ in what of such a query is signed: 4.9 leaves a field out that 5 wants."""
    with trio.fail_after(240):
        while not (found := await client.messages.by_key("Guarded", "the-key")):  # noqa: ASYNC110 - another process's index
            await trio.sleep(0.2)
    for each in (found, await client.messages.by_unique_key("Guarded", message_id)):
        assert [message.message_id for message in each] == [message_id]


async def send_alone(servers: str, account: triomq.Credentials) -> None:
    """As a user who may send to the topic, and nothing else."""
    async with triomq.open_client(servers, credentials=account) as client:
        with trio.fail_after(240):
            async with client.producer("P-guarded") as producer:
                await producer.send(triomq.Message("Guarded", b"signed"))
            for refused in (
                lambda: client.admin.create_topic("Unguarded"),
                lambda: client.groups.traffic("Guarded"),
                lambda: client.servers.consume_stats("broker-a"),
                lambda: client.messages.entries(triomq.MessageQueue("Guarded", "broker-a", 0), 0),
                lambda: client.groups.owners("G-guarded"),
            ):
                with pytest.raises(triomq.errors.PermissionDenied, match="mqadmin createAcl"):
                    await refused()
