"""Records, batches, properties, ids, hashes and replication as the real programs wrote them."""

from __future__ import annotations

import base64
import hashlib
import io
import ipaddress
import json
import tarfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from stored_records import encode_record
from transfers import Collector

from triomq_protocol.checksum import crc32
from triomq_protocol.filters.tags import (
    index_key_hash,
    java_hash,
    java_hash_with_prefix,
    java_long_hash,
    parse_subscription,
    select_by_hash,
    tags_code,
)
from triomq_protocol.hosts import pack_host, unpack_host
from triomq_protocol.java_text import utf8
from triomq_protocol.message_id import UniqueIdGenerator, decode_offset_message_id, offset_message_id
from triomq_protocol.properties import decode_properties, encode_properties, encode_properties_bytes, get_property
from triomq_protocol.record.batch import encode_batch_element, split_batch
from triomq_protocol.record.check import Finding, LogRecord, read_record
from triomq_protocol.record.layout import BLANK_MAGIC, MARK
from triomq_protocol.record.view import RecordView, iter_records
from triomq_protocol.replication import ReportDecoder, encode_report, encode_transfer_head
from triomq_protocol.requests import MessageQueue


def encoded_again(view: RecordView) -> bytes:
    return encode_record(
        view.topic.encode(),
        view.queue_id,
        view.body,
        view.properties_bytes,
        flag=view.flag,
        sys_flag=view.sys_flag,
        born_timestamp=view.born_timestamp,
        born_host=view.born_host_bytes,
        store_host=view.store_host_bytes,
        queue_offset=view.queue_offset,
        physical_offset=view.physical_offset,
        store_timestamp=view.store_timestamp,
        reconsume_times=view.reconsume_times,
        prepared_transaction_offset=view.prepared_transaction_offset,
        # Java's decoder, writing a record again, takes the checksum of the body before compression.
        body_crc=view.body_crc,
    )


def shown(host: tuple[str, int]) -> str:
    return f"{host[0]}:{host[1]}"


def check_fields(view: RecordView, want: dict[str, Any], equal: Any) -> None:
    got = {
        "commitLogOffset": view.physical_offset,
        "topic": view.topic,
        "queueId": view.queue_id,
        "queueOffset": view.queue_offset,
        "flag": view.flag,
        "sysFlag": view.sys_flag,
        "bornTimestamp": view.born_timestamp,
        "bornHost": shown(view.born_host),
        "storeTimestamp": view.store_timestamp,
        "storeHost": shown(view.store_host),
        "reconsumeTimes": view.reconsume_times,
        "preparedTransactionOffset": view.prepared_transaction_offset,
        "bodyCrc": view.body_crc,
        "storedBodyLength": len(view.body),
        "storedBodySha256": hashlib.sha256(view.body).hexdigest(),
        "propertiesString": view.properties_text,
        "tags": view.tags,
        "keys": view.keys,
        "offsetMsgId": view.offset_message_id,
    }
    for name, value in got.items():
        if name in want:
            equal(value, want[name])
    if view.sys_flag & 1 and view.sys_flag & 0x700 in (0, 0x300) and "bodySha256" in want:
        equal(hashlib.sha256(zlib.decompress(view.body)).hexdigest(), want["bodySha256"])


@pytest.mark.vectors("messages.json", "records")
def test_records(case: dict[str, Any], equal: Any) -> None:
    data = bytes.fromhex(case["recordHex"]) if "recordHex" in case else base64.b64decode(case["recordBase64"])
    (view,) = iter_records(data)
    equal(view.size_bytes, case["recordLength"])
    equal(zlib.crc32(view.data), case["recordCrc32"])
    check_fields(view, case["decoded"], equal)
    equal(encoded_again(view), data)
    found = read_record(data, 0, len(data), view.physical_offset, check_crc=True)
    equal(isinstance(found, LogRecord) and found.size, len(data))
    sent = case.get("sentByClient", {}).get("propertiesAfterSend")
    if sent:
        kept = {name: text for name, text in sent.items() if name not in ("WAIT", "DELAY")}  # brokers change these two
        equal({name: view.properties.get(name) for name in kept}, kept)


@pytest.mark.vectors("messages.json", "recordsByMessageDecoder")
def test_records_with_ipv6_and_compression(case: dict[str, Any], equal: Any) -> None:
    data = bytes.fromhex(case["recordHex"])
    view = RecordView(memoryview(b"xyz" + data + b"tail"), 3)
    for name in ("topic", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag", "born_timestamp",
                 "store_timestamp", "reconsume_times", "prepared_transaction_offset", "body_crc"):  # fmt: skip
        head, *rest = name.split("_")
        equal(getattr(view, name), case[head + "".join(map(str.capitalize, rest))])
    for host, want in ((view.born_host, case["bornHost"]), (view.store_host, case["storeHost"])):
        equal((ipaddress.ip_address(host[0]), host[1]), (ipaddress.ip_address(want["ip"]), want["port"]))
        equal(unpack_host(pack_host(want["ip"], want["port"]))[1], want["port"])
    equal(view.offset_message_id, case["decodedMsgId"])
    equal(view.properties_text, encode_properties(dict(case["propertiesInWireOrder"])))
    body = bytes.fromhex(case["bodyHex"])
    if case["bodyCompressedWith"] is None:
        equal(view.body, body)
    elif case["bodyCompressedWith"] == "ZLIB":
        equal(zlib.decompress(view.body), body)
    equal(crc32(body), case["bodyCrc"])
    equal(encoded_again(view), data)


