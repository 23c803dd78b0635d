"""The pages over a cluster in this process, and over none: what they show, what they refuse, what they never let
through."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trio
import trio.testing

import triomq
from triomq_dashboard import Dashboard, DashboardSettings
from triomq_dashboard import tail as tailing
from triomq_dashboard.access import TRIES_MAX
from triomq_dashboard.app import FORM_BYTES_MAX, REQUESTS_MAX
from triomq_dashboard.looking import FOUND_MAX, PAGE_ROWS, group, page_of, search
from triomq_dashboard.pages import Kept
from triomq_protocol.requests import BrokerData, ClusterInfo, TopicOffset
from triomq_server.cluster import Cluster, open_cluster

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>"
ORIGIN = {"origin": "http://localhost"}


class Tags(HTMLParser):
    """What a browser would see of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: list[str | None] = []
        self.unsafe: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "script":
            self.scripts.append(given.get("src"))
        self.unsafe += [(tag, name) for name in given if name.startswith("on") or name == "style"]
        for name in ("href", "src", "action"):
            address = given.get(name) or "/"
            if not address.startswith("/") or address.startswith("//"):
                self.unsafe.append((tag, address))


@asynccontextmanager
async def browser(client: triomq.Client, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=Dashboard(client, DashboardSettings(**settings)))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as web:
        yield web


def checked(answer: httpx.Response, status: int = 200) -> str:
    """The text of a page that has its headers, and no script but its own."""
    assert answer.status_code == status, answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    tags = Tags(answer.text)
    assert set(tags.scripts) <= {"/static/page.js"}
    assert tags.unsafe == []
    return answer.text


def token_in(page: str) -> str:
    found = re.search(r'name="token" value="([0-9a-f]{64})"', page)
    assert found
    return found[1]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with open_cluster(slaves=1) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[triomq.Client]:
    async with triomq.open_client(cluster.name_servers, route_wait_s=0) as client:
        yield client


async def test_every_page_of_a_cluster(cluster: Cluster, client: triomq.Client) -> None:
    await client.admin.create_topic("orders", queues=2)
    producer = client.producer("shop")
    sent = await producer.send(
        triomq.Message("orders", EVIL.encode() + b"\x00", tags="t<b>", keys="k1", properties={"p": EVIL})
    )
    async with client.push_consumer("readers", start_from="earliest") as consumer, browser(client) as web:
        await consumer.subscribe("orders")
        async with await anext(consumer) as delivery:
            assert delivery.message.keys == ["k1"]
        page = checked(await web.get("/"))
        assert "slave 1" in page
        assert "broker-a" in page
        assert 'href="/topic?name=orders"' in checked(await web.get("/topics"))
        assert "RMQ_SYS" not in checked(await web.get("/topics"))
        assert "RMQ_SYS" in checked(await web.get("/topics?system=1"))
        assert checked(await web.get("/topic?name=orders")).count(">broker-a</td>") == 2
        assert 'href="/group?name=readers"' in checked(await web.get("/groups"))
        group = checked(await web.get("/group?name=readers"))
        assert group.count(f'class="owner">{client.client_id}<') >= 2, "the member has both queues"
        for query in (
            "",
            "&key=k1",
            f"&id={sent.message_id}",
            f"&id={sent.offset_message_id}",
            "&since=2020-01-01T00:00",
        ):
            found = checked(await web.get(f"/messages?topic=orders{query}"))
            address = re.search(r'href="(/message\?[^"]+)"', found)
            assert address, query
        message = checked(await web.get(address[1].replace("&amp;", "&")))
        assert "&lt;/pre&gt;&lt;script&gt;alert(1)" in message
        assert "\\x00" in message
        assert "Send a copy" not in message, "it only shows"
        assert "No message was found" in checked(await web.get("/messages?topic=orders&key=none"))
        assert "Name the topic" in checked(await web.get("/messages?id=nonsense"), 400)
        assert "name the topic if a producer gave" in checked(await web.get(f"/messages?id={sent.message_id}"))
        assert "No message was found" in checked(await web.get(f"/messages?topic=orders&id={'0' * 32}"))
        assert '<a href="/topics" aria-current="page">' in checked(await web.get("/tail?name=orders"))
        checked(await web.get("/dead-letters"))
        checked(await web.get("/dead-letters/group?name=readers"))
        checked(await web.get("/health"))
        assert (await web.get("/alive")).text == "ok\n"
        assert (await web.get("/static/page.js")).status_code == 200
        checked(await web.get("/no-such-page"), 404)
        checked(await web.get("/topic"), 404)
        assert "no route to topic unknown" in checked(await web.get("/topic?name=unknown"), 404)
        checked(await web.get("/message?topic=orders&broker=broker-a&queue=0&offset=99"), 404)
        for address in ("/group?name=reader", "/dead-letters/group?name=reader"):
            assert "No broker knows the consumer group reader." in checked(await web.get(address), 404)
        assert "triomq topics" not in checked(await web.get("/topic?name=unknown"), 404), "it is advice for programs"
        checked(await web.get("/message?topic=orders&broker=broker-a&queue=-1&offset=x"), 400)
        assert "only shows" in checked(await web.post("/message/resend", headers=ORIGIN, data={}), 403)


