"""The name server: brokers register at it, and clients ask it for the brokers of topics.

`routes` and `kv_config` hold its data, `handlers` answers requests, and `lifecycle` runs it.
"""

from triomq_server.namesrv.lifecycle import serve_namesrv as serve_namesrv
