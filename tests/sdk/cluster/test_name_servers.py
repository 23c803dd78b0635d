"""The choice of a name server, and the sources of its address (docs/protocol/client.md §2)."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import memory_stream_pair

import triomq
from triomq import errors
from triomq._cluster.name_servers import NameServerChoice, parse_addresses, provider_for
from triomq_protocol.codes import RequestCode

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest.fixture
def name_servers(cluster):
    """Three name servers that know the same."""
    first = cluster.name_server
    others = [type(first)(cluster.network, f"ns{number}:9876") for number in (2, 3)]
    for other in others:
        other.routes = first.routes
        other.brokers = first.brokers
    return [first, *others]


def open_client(cluster, name_servers, **options):
    addresses = ";".join(each.address for each in name_servers)
    return triomq.open_client(addresses, **cluster.options(**options))


def asked(name_servers):
    return [len(each.seen) for each in name_servers]


async def test_the_choice_sticks(autojump_clock, cluster, name_servers):
    async with open_client(cluster, name_servers) as client:
        for _ in range(6):
            await client.admin.topics()
    assert sorted(asked(name_servers)) == [0, 0, 6]


async def test_a_timeout_moves_the_next_request_on_but_repeats_nothing(autojump_clock, cluster, name_servers):
    async with open_client(cluster, name_servers) as client:
        await client.admin.topics()
        chosen = max(name_servers, key=lambda each: len(each.seen))
        chosen.script(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None)
        with pytest.raises(errors.NoNameServer, match="no answer in time") as caught:
            await client.admin.topics()
        assert "duplicate" not in str(caught.value)
        assert sum(asked(name_servers)) == 2
        await client.admin.topics()
        await client.admin.topics()
    assert sorted(asked(name_servers)) == [0, 2, 2]


async def test_a_dead_server_is_replaced_by_the_next(autojump_clock, cluster, name_servers):
    async with open_client(cluster, name_servers) as client:
        await client.admin.topics()
        chosen = max(name_servers, key=lambda each: len(each.seen))
        await chosen.stop()
        await trio.testing.wait_all_tasks_blocked()
        await client.admin.topics()
        await client.admin.topics()
    assert sorted(asked(name_servers)) == [0, 1, 2]


async def test_all_dead(autojump_clock, cluster, name_servers):
    for each in name_servers:
        each.up = False
    async with open_client(cluster, name_servers, route_wait_s=0) as client:
        with pytest.raises(errors.NoNameServer) as caught:
            await client.admin.topics()
        for each in name_servers:
            assert each.address in str(caught.value)
        assert len(cluster.network.dials) == 3
        name_servers[1].up = True
        assert await client.admin.topics() == ["T"]


async def test_waiting_callers_share_the_attempt(autojump_clock, cluster, name_servers):
    async with open_client(cluster, name_servers) as client, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(client.admin.topics)
    assert sorted(asked(name_servers)) == [0, 0, 5]
    assert len(cluster.network.dials) == 1


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ([], ["a:1"], True),
        (["a:1"], [], False),
        (["a:1", "b:1"], ["b:1", "a:1"], False),
        (["a:1", "b:1"], ["a:1"], True),
        (["a:1", "b:1"], ["a:1", "c:1"], True),
    ],
)
def test_when_a_list_counts_as_changed(old, new, changed):
    choice = NameServerChoice(random.Random(1))
    choice.update(old)
    assert choice.update(new) is changed
    assert sorted(choice.addresses) == sorted(new if changed else old)


def test_a_chosen_broker_that_is_gone_is_dropped():
    choice = NameServerChoice(random.Random(1))
    choice.update(["a:1", "b:1"])
    choice.choose("a:1")
    choice.update(["a:1", "c:1"])
    assert choice.chosen == "a:1"
    choice.update(["b:1", "c:1"])
    assert choice.chosen is None


def test_rotation():
    choice = NameServerChoice(random.Random(1))
    choice.update(["a:1", "b:1", "c:1"])
    first = choice.candidates()
    choice.choose(first[0])
    assert choice.candidates() == [*first[1:], first[0]]


@pytest.mark.parametrize("timeout_s", [1.2, 3.0])
async def test_a_server_whose_machine_is_off_costs_no_send(autojump_clock, cluster, timeout_s):
    cluster.network.hanging.add("off:9876")
    firsts = set()
    for seed in range(8):
        cluster.network.dials.clear()
        addresses = ["off:9876", cluster.name_server.address]
        async with triomq.open_client(addresses, **cluster.options(chance=random.Random(seed))) as client:
            producer = client.producer("G", send_timeout_s=timeout_s)
            await producer.send(triomq.Message("T", b"x"))
            firsts.add(cluster.network.dials[0])
            # The open link is kept.
            cluster.network.dials.clear()
            await client.admin.topics()
            assert not cluster.network.dials
    assert firsts == set(addresses)


async def test_callers_with_little_time_dial_one_after_the_other(autojump_clock, cluster):
    cluster.network.hanging |= {"off:9876", "off:9877"}
    addresses = ["off:9876", "off:9877", cluster.name_server.address]
    for seed in range(6):
        async with triomq.open_client(addresses, **cluster.options(chance=random.Random(seed))) as client:
            found = []
            for _ in addresses:
                with trio.move_on_after(0.3):
                    found.append(await client.admin.topics())
            assert found


@pytest.mark.parametrize("at_first", [True, False])
@pytest.mark.parametrize("timeout_s", [1.2, 3.0])
async def test_a_server_that_hangs_is_left_by_callers_with_less_time(autojump_clock, cluster, timeout_s, at_first):
    hangs = type(cluster.name_server)(cluster.network, "hangs:9876")
    hangs.routes = cluster.name_server.routes
    cluster.name_server.add_route("T2", cluster.broker)
    left = 0
    for seed in range(8):
        hangs.seen.clear()
        hangs.scripts[ROUTE].clear()
        addresses = [hangs.address, cluster.name_server.address]
        async with triomq.open_client(addresses, **cluster.options(chance=random.Random(seed))) as client:
            producer = client.producer("G", send_timeout_s=timeout_s)
            if not at_first:
                await producer.send(triomq.Message("T", b"x"))
                await trio.sleep(5)
            hangs.script(ROUTE, *[None] * 100)
            results = []
            for _ in range(2):
                try:
                    results.append(await producer.send(triomq.Message("T2", b"x")))
                except errors.NotReady:
                    results.append(None)
            assert results[1] is not None
            left += bool(hangs.seen)
    assert 0 < left < 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1;b:2", ["a:1", "b:2"]),
        (" a:1 ; ; b:2;", ["a:1", "b:2"]),
        ("http://x/y/a:1", ["a:1"]),
        ("[::1]:9876", ["[::1]:9876"]),
        (["a:1", "a:1"], ["a:1"]),
        ("", []),
    ],
)
def test_parse_addresses(text, expected):
    assert parse_addresses(text) == expected


@pytest.mark.parametrize(
    "text", ["a", "a:", "a:x", ":1", "a:70000", "a:0", "a:²", "a:" + "1" * 5000, "tcp://a:1", "https://a:1"]
)
def test_addresses_that_are_none(text):
    with pytest.raises(errors.InvalidCall, match="host:port"):
        parse_addresses(text)


def test_the_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", "e:1")
    assert isinstance(provider_for(None), triomq.plugins.StaticNameServers)
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(errors.InvalidCall, match="NAMESRV_ADDR"):
        provider_for(None)


@pytest.mark.parametrize("colour", ["plain", "async"])
async def test_a_function_as_provider_is_asked_again(autojump_clock, cluster, name_servers, colour):
    known = [name_servers[0].address]

    def plain():
        return list(known)

    async def later():
        await trio.sleep(1)
        return list(known)

    async with triomq.open_client(plain if colour == "plain" else later, **cluster.options()) as client:
        assert client.name_servers == known
        known[:] = [name_servers[1].address]
        await trio.sleep(125)
        assert client.name_servers == known
        await client.admin.topics()
    assert asked(name_servers)[:2] == [0, 1]


async def test_a_provider_that_fails_changes_nothing(autojump_clock, cluster):
    answers = [[cluster.name_server.address], OSError("no"), ["broken"]]

    def provide():
        answer = answers.pop(0) if answers else ["other:1"]
        if isinstance(answer, OSError):
            raise answer
        return answer

    async with triomq.open_client(provide, **cluster.options()) as client:
        await trio.sleep(250)
        assert not [each for each in answers if each]
        assert client.name_servers == [cluster.name_server.address]


@pytest.mark.parametrize("answer", [ValueError("cut short"), ["ns:9876", None], None, 7, ["broken"]])
@pytest.mark.parametrize("at_first", [True, False])
async def test_a_client_continues_whatever_a_users_provider_does(autojump_clock, cluster, caplog, at_first, answer):
    class Provider:
        poll_every_s = 60.0

        def __init__(self):
            self.answers = [answer, [cluster.name_server.address]]
            if not at_first:
                self.answers.reverse()

        async def addresses(self):
            await trio.lowlevel.checkpoint()
            found = self.answers.pop(0) if self.answers else []
            if isinstance(found, Exception):
                raise found
            return found

    async with triomq.open_client(Provider(), **cluster.options()) as client:
        await trio.sleep(150)
        assert client.name_servers == [cluster.name_server.address]
        await client.admin.topics()
    assert [record.getMessage() for record in caplog.records if "are not available" in record.getMessage()]


async def serve_http(stream, answer, seen):
    request = b""
    while b"\r\n\r\n" not in request:
        request += await stream.receive_some()
    seen.append(request)
    await stream.send_all(answer)
    await stream.send_eof()


@pytest.mark.parametrize(
    ("options", "authority", "path"),
    [
        ({}, "jmenv.tbsite.net:8080", "/rocketmq/nsaddr"),
        ({"domain": "x:80", "subgroup": "sub"}, "x:80", "/rocketmq/sub"),
        ({"domain": "x", "unit_name": "u"}, "x:8080", "/rocketmq/nsaddr-u?nofix=1"),
    ],
)
async def test_http(autojump_clock, nursery, options, authority, path):
    seen, dialled = [], []

    async def open_stream(address):
        dialled.append(address)
        ours, theirs = memory_stream_pair()
        nursery.start_soon(serve_http, theirs, b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n a:1;b:2 \nignored", seen)
        return ours

    provider = triomq.plugins.HttpNameServers(**options, open_stream=open_stream)
    assert await provider.addresses() == ["a:1", "b:2"]
    assert dialled == [authority]
    assert seen[0].startswith(f"GET {path} HTTP/1.0\r\nHost: {authority}\r\n".encode())


@pytest.mark.parametrize("answer", [b"HTTP/1.1 404 Not Found\r\n\r\na:1", b"", None])
async def test_http_without_addresses_in_its_answer(autojump_clock, nursery, answer):
    async def open_stream(address):
        ours, theirs = memory_stream_pair()
        if answer is not None:
            nursery.start_soon(serve_http, theirs, answer, [])
        return ours

    with pytest.raises(OSError, match="address server"):
        await triomq.plugins.HttpNameServers(open_stream=open_stream).addresses()


@pytest.mark.parametrize(
    "options",
    [
        {"domain": "http://mq.example/nameservers"},
        {"domain": "mq.example/nameservers"},
        {"domain": "mq.example:8080/nameservers"},
        {"domain": "mq.example:http"},
        {"domain": ""},
        {"subgroup": "a b"},
        {"unit_name": "\n"},
    ],
)
def test_what_names_no_address_server_is_refused(options):
    with pytest.raises(errors.InvalidCall, match=r"domain is a host or host:port.*for another URL give a function"):
        triomq.plugins.HttpNameServers(**options)


async def test_why_no_address_is_known_is_said(autojump_clock, caplog):
    def addresses():
        raise problem

    problem = ZeroDivisionError("the inventory is empty")
    async with triomq.open_client(addresses) as client:
        with pytest.raises(errors.NoNameServer, match="no address is known: the inventory is empty") as caught:
            await client.admin.topics()
        assert "ZeroDivisionError" in caplog.text
        assert "inventory" in str(caught.value)
        # Calls that wait for an address ask for it many times, and log the same failure once.
        assert caplog.text.count("are not available") == 1
        problem = OSError("the inventory is closed")
        with pytest.raises(errors.NoNameServer, match="the inventory is closed"):
            await client.admin.topics()
        assert caplog.text.count("are not available") == 2


async def test_http_of_a_connection_that_is_reset(autojump_clock):
    async def open_stream(_address):
        ours, theirs = memory_stream_pair()
        theirs.send_stream.close()
        theirs.receive_stream.close()
        return ours

    with pytest.raises(OSError, match="address server"):
        await triomq.plugins.HttpNameServers(open_stream=open_stream).addresses()


async def test_dns(monkeypatch):
    class Resolver(trio.abc.HostnameResolver):
        async def getaddrinfo(self, host, port, family=0, *rest):
            return [(family, 0, 0, "", (ip, 0)) for ip in ("10.0.0.1", "10.0.0.2", "::1")]

        async def getnameinfo(self, sockaddr, flags):
            raise NotImplementedError

    trio.socket.set_custom_hostname_resolver(Resolver())
    found = await triomq.plugins.DnsNameServers("mq.example", 1234).addresses()
    assert found == ["10.0.0.1:1234", "10.0.0.2:1234", "[::1]:1234"]


@pytest.mark.parametrize("answer", [None, 5, b"ns:9876", [5], ["ns:9876", None]], ids=repr)
@pytest.mark.parametrize("wrap", [lambda answer: answer, lambda answer: provided(answer)], ids=["plain", "async"])
async def test_answers_of_a_function_that_are_no_addresses(autojump_clock, cluster, answer, wrap):
    """The error says what the function has returned, not where this fails within the client."""
    answers = iter([answer])

    def addresses():
        return wrap(next(answers, [cluster.name_server.address]))

    async with triomq.open_client(addresses, **cluster.options(route_wait_s=0)) as client:
        assert client.name_servers == []
        kind = type(answer[-1] if isinstance(answer, list) else answer).__name__
        answers = iter([answer])
        with pytest.raises(errors.NoNameServer, match=f"{kind}, not text|not {kind}"):
            await client.producer("G").send(triomq.Message("T", b"x"))
        await client.producer("G2").send(triomq.Message("T", b"x"))


async def provided(answer):
    await trio.lowlevel.checkpoint()
    return answer


@pytest.mark.parametrize("period", [None, "120", 0, -1, float("nan")], ids=repr)
async def test_periods_of_providers_that_are_none(cluster, period):
    """At the start: the task that asks again would end the client."""

    class Provider:
        poll_every_s = period

        async def addresses(self):
            return [cluster.name_server.address]

    with pytest.raises(errors.InvalidCall, match="poll_every_s of the name server provider Provider"):
        async with triomq.open_client(Provider(), **cluster.options()):
            pass


async def test_a_provider_that_hangs_is_given_up(autojump_clock, cluster, caplog):
    """The client would never open; and later never look again, without a word."""
    hangs = [True, False, True, False]

    async def addresses():
        if hangs and hangs.pop(0):
            await trio.sleep_forever()
        return [cluster.name_server.address if len(hangs) > 1 else "ns2:9876"]

    started = trio.current_time()
    async with triomq.open_client(addresses, **cluster.options()) as client:
        assert trio.current_time() - started == pytest.approx(30)
        assert client.name_servers == []
        await client.producer("G").send(triomq.Message("T", b"x"))
        assert client.name_servers == [cluster.name_server.address]
        await trio.sleep(120 + 30 + 120 + 10)
        assert client.name_servers == ["ns2:9876"]
    assert caplog.text.count("CallableNameServers did not answer within 30 s") == 2