async def test_changes_need_a_form_of_the_page(cluster: Cluster, client: triomq.Client) -> None:
    await client.admin.create_topic("%DLQ%readers".replace("%", "_"), queues=1)
    await client.admin.create_topic("orders", queues=1)
    await client.groups.create("readers")
    producer = client.producer("shop")
    await producer.send(triomq.Message("orders", b"one"))
    await producer.send(triomq.Message("orders", b"two"))
    async with browser(client, allow_changes=True) as web:
        place = {"topic": "orders", "broker": "broker-a", "queue": "0", "offset": "0"}
        token = token_in(checked(await web.get("/message", params=place)))
        form = {**place, "group": "readers", "token": token}
        for headers, data in (
            ({}, form),
            ({"origin": "http://evil.example"}, form),
            ({**ORIGIN, "sec-fetch-site": "cross-site"}, form),
            (ORIGIN, {**form, "token": "0" * 64}),
            (ORIGIN, place),
        ):
            assert "not of this page" in checked(await web.post("/message/resend", headers=headers, data=data), 403)
        answer = await web.post("/message/resend", headers=ORIGIN, data=form)
        assert answer.status_code == 303
        assert "A copy was sent to the group" in checked(await web.get(answer.headers["location"]))
        # The copy is in the group's retry topic.
        assert 'href="/message?' in checked(await web.get("/messages", params={"topic": "%RETRY%readers"}))
        redrive = {"group": "readers", "to": "origin", "limit": "5", "token": token}
        answer = await web.post("/dead-letters/redrive", headers=ORIGIN, data=redrive)
        assert "0 messages were sent again" in checked(await web.get(answer.headers["location"]))
        for wrong in ({"limit": "0"}, {"limit": "100000"}, {"limit": "x"}, {"to": "nowhere"}):
            checked(await web.post("/dead-letters/redrive", headers=ORIGIN, data={**redrive, **wrong}), 400)


# The body that is not read to its end is httpx's own to close.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_form_without_end_is_refused(autojump_clock: object) -> None:
    async with browser(nobody(), allow_changes=True) as web:
        answer = await web.post("/message/resend", headers=ORIGIN, content=b"x" * (FORM_BYTES_MAX + 1))
        assert "too large" in checked(answer, 413)


async def test_the_login(autojump_clock: object) -> None:
    async with browser(nobody(), password="long enough") as web:
        assert (await web.get("/topics")).headers["location"] == "/login"
        assert (await web.post("/message/resend", headers=ORIGIN)).headers["location"] == "/login"
        assert "Password" in checked(await web.get("/login"))
        checked(await web.post("/login", data={"password": "long enough"}), 403)
        checked(await web.post("/login", headers=ORIGIN, data={"password": "wrong"}), 401)
        answer = await web.post("/login", headers=ORIGIN, data={"password": "long enough"})
        assert answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        checked(await web.get("/"), 503)  # there is no cluster, but it may be asked
        await web.post("/logout", headers=ORIGIN)
        assert (await web.get("/")).headers["location"] == "/login"
        for _ in range(20):
            answer = await web.post("/login", headers=ORIGIN, data={"password": "wrong"})
        assert "Too many" in checked(answer, 429)
        await trio.sleep(61)
        assert (await web.post("/login", headers=ORIGIN, data={"password": "long enough"})).status_code == 303


