"""`triomq bench spark-cluster`: a standalone Spark cluster on this machine, until Ctrl-C."""

from __future__ import annotations

import json

import click
import trio

from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.clusters.processes import ChildError
from triomq_benchmarks.spark.cluster import open_spark_cluster
from triomq_command.ending_signals import ending_signals


@click.command("spark-cluster")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes.")
@click.option("--cores", type=click.IntRange(1, 64), default=1, show_default=True, help="Tasks at once, per worker.")
@click.option("--memory", default="1g", show_default=True, help="For executors, per worker.")
@click.option("--json", "as_json", is_flag=True, help="Events as lines of JSON.")
def spark_cluster(workers: int, cores: int, memory: str, as_json: bool) -> None:
    """Start a standalone Spark cluster on this machine, for experiments; Ctrl-C ends it."""

    def say(text: str, **event: object) -> None:
        click.echo(json.dumps(event) if as_json else text)

    async def serve() -> None:
        async with open_spark_cluster(workers=workers, cores=cores, memory=memory) as cluster:
            say(
                f"ready: {cluster.master} ({workers} workers, {cluster.slots} slots; {cluster.web})\n"
                f"try: triomq bench run quick --engine spark --master {cluster.master}\nCtrl-C ends it",
                event="ready", master=cluster.master, web=cluster.web, slots=cluster.slots, workers=cluster.workers,
                directory=str(cluster.directory),
            )  # fmt: skip
            await trio.sleep_forever()

    async def until_signal() -> None:
        """End all processes at a signal, from the first process on."""
        with trio.open_signal_receiver(*ending_signals()) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                async for _number in signals:
                    break
                nursery.cancel_scope.cancel()
            # Signals that arrive during the end have no further effect.
            with trio.move_on_after(0):
                async for _number in signals:
                    continue
        say("stopped: no process is left", event="stopped")

    failure: BaseException | None = None
    try:
        trio.run(until_signal)
    except* (ToolUnavailableError, ChildError) as errors:
        failure = errors.exceptions[0]
    if failure is not None:
        if as_json:
            say("", event="error", error=str(failure))
        raise click.ClickException(str(failure))
