"""Attacks on rows: each against deployments that it is meant for, and against one that is deployed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from rich.progress import track

from ...algebra.field import Field
from ...errors import NotOffered
from ...institution.database import Database
from ...schema.features import Categorical
from ...schema.schema import Schema
from ...schema.tariff import Tariff
from ...schemes import defaults
from ...schemes.forms import form_named
from ...schemes.scheme import pair_named
from ...terms.deployment import Deployment
from ..oracles import Oracle, in_process
from .catalogue import ROW_ATTACKS, chosen
from .probing import probing
from .report import Report

OVERSIZED = 2**61 - 1
_TICKETS = "few tickets; sealed"  # texts of `Report.stopped_by`
_ROW = "sealed: one record a ticket"


def one_hot(database: Database) -> Database:
    """Return the database with one-hot categories, which `linear` and `euclidean` deployments need.

    The schema's rules are left out: `euclidean` cannot keep them, and no attack keeps to them.
    """
    free = [msgspec.structs.replace(f, change="any", effort=1) for f in database.schema.features]
    features = tuple(msgspec.structs.replace(f, encoding="one-hot") if isinstance(f, Categorical) else f for f in free)
    return replace(database, schema=Schema(features=features))


@dataclass(frozen=True)
class _Plan:
    attack: str
    scheme: str
    stopped_by: str
    parameters: dict[str, Any]
    field: int | None = None

    @property
    def against(self) -> str:
        """The deployment's name in the report."""
        extra = [f"d_min {self.parameters['d_min']}"] if "d_min" in self.parameters else []
        extra += ["shuffled"] if self.parameters.get("shuffle") else []
        extra += [self.parameters["protocol"]] if "protocol" in self.parameters else []
        extra += ["q = 2^61 - 1"] if self.field else []
        return ", ".join([self.scheme, *extra])


def _plans(d_min: int | None) -> Iterator[_Plan]:
    for reveal in ("distances", "differences"):
        yield _Plan("multilateration", f"linear/{reveal}", _TICKETS, {"shuffle": False})
        yield _Plan("level reading", f"table/{reveal}", _TICKETS, {"shuffle": False})
    masked: dict[str, Any] = {"shuffle": False, "d_min": d_min}
    yield _Plan("level reading", "table/masked", _TICKETS + ": larger digits defeat a mask", masked)
    stops = "few tickets; sealed: a mask only delays"
    yield _Plan("averaging a mask", "euclidean/masked", stops, masked)
    prime = "the smallest prime"
    yield _Plan("crafted digits", "table/distances", prime, {"shuffle": False}, OVERSIZED)
    yield _Plan("crafted digits", "table/distances", _TICKETS, {"shuffle": False})
    for reveal in ("distances", "differences"):
        yield _Plan("linking orders", f"table/{reveal}", _TICKETS, {"shuffle": True})
    yield _Plan("multilateration", "linear/sealed", _ROW, {})
    for name in ("level reading", "crafted digits", "linking orders"):
        yield _Plan(name, "table/sealed", _ROW, {})
        yield _Plan(name, "table/sealed", _ROW, {"protocol": defaults.LINKED})


def attack_all(
    database: Database,
    *,
    d_min: int | None = None,
    tickets: int = 100,
    names: Collection[str] = (),
    progress: bool = False,
) -> list[Report]:
    """Attack the deployment that the schema chose; then run every attack against a deployment that it is meant for.

    `d_min` is the width of the mask to average out; by default it hides two levels. `names` chooses attacks.
    """
    reports, wanted = [], chosen(names, ROW_ATTACKS)
    d_min = d_min or 4 * Tariff(database.schema, 1, 1).stretch
    plans = [plan for plan in _plans(d_min) if plan.attack in wanted]
    for plan in track(plans, description="attacks", transient=True, disable=not progress):
        form, _ = pair_named(plan.scheme)
        target = database if form_named(form).tabular or database.certificate else one_hot(database)
        try:
            deployment = Deployment.of(target.schema, scheme=plan.scheme, record=target.record, **plan.parameters)
        except NotOffered:
            continue  # this schema has no such deployment
        deployment = replace(deployment, certificate=target.certificate)
        if plan.field is not None:
            deployment = replace(deployment, scheme=replace(deployment.scheme, field=Field(plan.field)))
        oracle = in_process(target, deployment)
        curve = ROW_ATTACKS[plan.attack].run(oracle, deployment.rows(target.codes))
        reports.append(Report(plan.attack, plan.against, tuple(curve), plan.stopped_by))
    own = in_process(database, Deployment.serving(database, linked=True))
    return [*attack_deployment(own, database, tickets=tickets, names=names), *reports]


def attack_deployment(
    oracle: Oracle, database: Database, *, tickets: int = 100, names: Collection[str] = ()
) -> list[Report]:
    """Run the attacks that apply to one deployment, of those that are named."""
    scheme, wanted = oracle.deployment.scheme, chosen(names, ROW_ATTACKS)
    reveal, rows = scheme.reveal, oracle.deployment.rows(database.codes)
    against = f"{scheme.form.name}/{reveal.name}"
    against += (f", d_min {reveal.d_min}" if reveal.masked else "") + (", shuffled" if reveal.shuffle else "")
    against += f", {scheme.protocol.name}" * scheme.protocol.linked + ", as deployed"
    fitting, stops = list[str](), _TICKETS
    if scheme.form.tabular:
        fitting = ["linking orders" if reveal.shuffle else "level reading"]
        stops = _TICKETS if reveal.capacity(scheme.field, len(rows)) else _ROW
    elif not reveal.shuffle and scheme.form.power == 2:
        fitting = ["multilateration"]
    names = [name for name in fitting if name in wanted]
    reports = [Report(name, against, tuple(ROW_ATTACKS[name].run(oracle, rows)), stops) for name in names]
    if "probing" in wanted:
        probed = tuple(probing(oracle, rows, tickets=tickets))
        k, what = oracle.deployment.k, oracle.deployment.served
        each = f"one {what}" if k == 1 else f"{k} {what}s, of which this counts one"
        reports.append(Report("probing", against, probed, f"few tickets: each gives {each}"))
    return reports