async def test_passwords_in_many_forms_at_once_are_not_all_compared(autojump_clock: object) -> None:
    statuses: list[int] = []

    async def slow_form(number: int) -> AsyncIterator[bytes]:
        await trio.sleep(1)  # by now all forms have begun
        yield b"password=wrong%d" % number

    async with browser(nobody(), password="long enough") as web:

        async def guess(number: int) -> None:
            answer = await web.post("/login", headers=ORIGIN, content=slow_form(number))
            statuses.append(answer.status_code)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(guess, number)
    assert statuses.count(401) == TRIES_MAX
    assert statuses.count(429) == 50 - TRIES_MAX


class Nobody:
    """A client whose name servers are all dead."""

    name_servers = ("127.0.0.1:1",)

    def __getattr__(self, _name: str) -> Any:
        return self

    async def __call__(self, *_arguments: object, **_more: object) -> Any:
        await trio.lowlevel.checkpoint()
        raise triomq.errors.NoNameServer("no name server can be reached", remark=EVIL)


def nobody() -> Any:
    return Nobody()


@pytest.mark.parametrize(
    "address", ["/", "/topics", "/topic?name=a", "/groups", "/group?name=a", "/dead-letters", "/health"]
)
async def test_a_dead_cluster_is_reported_in_a_sentence(autojump_clock: object, address: str) -> None:
    async with browser(nobody()) as web:
        assert "no name server can be reached" in checked(await web.get(address), 503)
        assert "no name server" in checked(await web.get("/messages?topic=a"))


@pytest.mark.parametrize(
    "address", ["/topics", "/topics?system=1", "/groups", "/dead-letters", "/dead-letters/group?name=G"]
)
async def test_a_cluster_without_brokers_does_not_look_empty(
    cluster: Cluster, client: triomq.Client, address: str
) -> None:
    for name in ("broker-a-s", "broker-a"):
        await cluster[name].stop()
    async with browser(client) as web:
        assert "is registered" in checked(await web.get(address), 503)


async def test_a_queue_belongs_to_the_member_that_has_not_dropped_it() -> None:
    """A member keeps a dropped queue in its table while a handler holds it."""
    queue = triomq.MessageQueue("orders", "broker-a", 0)

    async def progress(_name: str, **_more: object) -> triomq.admin.GroupProgress:
        return progress_of({}, {})

    async def members(_name: str, **_more: object) -> Any:
        connections = [SimpleNamespace(client_id=each, client_addr="", language="") for each in ("new", "old")]
        return SimpleNamespace(connection_set=connections, subscription_table={}, consume_type="", message_model="")

    async def running_info(_name: str, client_id: str) -> Any:
        return SimpleNamespace(mq_table={queue: SimpleNamespace(droped=client_id == "old")})

    client: Any = SimpleNamespace(groups=SimpleNamespace(progress=progress, members=members, running_info=running_info))
    (found,) = (await group(client, "readers")).queues
    assert found.owner == "new"


async def test_a_set_whose_groups_are_unknown_is_named() -> None:
    async def names() -> triomq.admin.GroupNames:
        return triomq.admin.GroupNames([], {}, {"broker-b": "it does not answer"})

    groups = SimpleNamespace(names=names, is_system_group=lambda name: False)
    async with browser(SimpleNamespace(groups=groups, name_servers=[])) as web:  # type: ignore[arg-type]
        assert "broker-b: it does not answer" in checked(await web.get("/groups"))


async def test_the_dead_letters_at_the_other_brokers_are_shown() -> None:
    async def read(_group: str, **_more: object) -> Any:
        return triomq.admin.Found([], {"broker-b": "it does not answer"})

    async def count(_group: str, *, silent: dict[str, str]) -> int:
        assert silent == {"broker-b": "it does not answer"}, "it is not waited for again"
        raise triomq.errors.ConnectFailed("connect", address="broker-b:1")

    async def queues(_group: str) -> list[triomq.MessageQueue]:
        return [triomq.MessageQueue("%DLQ%readers", "broker-b", 0)]

    letters = SimpleNamespace(read=read, count=count, queues=queues)
    client = SimpleNamespace(dead_letters=letters, name_servers=[])
    async with browser(client) as web:  # type: ignore[arg-type]
        page = checked(await web.get("/dead-letters/group?name=readers"))
    assert "broker-b: it does not answer" in page
    assert "an unknown number not sent again" in page


