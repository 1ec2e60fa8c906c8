"""The command provision: one public file from which every party starts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from ..crypto.keys import PRIVATE, Issuer, SigningKey, fingerprint, read_common_keys
from ..errors import CounterveilError
from ..institution.database import Database
from ..terms.published import deployment_of, read_terms
from ..terms.task import Places, Task, Tickets, epoch_of, make_task, read_task, spoken, write_task
from .defaults import of_server, placed
from .output import JSON, print_json
from .times import seconds, shown

_PATH = click.Path(path_type=Path)
_SOON = 14 * 86_400  # seconds: an end that is this near is worth a word


@click.group()
def provision() -> None:
    """Make and check a task file: what the institution and all operators agree on, in one public file.

    `counterveil serve --task FILE --server N` and `counterveil ticket issue --task FILE` start from it.
    """


@provision.command()
@click.argument("task", type=_PATH)
@click.option("--terms", "terms", type=_PATH, multiple=True, required=True, help="A terms file. Repeat it for each.")
@click.option("--common-key", type=_PATH, required=True, help="The common key, or the folder of them; ids are taken.")
@click.option("--valid", default="7d", show_default=True, metavar="TIME", help="How long tickets are valid.")
@click.option("-k", "--records", default=1, show_default=True, help="How many records a ticket allows.")
@click.option("--robust", default=0, show_default=True, help="How many wrong answers a ticket corrects.")
def make(task: Path, terms: tuple[Path, ...], common_key: Path, valid: str, records: int, robust: int) -> None:
    """Make the file TASK from terms that are signed and from the ids of the common keys."""
    seconds(valid)
    keys = sorted(read_common_keys(common_key), key=lambda key: (key.begins, key.id))
    made = make_task([*map(read_terms, terms)], keys, Tickets(valid, records, robust))
    if task.exists():
        before = read_task(task)
        own = {n: before.server[n].serve for n in made.server if n in before.server}
        servers = {n: msgspec.structs.replace(each, serve=own.get(n, {})) for n, each in made.server.items()}
        made = msgspec.structs.replace(made, server=servers, places=before.places)
    write_task(task, made)
    click.echo(f"{task}: the task of {made.service}, for {len(made.server)} servers.")
    click.echo(f"digest: {spoken(made.digest())}")
    click.echo("Send the file to every operator, and compare the digest by telephone.")


@provision.command()
@click.argument("task", type=_PATH)
@click.option("--server", type=int, help="Check what this server's operator has, too: its own key and its ledger.")
@JSON
def check(task: Path, server: int | None, as_json: bool) -> None:
    """Compare TASK with the files that it names, as far as they are here; exit with 1 if there is a problem."""
    read = read_task(task)
    found: dict[str, list[str]] = {"facts": [], "problems": []}
    for work in (_check_epochs, _check_keys, _check_own, _check_uncovered):
        for kind, said in _safely(work, task, read, server):
            found[kind] += [said] if said not in found[kind] else []  # two checks may meet the same problem
    digest = spoken(read.digest())
    if as_json:
        print_json(found | {"digest": digest})
    else:
        for said in found["facts"]:
            click.echo(said)
        for said in found["problems"]:
            click.echo(f"Problem: {said}")
        click.echo(f"digest: {digest}")
    if found["problems"]:
        sys.exit(1)


_Said = Iterator[tuple[str, str]]


def _safely(work: Callable[..., _Said], *arguments: Any) -> _Said:
    try:
        yield from work(*arguments)
    except CounterveilError as error:
        yield "problems", str(error)


def _check_epochs(path: Path, task: Task, _: int | None) -> _Said:
    """Check signatures, digests, servers and times of all terms, and the bundles that lie beside them."""
    now, folder = time.time(), Path(placed(path, task.places.epochs))
    for number, (address, key) in enumerate(task.servers(), start=1):
        yield "facts", f"server {number}: {address}, key {fingerprint(bytes.fromhex(key))}"
    here = {}
    for terms in sorted(folder.glob("*.terms")):
        issued = read_terms(terms)  # raises for a wrong signature
        task.check(issued)
        deployment_of(issued.terms)
        here[issued.digest.hex()] = issued
        ends = issued.terms.ends
        yield "facts", f"{terms.name}: begins {shown(issued.terms.begins, 'at once')}, ends {shown(ends)}"
        if epoch_of(issued) not in task.epoch:
            yield "facts", f"{terms.name}: not in the task; it is newer, or the task is not the latest"
        if isinstance(ends, int) and ends < now + _SOON:
            yield "facts", f"{terms.name}: {'is over' if ends <= now else 'is over soon'}"
        bundle = terms.with_suffix(".bundle")
        if bundle.exists():
            database = Database.open(bundle)
            if (database.digest, database.packed) != (issued.terms.database, issued.terms.packages):
                yield "problems", f"{bundle}: got another bundle, expected that of {terms.name}"
        else:
            yield "facts", f"{bundle.name}: not here"
    for epoch in task.epoch:
        goes_on = epoch.ends is None or epoch.ends.timestamp() > now
        if here and goes_on and epoch.terms not in here:
            yield "problems", f"epoch {epoch.terms[:16]}: got no terms in {folder}, expected those of the task"
    live = [issued for issued in here.values() if not isinstance(issued.terms.ends, int) or issued.terms.ends > now]
    if here and not live:
        yield "problems", f"{folder}: got no terms that are not over, expected some"


def _check_keys(path: Path, task: Task, _: int | None) -> _Said:
    """Check that the common keys that are here are those of the task, and that one is in use."""
    now, folder = time.time(), Path(placed(path, task.places.common_key))
    if not folder.exists():
        yield "facts", f"{folder}: no common keys here"
        return
    keys = {key.id.hex(): key for key in read_common_keys(folder)}
    for key in keys.values():
        said = f"{key.state(now)}, begins {shown(key.begins, 'at once')}, ends {shown(key.ends)}"
        yield "facts", f"common key {key.id.hex()}: {said}"
    for common in task.common_key:
        if (common.ends is None or common.ends.timestamp() > now) and common.id not in keys:
            yield "problems", f"common key {common.id}: got none in {folder}, expected it"
    if not any(key.state(now) == "active" for key in keys.values()):
        yield "problems", f"{folder}: got no common key that is active, expected one"


def _check_own(path: Path, task: Task, server: int | None) -> _Said:
    """Check the private keys that are here: the issuer's, and one server's."""
    issuer = Path(placed(path, task.places.issuer_key))
    if issuer.exists() and Issuer.load(issuer).public.hex() != task.issuer:
        yield "problems", f"{issuer}: got another key, expected the issuer's ({PRIVATE})"
    if server is None:
        return
    settings: Mapping[str, Any] = of_server(path, task, server)
    own = SigningKey.load(settings["key"])
    if own.public.hex() != task.server[str(server)].key:
        yield "problems", f"{settings['key']}: got another key, expected that of server {server}"
    ledger = settings["ledger"]
    if "://" not in ledger and not Path(ledger).exists():
        yield "problems", f"{ledger}: got no ledger, expected one: see counterveil ledger new"


def _check_uncovered(path: Path, task: Task, _: int | None) -> _Said:
    """Show what the digest does not cover: whoever sent the file could have written it."""
    for name, place in msgspec.structs.asdict(task.places).items():
        if place != getattr(Places(), name):
            yield "facts", f"not in the digest: [places] {name} = {_without_secrets(place)}"
    for number, operator in task.server.items():
        of_server(path, task, int(number))  # refuses what a task file may not have
        for name, value in operator.serve.items():
            yield "facts", f"not in the digest: [server.{number}.serve] {name} = {_without_secrets(value)}"


def _without_secrets(value: object) -> str:
    """Return a setting to be shown; of an address only where it leads, since the rest may have a password."""
    kind, _, rest = str(value).partition("://")
    return f"{kind}://{rest.partition('?')[0].rpartition('@')[2]}" if rest else kind
