"""The account and the TLS options given to a command, for the targets that existed before it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

import triomq
from triomq_benchmarks.clusters.access import PLAIN, Access
from triomq_benchmarks.run.targets import STARTED
from triomq_command.connection_options import (
    account_given,
    connection_arguments_given,
    connection_variables,
    dialer_arguments_given,
)


def access_to(targets: Sequence[str]) -> Access:
    """The account and TLS given to the running command; its files have been read once.

    Without a target that existed before, the environment's are not used: they are for another cluster than one that is
    started for a run.

    Raises:
        click.UsageError: a file cannot be used, options contradict each other, or arguments would have no effect.
    """
    if all(target in STARTED for target in targets):
        labels = " and ".join(dict.fromkeys(targets))
        for argument in connection_arguments_given():
            raise click.UsageError(
                f"{argument} has no effect on the target {labels}: clusters that are started for a run "
                "take plain TCP, and no account; it is for HOST:PORT as target"
            )
        return PLAIN
    account, tls = account_given(), dialer_arguments_given()
    # Load generators on Spark have working directories of their own.
    if tls is not None:
        tls |= {name: os.path.abspath(tls[name]) for name in ("ca", "certificate", "key") if tls[name] is not None}
    try:
        if account is None:
            access = Access(tls=tls)
        elif account.file is not None:
            access = Access(credentials_file=os.path.abspath(account.file), tls=tls)
        else:
            keys = triomq.Credentials(account.access_key, account.secret_key, account.security_token)
            access = Access(credentials=keys, tls=tls)
        access.options()
    except triomq.errors.InvalidCall as error:
        raise click.UsageError(str(error)) from None
    return access


def variables_for(access: Access) -> dict[str, str]:
    """The environment for a child process that connects as the running command does; arguments would show secrets."""
    variables = connection_variables()
    account = access.options().get("credentials")
    if access.credentials_file is not None and account is not None:
        variables |= {"ROCKETMQ_ACCESS_KEY": account.access_key, "ROCKETMQ_SECRET_KEY": account.secret_key}
    others = {name: value for name, value in os.environ.items() if name not in variables}
    return others | {name: value for name, value in variables.items() if value is not None}