async def test_a_group_whose_members_are_unknown_is_shown(autojump_clock: object) -> None:
    async def names() -> triomq.admin.GroupNames:
        return triomq.admin.GroupNames(["readers"], {})

    async def progress(_name: str, **_more: object) -> Any:
        return progress_of({"broker-b": "it does not answer"}, {})

    groups = SimpleNamespace(names=names, progress=progress, members=nobody(), is_system_group=lambda name: False)
    async with browser(SimpleNamespace(groups=groups, name_servers=[])) as web:  # type: ignore[arg-type]
        page = checked(await web.get("/groups"))
        assert "readers" in page
        assert "broker-b: it does not answer" in page
        assert page.count("unknown") == 2, "lag and members"
        page = checked(await web.get("/group?name=readers"))
        assert "broker-b: it does not answer" in page
        assert "no name server can be reached" in page


def progress_of(without_master: dict[str, str], refused: dict[str, str]) -> triomq.admin.GroupProgress:
    """A group's progress in one queue, of a cluster whose other brokers do not report it."""
    queue = triomq.MessageQueue("orders", "broker-a", 0)
    return triomq.admin.GroupProgress({queue: triomq.admin.OffsetWrapper(broker_offset=5)}, without_master, refused)


REFUSAL = {"broker-b": f"10.0.0.2:10911 refuses: AclException: {EVIL} (use an account with `admin: true`)"}


async def test_what_a_refusing_broker_has_is_missing_and_nothing_else(autojump_clock: object) -> None:
    async def names() -> triomq.admin.GroupNames:
        return triomq.admin.GroupNames(["readers"], REFUSAL)

    async def progress(_name: str, **_more: object) -> triomq.admin.GroupProgress:
        return progress_of({}, REFUSAL)

    async def members(_name: str, **_more: object) -> None:
        raise triomq.errors.AccessRefused("the members are unknown: broker broker-b")

    async def topics() -> list[str]:
        return ["orders"]

    async def topic_stats(_name: str, **_more: object) -> triomq.admin.TopicStats:
        bounds = triomq.admin.TopicOffset(min_offset=0, max_offset=7, last_update_timestamp=0)
        return triomq.admin.TopicStats({triomq.MessageQueue("orders", "broker-a", 0): bounds}, {}, REFUSAL)

    groups = SimpleNamespace(names=names, progress=progress, members=members, is_system_group=lambda name: False)
    admin = SimpleNamespace(topics=topics, topic_stats=topic_stats)
    async with browser(SimpleNamespace(groups=groups, admin=admin, name_servers=[])) as web:  # type: ignore[arg-type]
        for address, shown in (
            ("/groups", "readers"), ("/group?name=readers", "orders"), ("/topics?system=1", "orders"), ("/topic?name=orders", "broker-a"),
        ):  # fmt: skip
            page = checked(await web.get(address))
            assert shown in page
            assert "broker-b: 10.0.0.2:10911 refuses" in page
            assert "use an account with" in page


async def test_another_sites_name_does_not_lead_here(autojump_clock: object) -> None:
    async with browser(nobody(), hosts=frozenset({"MQ.example"})) as web:
        assert (await web.get("/", headers={"host": "evil.example"})).status_code == 421
        checked(await web.get("/", headers={"host": "mq.example:8088"}), 503)
        checked(await web.get("/", headers={"host": "[::1]:8088"}), 503)


async def test_a_failure_of_the_dashboard_is_not_shown_to_the_browser(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Nobody):
        async def __call__(self, *_arguments: object, **_more: object) -> Any:
            raise ZeroDivisionError("a secret of this machine")

    async with browser(Broken()) as web:  # type: ignore[arg-type]
        assert "secret" not in checked(await web.get("/"), 500)
    assert "a secret of this machine" in caplog.text


