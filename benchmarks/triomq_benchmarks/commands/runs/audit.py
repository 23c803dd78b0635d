"""`triomq bench audit RUN_DIR`: audit the ledger of a run once more, in this process or as a Spark job."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from triomq_benchmarks.audit.checks import Defect, Findings
from triomq_benchmarks.audit.ledger_tables import audit_folder, write_findings
from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.commands.named_path import NamedPath
from triomq_benchmarks.figures.ledger import LedgerError

EXIT_FAILED: Final = 1


@click.command("audit")
@click.argument("run_dir", type=NamedPath(exists=True, file_okay=False))
@click.option("--master", help="Audit as a Spark job, on local[N] or spark://HOST:PORT. Default: here, without Spark.")
@click.option(
    "--shared/--not-shared",
    default=None,
    help="With --master: whether the cluster's workers see RUN_DIR under the same path. Default: on loopback only.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def audit(run_dir: Path, master: str | None, shared: bool | None, as_json: bool) -> None:
    """Compare what was acknowledged with what was consumed in RUN_DIR, and write audit.json there.

    Exit code 0: everything acknowledged was consumed once by each group, in order, unaltered, and nothing else. 1: not
    so, the ledger is incomplete, or there is none.
    """
    try:
        findings = audit_folder(run_dir) if master is None else _on_spark(run_dir, master, shared)
    except (LedgerError, ToolUnavailableError, ValueError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_FAILED)
    try:
        write_findings(findings, run_dir)
    except OSError as error:
        click.echo(f"Error: audit.json cannot be written to {run_dir}: {error.strerror or error}", err=True)
        sys.exit(EXIT_FAILED)
    if as_json:
        click.echo(json.dumps(findings.as_dict()))
    else:
        print_findings(findings, Console())
    sys.exit(0 if findings.clean else EXIT_FAILED)


def _on_spark(run_dir: Path, master: str, shared: bool | None) -> Findings:
    from triomq_benchmarks.spark.audit import audit_folder_on_spark
    from triomq_benchmarks.spark.environment import open_session

    with open_session(master, name="triomq bench audit", short_lived=True) as session:
        return audit_folder_on_spark(session, run_dir, shared=shared)


def print_findings(findings: Findings, console: Console) -> None:
    """Counts, and the first examples of each defect."""
    console.print(f"{findings.acknowledged:,} messages acknowledged, {findings.consumed:,} consumed")
    for note in findings.notes:
        console.print(f"incomplete: {note}", markup=False)
    if findings.clean:
        console.print("clean: each consumed once by each group, in order, as it was, and nothing else")
        return
    table = Table("defect", "count", "first examples: message, group, place", "detail", title_justify="left")
    for defect in Defect:
        examples = findings.examples[defect]
        table.add_row(
            defect.value,
            f"{findings.counts[defect]:,}",
            escape("\n".join(f"{one.message} {one.group} {one.place}" for one in examples)),
            escape("\n".join(one.detail for one in examples)),
        )
    console.print(table)
