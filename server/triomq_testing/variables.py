"""The environment variables with which a command under `triomq run` finds its cluster."""

ADDRESS_VARIABLES = ("ROCKETMQ_NAMESRV_ADDR", "NAMESRV_ADDR")
"""The name server's address; Java's client reads the second one automatically."""

URL_VARIABLE = "TRIOMQ_RUN_URL"
"""The URL that controls the cluster's clock and faults: ``http://127.0.0.1:PORT/SECRET``."""