async def test_a_hundred_thousand_topics_are_paged(autojump_clock: object) -> None:
    names = [f"T{number:06}" for number in range(100_000)]
    asked = []

    async def topics() -> list[str]:
        return names

    async def topic_stats(name: str, **_more: object) -> Any:
        asked.append(name)
        await trio.sleep(0.01)
        return triomq.admin.TopicStats({}, {})

    admin = SimpleNamespace(topics=topics, topic_stats=topic_stats)
    async with browser(SimpleNamespace(admin=admin, name_servers=[])) as web:  # type: ignore[arg-type]
        page = checked(await web.get("/topics?system=1"))
        assert len(page) < 30_000
        assert sorted(asked) == names[:PAGE_ROWS]
        assert "page 1 of 2000" in page
        asked.clear()
        assert "T099999" in checked(await web.get("/topics?system=1&page=999999"))
        assert len(asked) == PAGE_ROWS
        assert "T012345" in checked(await web.get("/topics?system=1&search=12345"))
        checked(await web.get("/topics?system=1&page=²"))


@pytest.mark.parametrize("address", ["/topics?system=1", "/groups", "/dead-letters"])
async def test_a_page_waits_once_for_a_broker_that_hangs(autojump_clock: object, address: str) -> None:
    async def names() -> triomq.admin.GroupNames:
        return triomq.admin.GroupNames([f"{prefix}name-{number:02}" for number in range(PAGE_ROWS)], {})

    prefix = "%DLQ%" if address == "/dead-letters" else ""

    async def ask(silent: dict[str, str] | None) -> dict[str, str]:
        if silent is None or "b:1" not in silent:
            await trio.sleep(5)
            (silent if silent is not None else {})["b:1"] = "no answer in time"
        return {"broker-b": "it does not answer"}

    async def topic_stats(_name: str, *, silent: dict[str, str] | None = None) -> Any:
        return triomq.admin.TopicStats({}, await ask(silent))

    async def progress(_name: str, *, silent: dict[str, str] | None = None) -> Any:
        return progress_of(await ask(silent), {})

    async def members(_name: str, *, silent: dict[str, str] | None = None) -> None:
        await ask(silent)

    async def count(_name: str, *, silent: dict[str, str] | None = None) -> int:
        await ask(silent)
        raise triomq.errors.BrokerNotFound("broker-b: it does not answer")

    groups = SimpleNamespace(names=names, progress=progress, members=members, is_system_group=lambda _name: False)
    admin = SimpleNamespace(topics=names, topic_stats=topic_stats)
    letters = SimpleNamespace(count=count)
    client = SimpleNamespace(admin=admin, groups=groups, dead_letters=letters, name_servers=[])
    async with browser(client) as web:  # type: ignore[arg-type]
        began = trio.current_time()
        page = checked(await web.get(address))
    assert trio.current_time() - began == pytest.approx(5)
    assert page.count("name-") >= PAGE_ROWS
    assert "no answer in time" not in page
    assert "broker-b: it does not answer" in page


async def test_requests_are_bounded(autojump_clock: object) -> None:
    async def never(*_arguments: object, **_more: object) -> Any:
        await trio.sleep_forever()

    admin = SimpleNamespace(topic_stats=never)
    statuses = []
    async with browser(SimpleNamespace(admin=admin, name_servers=[])) as web:  # type: ignore[arg-type]

        async def ask() -> None:
            statuses.append((await web.get("/topic?name=a")).text)

        async with trio.open_nursery() as nursery:
            for _ in range(REQUESTS_MAX + 10):
                nursery.start_soon(ask)
    assert sum("Too many pages" in each for each in statuses) == 10
    assert sum("did not answer within" in each for each in statuses) == REQUESTS_MAX


async def test_pages_of_a_list() -> None:
    names = [f"t{number}" for number in range(120)]
    assert page_of(names, "", 1).names == names[:50]
    assert page_of(names, "", 3).names == names[100:]
    assert page_of(names, "", 99).number == 3
    assert page_of(names, "T11", 1).names == ["t11", *names[110:120]]
    assert page_of([], "", 1).pages == 1


async def test_the_tail_shows_new_messages(cluster: Cluster, client: triomq.Client) -> None:
    await client.admin.create_topic("orders", queues=2)
    producer = client.producer("shop")
    await producer.send(triomq.Message("orders", b"before"))
    events = tailing.tail(client, "orders")
    assert await anext(events) == b"event: idle\ndata: 0\n\n"
    await producer.send(triomq.Message("orders", (EVIL + "\n\ndata: forged").encode()))
    event = await anext(events)
    assert event.startswith(b'event: message\ndata: {"stored"')
    assert event.count(b"\n") == 3
    assert b"before" not in event
    assert b"forged" in event
    await events.aclose()


