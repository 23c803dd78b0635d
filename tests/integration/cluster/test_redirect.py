"""The demonstrations that need a master, a slave and real processes: readers sent to the slave and back, and a reader
that loses its master."""

import json
from itertools import pairwise

import pytest
import trio
from click.testing import CliRunner

from triomq_benchmarks.commands.demo import demo
from triomq_benchmarks.demo.redirect import QUEUES
from triomq_benchmarks.ha.failover import measure_ours

MEMORY_BYTES = 64 * 1024 * 1024


@pytest.mark.slow
def test_a_slow_consumer_changes_from_the_master_to_the_slave_and_back() -> None:
    result = CliRunner().invoke(demo, ["redirect", "--memory-bytes", str(MEMORY_BYTES), "--json"])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.output)
    assert shown["orders"] == {str(queue): ["master", "slave", "master"] for queue in range(QUEUES)}
    for queue in range(QUEUES):
        stretches = [each for each in shown["stretches"] if each["queue"] == queue]
        # Every offset once, in order, from either broker.
        assert stretches[0]["first"] == 0
        assert all(one["last"] + 1 == next_["first"] for one, next_ in pairwise(stretches))
        served = {(each["phase"], each["served_by"]) for each in stretches}
        assert ("keeps up", "slave") not in served
        assert ("keeps up again", "slave") not in served
        assert ("catches up", "slave") in served


@pytest.mark.slow
async def test_a_reader_that_loses_its_master_continues_at_the_slave() -> None:
    with trio.fail_after(60):
        taken_s = await measure_ours(3)
    assert len(taken_s) == 3
    # The goal is a tenth of a second; a loaded machine may take longer, the route's poll takes 30 s.
    assert max(taken_s) < 20
