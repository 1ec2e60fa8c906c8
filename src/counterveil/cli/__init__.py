"""The command line. Errors are one line on standard error and exit code 2; never a traceback."""

from __future__ import annotations

import warnings
from typing import Any

import click

from ..errors import CounterveilError
from . import ask as cli_applicant
from . import bench as cli_bench
from . import doctor as cli_doctor
from . import institution as cli_institution
from . import ledger as cli_ledger
from . import provision as cli_provision
from . import research as cli_research


class _Group(click.Group):
    """Turns Counterveil's own errors into one line and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        warnings.showwarning = lambda message, *_, **__: click.echo(f"counterveil: warning: {message}", err=True)
        try:
            return super().invoke(ctx)
        except CounterveilError as error:
            click.echo(f"counterveil: {' '.join(str(error).split())}", err=True)
            ctx.exit(2)


@click.group(cls=_Group, context_settings={"auto_envvar_prefix": "COUNTERVEIL"})
@click.version_option(package_name="counterveil")
def main() -> None:
    """Explanations that cost the person who asks for them nothing of their privacy."""


for command in (
    cli_institution.schema,
    cli_institution.build,
    cli_institution.inspect,
    cli_provision.keygen,
    cli_provision.terms,
    cli_provision.ticket,
    cli_institution.serve,
    cli_ledger.ledger,
    cli_applicant.ask,
    cli_doctor.doctor,
    cli_research.leakage,
    cli_research.attack,
    cli_research.advise,
    cli_research.reproduce,
    cli_bench.bench,
):
    main.add_command(command)