@pytest.mark.parametrize("digits", [32, 56])
async def test_a_message_is_found_by_its_brokers_id(autojump_clock: object, digits: int) -> None:
    """It has 56 digits if the broker's address is one of IPv6."""
    message: Any = SimpleNamespace(topic="orders")

    async def by_unique_key(_topic: str, _key: str) -> list[Any]:
        return []

    async def by_id(message_id: str) -> Any:
        if message_id[0] == "0":
            raise triomq.errors.InvalidCall("the id has the address of no broker of this cluster")
        return message

    client: Any = SimpleNamespace(messages=SimpleNamespace(by_unique_key=by_unique_key, by_id=by_id))
    assert await search(client, "orders", message_id="A" * digits) == [message]
    assert await search(client, "others", message_id="A" * digits) == []
    assert await search(client, "orders", message_id="0" * digits) == []


async def test_requests_that_wait_for_one_query_share_its_error(autojump_clock: trio.testing.MockClock) -> None:
    kept = Kept(3.0)
    failed_s: list[float] = []

    async def ask() -> None:
        await trio.sleep(5)
        raise triomq.errors.NoNameServer("no name server answers")

    async def page() -> None:
        with pytest.raises(triomq.errors.NoNameServer, match="no name server answers"):
            await kept.get(ask)
        failed_s.append(trio.current_time() - start_s)

    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(page)
    await page()
    assert failed_s == [5] * 10 + [10]


class Queues:
    """A client's calls about a topic whose messages are times; broker-x does not answer."""

    def __init__(self, stored: dict[triomq.MessageQueue, list[int]], without_master: dict[str, str]) -> None:
        self.admin = self.bounds = self.messages = self
        self._stored = stored
        self._without_master = without_master
        self.read = 0

    async def topic_stats(self, _topic: str, **_more: object) -> Any:
        bounds = {queue: TopicOffset(max_offset=len(times)) for queue, times in self._stored.items()}
        return SimpleNamespace(offset_table=bounds, without_master=self._without_master, refused={})

    async def max_offset(self, queue: triomq.MessageQueue) -> int:
        if queue.broker_name == "broker-x":
            raise triomq.errors.ConnectFailed("no connection")
        return len(self._stored[queue])

    async def page(self, queue: triomq.MessageQueue, offset: int, most: int) -> Any:
        times = self._stored[queue][offset : offset + most]
        self.read += len(times)
        return [
            SimpleNamespace(queue=queue, stored_ms=time, queue_offset=offset + number)
            for number, time in enumerate(times)
        ], offset + len(times)

    async def by_time(self, queue: triomq.MessageQueue, since_ms: int, *, max_messages: int) -> Any:
        begin = sum(time < since_ms for time in self._stored[queue])
        return (await self.page(queue, begin, min(max_messages, await self.max_offset(queue))))[0]


@pytest.mark.parametrize("seed", range(40))
async def test_a_search_has_the_nearest_messages_of_all_queues(seed: int) -> None:
    chance = random.Random(seed)
    stored = {
        triomq.MessageQueue("orders", "broker-a", number): sorted(chance.choices(range(50 + 50 * chance.randrange(20)), k=size))
        for number, size in enumerate(chance.choices([0, 1, 5, 30, 300], k=chance.choice([1, 3, 8, 200])))
    }  # fmt: skip
    client: Any = Queues(stored, {})
    times = sorted(time for each in stored.values() for time in each)
    found = await search(client, "orders")
    assert [message.stored_ms for message in found] == times[::-1][:FOUND_MAX]
    assert client.read <= sum(min(len(each), FOUND_MAX) for each in stored.values()) * 2.5
    since = chance.randrange(50)
    found = await search(client, "orders", from_ms=since)
    assert [message.stored_ms for message in found] == [time for time in times if time >= since][:FOUND_MAX]
    assert found.without_answer == {}


