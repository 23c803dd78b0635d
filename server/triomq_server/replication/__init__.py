"""Replication: a master sends the bytes of its log to slaves, which fetch everything else by ordinary requests.

`master.HaMaster` accepts slaves, sends them the log and tracks what they have acknowledged; `slave.HaSlave` follows a
master after `divergence` has compared the two logs; `metadata` fetches topics, groups and offsets. The decisions are
pure functions in `rules`. A store is any object with the few methods that `master` and `slave` list. Answers to
`HAService` and `HAConnection`.
"""
