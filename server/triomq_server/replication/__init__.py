"""Replication: the log's bytes go from a master to its slaves, and what else a slave needs follows by ordinary requests.

`master.HaMaster` accepts slaves, streams the log and knows what is acknowledged; `slave.HaSlave` follows a master; `metadata`
fetches topics, groups and offsets. The decisions are pure functions in `rules`, waiting sends stand in `waiters`.
This room knows the store only by the small protocols in `streams`, and no broker. It answers to `HAService` and `HAConnection`.
"""
