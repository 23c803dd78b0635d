"""Records for the tests of this folder: any that a broker may store, and a small one to be damaged."""

from __future__ import annotations

from hypothesis import strategies as st
from stored_records import encode_record

from triomq_protocol.hosts import pack_host

HOSTS = st.sampled_from([pack_host("127.0.0.1", 10911), pack_host("fd00::2", 1)])
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
RECORDS = st.fixed_dictionaries({
    "topic": st.binary(min_size=1, max_size=127).map(lambda data: data.hex().encode()[:127]),
    "queue_id": INT32, "body": st.binary(max_size=100), "properties": st.binary(max_size=60), "flag": INT32,
    "sys_flag": st.sampled_from([0, 1, 4, 8, 12, 0x301]), "born_timestamp": INT64, "born_host": HOSTS, "store_host": HOSTS,
    "queue_offset": INT64, "physical_offset": INT64, "store_timestamp": INT64, "reconsume_times": INT32,
    "prepared_transaction_offset": INT64,
})  # fmt: skip

BODY = b"some body"
GOOD = encode_record(
    b"T", 1, BODY, b"TAGS\x01a", flag=0, sys_flag=0, born_timestamp=1, born_host=pack_host("10.0.0.1", 5),
    store_host=pack_host("10.0.0.2", 6), physical_offset=1000, store_timestamp=77,
)  # fmt: skip