@pytest.mark.vectors("messages.json", "batchEncoding")
def test_batches(case: dict[str, Any], equal: Any) -> None:
    data = bytes.fromhex(case["encodedHex"])
    out = b""
    for message in case["messages"]:
        properties = encode_properties_bytes(dict(message["propertiesInWireOrder"]))
        equal(properties.hex(), message["propertiesStringHex"])
        out += encode_batch_element(bytes.fromhex(message["bodyHex"]), properties, message["flag"])
    equal(out, data)
    got = [(flag, body.hex(), properties.hex()) for flag, body, properties, *_ in split_batch(data, b"").elements]
    equal(got, [(m["flag"], m["bodyHex"], m["propertiesStringHex"]) for m in case["messages"]])


@pytest.mark.vectors("messages.json", "propertyEncoding")
def test_property_encoding(case: dict[str, Any], equal: Any) -> None:
    text = encode_properties(dict(case["propertiesInMapOrder"]))
    equal(text, case["string"])
    equal(utf8(text).hex(), case["utf8Hex"])
    equal(sorted(map(list, decode_properties(text).items())), case["decodedAgainSorted"])


@pytest.mark.vectors("messages.json", "propertyDecoding")
def test_property_decoding(case: dict[str, Any], equal: Any) -> None:
    decoded = decode_properties(case["string"])
    equal(sorted(map(list, decoded.items())), case["decodedSorted"])
    equal({name: get_property(case["string"] or "", name) for name in decoded}, decoded)


@pytest.mark.vectors("messages.json", "tagHashCodes")
def test_tag_hash_codes(case: dict[str, Any], equal: Any) -> None:
    equal(java_hash(case["tag"]), case["javaHashCode"])
    equal(tags_code(case["tag"]), case["tagsCode"])
    if case["tag"] and "||" not in case["tag"] and min(case["tag"]) > " ":
        equal(parse_subscription(case["tag"]).codes, {case["javaHashCode"]})


@pytest.mark.vectors("messages.json", "offsetMessageIds")
def test_offset_message_ids(case: dict[str, Any], equal: Any) -> None:
    equal(offset_message_id(pack_host(case["ip"], case["port"]), int(case["offset"])), case["msgId"])
    for text in (case["msgId"], case["msgId"].lower()):
        decoded = decode_offset_message_id(text)
        equal(ipaddress.ip_address(decoded.host), ipaddress.ip_address(case["decodedIp"].split("%")[0]))
        equal((decoded.port, str(decoded.physical_offset)), (case["decodedPort"], case["decodedOffset"]))


@pytest.mark.vectors("messages.json", "uniqueIds")
def test_unique_ids(case: dict[str, Any], equal: Any) -> None:
    """Java's ids are made here again from their parts; instance, time and counter are always the last 20 digits."""
    address, text = ipaddress.ip_address(case["ip"]).packed, case["id"]
    equal(len(address), case["addressLength"])
    instance, millis, counter = int(text[-20:-12], 16), int(text[-12:-4], 16), int(text[-4:], 16)
    if case["kind"] == "created":
        equal(instance, int(case["classLoaderHashHex"], 16))
        equal((millis, counter), (case["millisSinceStartOfMonth"], case["counter"]))
    start = int(case.get("startOfMonthMillisUtc", 0))
    generator = UniqueIdGenerator(
        address, case["pid"], instance, month_start_ms=start, next_month_ms=start + 40 * 86400_000, counter=counter
    )
    equal(generator.next_id(start + millis), text)


