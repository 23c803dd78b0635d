"""The variables of the environment in which a command under `triomq run` finds its cluster."""

ADDRESS_VARIABLES = ("ROCKETMQ_NAMESRV_ADDR", "NAMESRV_ADDR")
"""The name server's address; Java's client reads the second one by itself."""

URL_VARIABLE = "TRIOMQ_RUN_URL"
"""Where the cluster's clock and faults are steered: ``http://127.0.0.1:PORT/SECRET``."""