@pytest.mark.parametrize("from_ms", [None, 0])
async def test_a_search_names_the_brokers_that_do_not_answer(from_ms: int | None) -> None:
    queues = {triomq.MessageQueue("orders", name, 0): [1, 2] for name in ("broker-a", "broker-x")}
    client: Any = Queues(queues, {"broker-y": "no master is registered"})
    found = await search(client, "orders", from_ms=from_ms)
    assert [message.queue.broker_name for message in found] == ["broker-a"] * 2
    assert found.without_answer == {"broker-x": "ConnectFailed: no connection", "broker-y": "no master is registered"}


async def test_a_search_keeps_what_a_broker_has_answered_before_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = {
        triomq.MessageQueue("orders", "broker-a", 0): [1] * 300,
        triomq.MessageQueue("orders", "broker-b", 0): [2] * 300,
    }
    client: Any = Queues(queues, {})
    page = client.page
    asked: list[triomq.MessageQueue] = []

    async def fail_if_asked_again(queue: triomq.MessageQueue, offset: int, most: int) -> Any:
        if most > 50:
            raise triomq.errors.ConnectFailed("no connection")
        asked.append(queue)
        return await page(queue, offset, most)

    monkeypatch.setattr(client, "page", fail_if_asked_again)
    found = await search(client, "orders", from_ms=0)
    assert sorted(asked) == sorted(queues)
    assert [message.stored_ms for message in found] == [1] * 50 + [2] * 50
    assert found.without_answer == {"broker-a": "ConnectFailed: no connection"}


async def test_a_tail_has_the_messages_that_could_not_be_read_at_first(
    cluster: Cluster, client: triomq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.admin.create_topic("orders", queues=2)
    producer = client.producer("shop")
    events = tailing.tail(client, "orders")
    assert await anext(events) == b"event: idle\ndata: 0\n\n"
    queues = await producer.queues("orders")
    for queue in queues:
        await producer.send(triomq.Message("orders", b"new"), queue=queue)
    page = client.messages.page

    async def fail_once(queue: triomq.MessageQueue, *arguments: int) -> Any:
        if queue == max(queues):
            monkeypatch.setattr(client.messages, "page", page)
            raise triomq.errors.RequestTimeout("no answer in time")
        return await page(queue, *arguments)

    monkeypatch.setattr(client.messages, "page", fail_once)
    assert (await anext(events)).startswith(b"event: trouble")
    assert [(await anext(events)).split(b"\n")[0] for _ in queues] == [b"event: message"] * 2
    await events.aclose()


@pytest.mark.parametrize("figure", ["nan", "inf", "-Infinity", "", "much", "1" * 5000])
async def test_a_broker_with_impossible_figures_does_not_break_the_page(autojump_clock: object, figure: str) -> None:
    """Any client may register one."""
    status = dict.fromkeys(("commitLogDiskRatio", "putTps", "getTransferedTps", "commitLogMaxOffset"), figure)

    async def cluster_info() -> ClusterInfo:
        broker = BrokerData(cluster="c", broker_name="b", broker_addrs={0: "h:1"})
        return ClusterInfo(broker_addr_table={"b": broker}, cluster_addr_table={"c": ["b"]})

    async def status_of(_broker: str) -> dict[str, str]:
        return status

    client: Any = SimpleNamespace(
        admin=SimpleNamespace(cluster_info=cluster_info), servers=SimpleNamespace(status=status_of), name_servers=["n:1"],
        groups=None, messages=None, dead_letters=None, doctor=None,
    )  # fmt: skip
    async with browser(client) as web:
        assert "h:1" in checked(await web.get("/"))


async def test_a_tail_ends_with_its_browser(autojump_clock: object) -> None:
    dashboard = Dashboard(nobody())
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/tail/events",
        "query_string": b"name=a",
        "headers": [(b"host", b"localhost")],
    }
    gone = trio.Event()
    seen: list[Any] = []

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        seen.append(message)
        if len(seen) == 3:
            gone.set()
        await trio.lowlevel.checkpoint()

    with trio.fail_after(20):
        await dashboard(scope, receive, send)
    assert seen[0]["status"] == 200
    assert (b"content-security-policy") in dict(seen[0]["headers"])
    assert dashboard._pages.tails == 0


async def test_a_tail_without_messages_names_the_cause(autojump_clock: object) -> None:
    events = tailing.tail(nobody(), "orders")
    assert (await anext(events)).startswith(b"event: trouble")
    await events.aclose()