@pytest.mark.vectors("hash.json", "cases", kinds=["string"])
def test_string_hashes(case: dict[str, Any], equal: Any) -> None:
    text = case["input"]
    equal(java_hash(text), case["javaHashCode"])
    equal(java_hash_with_prefix(text[: len(text) // 2], text[len(text) // 2 :]), case["javaHashCode"])
    equal(tags_code(text), case["tagsCode"])
    equal(index_key_hash(text), case["indexKeyHash"])
    equal(utf8(text).hex(), case["utf8Hex"])
    equal(crc32(utf8(text)), case["crc32"])


@pytest.mark.vectors("hash.json", "cases", kinds=["selectQueueByHash"])
def test_queue_selection(case: dict[str, Any], equal: Any) -> None:
    if case["argType"] == "String":
        equal(java_hash(case["arg"]), case["javaHashCode"])
    elif case["argType"] == "Long":
        equal(java_long_hash(int(case["arg"])), case["javaHashCode"])
    got = {count: select_by_hash(case["javaHashCode"], int(count)) for count in case["queueIndexByQueueCount"]}
    equal(got, case["queueIndexByQueueCount"])


@pytest.mark.vectors("hash.json", "cases", kinds=["messageQueue"])
def test_message_queue_hashes(case: dict[str, Any], equal: Any) -> None:
    queue = MessageQueue(case["topic"] or "", case["brokerName"] or "", case["queueId"])
    equal(queue.hash_code(), case["hashCode"])
    if case["topic"] is not None and case["brokerName"] is not None:
        equal(str(queue), case["toString"])


@pytest.mark.vectors("ha.json", "cases")
def test_replication(case: dict[str, Any], equal: Any) -> None:
    for link in case["connections"]:
        reports, transfers = ReportDecoder(), Collector()
        reported, transferred, body = [], [], hashlib.sha256()
        for at, sender, text in link["chunks"]:
            data = base64.b64decode(text)
            if sender == "slave":
                reported += [[at, offset] for offset in reports.feed(data)]
            elif sender == "master":
                for offset, part in transfers.feed(data):
                    transferred.append([at, offset, len(part)])
                    body.update(part)
        equal(reported, link["slaveReports"])
        equal(transferred, link["masterFrames"])
        equal(body.hexdigest(), link["transferredSha256"])
        sent = {
            who: b"".join(base64.b64decode(c) for _, s, c in link["chunks"] if s == who) for who in ("slave", "master")
        }
        equal(b"".join(encode_report(offset) for _, offset in reported), sent["slave"])
        single = Collector()
        again = [t for at in range(len(sent["master"])) for t in single.feed(sent["master"][at : at + 1])] if len(
            sent["master"]) < 100_000 else single.feed(sent["master"])  # fmt: skip
        rest = b"".join(encode_transfer_head(offset, len(part)) + part for offset, part in again)
        equal(rest, sent["master"][: len(rest)])
        equal(len(sent["master"]) - len(rest), link["leftoverBytes"])


@cache
def archive(path: Path) -> dict[str, bytes]:
    files = {}
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as tar:
        for member in tar:
            if member.isfile():
                handle = tar.extractfile(member)
                assert handle is not None
                files[member.name.split("/", 1)[1]] = handle.read()
    return files


def walk(files: dict[str, bytes]) -> tuple[dict[int, RecordView], list[tuple[int, int]], int]:
    """Records by offset, fillers, end of the log."""
    records, blanks, end = {}, [], 0
    for name in sorted(name for name in files if name.startswith("commitlog/")):
        base, data, at = int(name.split("/")[1]), files[name], 0
        while True:
            found = read_record(data, at, len(data), base + at, check_crc=True)
            end = base + at
            if found is Finding.BLANK:
                blanks.append((base + at, MARK.unpack_from(data, at)[0]))
                end = base + len(data)
                break
            if isinstance(found, Finding):
                return records, blanks, end
            records[base + at] = RecordView(data, at)
            at += found.size
    return records, blanks, end


@pytest.mark.vectors("store-small.json", "records")
def test_records_of_a_real_store(case: dict[str, Any], equal: Any, vectors: Path) -> None:
    check_stored(case, archive(vectors / "store-small.tar.gz"), equal)


@pytest.mark.vectors("store-crashed.json", "records")
def test_records_of_a_crashed_store(case: dict[str, Any], equal: Any, vectors: Path) -> None:
    check_stored(case, archive(vectors / "store-crashed.tar.gz"), equal)


def check_stored(case: dict[str, Any], files: dict[str, bytes], equal: Any) -> None:
    view = walk(files)[0][case["commitLogOffset"]]
    equal(view.size_bytes, case["size"])
    check_fields(view, case, equal)
    equal(encoded_again(view), view.data)


@pytest.mark.vectors("store-small.json", "blanks")
def test_fillers_of_a_real_store(case: dict[str, Any], equal: Any, vectors: Path) -> None:
    equal((case["offset"], case["size"]) in walk(archive(vectors / "store-small.tar.gz"))[1], True)
    assert BLANK_MAGIC & 0xFFFFFFFF == 0xCBD43194


@pytest.mark.parametrize("name", ["store-small", "store-crashed"])
def test_a_store_is_read_to_its_end(name: str, vectors: Path) -> None:

    want = json.loads((vectors / f"{name}.json").read_text())
    records, _, end = walk(archive(vectors / f"{name}.tar.gz"))
    assert len(records) == want["recordCount"]
    if "maxPhyOffset" in want:
        assert end == want["maxPhyOffset"]
