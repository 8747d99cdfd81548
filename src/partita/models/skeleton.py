"""The skeleton: the analytic form of a synchronous training step, its constants left to the data.

    t = S * norm_k( compute + traffic + slices, launch ) + hops + exchange + update + rest              one step
        S = (M + p - 1) / p       M micro-batches through p stages
        compute   a0 prod size^a_i * m^a_m * T^-a_T * n^a_n           m samples at once, T slices, n devices
        traffic   i0 prod size^i_i * m^i_m * T^-a_T                   activations read and written: all that is no product
        launch    b0 prod size^b_i                                    per micro-batch, whatever is in it
        slices    c0 prod size^c_i * m^c_m * (T-1)/T                  all-reduces inside the layers
        hops      d0 prod size^d_i * m^d_m * (M + p - 1) (p-1)/p      activations between stages
        exchange  e0 prod size^e_i * (R-1)/R * R^e_R / (T p)          gradients among R replicas
        across    h0 prod size^h_i * (h-1)/h * h^h_h / (T p)          ... and among h hosts
        update    f0 prod size^f_i / (T p)                      the optimizer
        rest      g0

Every size, rate and kind of a table has an exponent (a kind: a factor a level) in every term where it can matter. The
exponents have priors: what anybody would expect (twice the layers, twice the work; width squared; slices divide). The
data move them as far as they know better; in directions in which they say nothing, such as more devices than were ever
measured, the prior stands. Reconstructed: the form is that of an analytic S-SGD model with empirical constants
(Kavarakuntla 2023, abstract; Shi et al., arXiv 1805.03812), extended by slices and stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.models.capture.inputs import Parameters, Scale
from partita.models.capture.roles import BATCHES, Role, family
from partita.models.capture.table import Table
from partita.models.expression import Expression, Term
from partita.nouns.graph import FloatArray

COMPUTE, LAUNCH, EXCHANGE, ACTIVATIONS = range(4)
#  families that a term is proportional to, where a table has them: of compute, launch, exchange and update, activations
DECISIVE = ("operations", "", "parameters", "activations")
UNKNOWN = (0.5, 0.0, 0.2, 0.3)  #: a size of which the name says nothing
RATE = (-1.0, 0.0, -1.0, -1.0)
NOTHING = (0.0, 0.0, 0.0, 0.0)
SPREAD = ("devices", "hosts", "per_host", "data")
EXPONENTS = 5  #: terms in which a size has an exponent, about
GROWTH = 0.3  #: prior sd of the exponent by which an exchange grows beyond a ring's (n-1)/n; 1 is a parameter server's


@dataclass(frozen=True)
class Form:
    """What a table leaves open until the data decide."""

    batch_is_global: bool = True  #: "batch?" counts the samples of all devices together
    per_epoch: bool = False  #: the target is the time of a fixed number of samples, not of a step


@dataclass(frozen=True, eq=False)
class Step:
    """What a step consists of, row by row; each [rows]."""

    replicas: FloatArray
    slices: FloatArray
    stages: FloatArray
    devices: FloatArray
    hosts: FloatArray  #: machines that the devices stand in; 1 where no column tells
    samples: FloatArray  #: that go through at once
    micro_batches: FloatArray
    batch: FloatArray  #: samples of one replica


def step_of(table: Table, roles: Mapping[str, Role], form: Form) -> Step:
    """The counts that the roles of the columns stand for."""
    one = np.ones(len(table))

    def product(role: Role) -> FloatArray:
        found: FloatArray = np.prod([one, *(table.numbers(n) for n, r in roles.items() if r == role)], axis=0)
        return found

    has = set(roles.values())
    t, p = product("tensor"), product("pipeline")
    hosts = product("hosts")
    if "devices" in has or "per_host" in has or ("hosts" in has and "data" not in has):
        n = product("devices") if "devices" in has else product("per_host") * hosts
    else:
        n = product("data") * t * p
    replicas = product("data") if "data" in has else np.maximum(n / (t * p), 1.0)
    if "local_batch" in has or ("batch?" in has and not form.batch_is_global and "batch" not in has):
        batch = product("local_batch" if "local_batch" in has else "batch?")
    elif has & {"batch", "batch?"}:
        batch = product("batch" if "batch" in has else "batch?") / replicas
    else:
        batch = product("micro_batch") * product("micro_batches")
    samples = np.minimum(product("micro_batch"), batch) if "micro_batch" in has else batch
    return Step(replicas, t, p, n, hosts, samples, np.maximum(batch / samples, 1.0), batch)


def skeleton(table: Table, roles: Mapping[str, Role], form: Form, scale: Scale, parameters: Parameters) -> Expression:
    """The expression over the rows of `table`; the parameters handed out depend on roles and scale only."""
    step, has = step_of(table, roles, form), set(roles.values())
    once = 1.0 / (step.batch * step.replicas) if form.per_epoch else np.ones(len(table))
    slots, shard = once * (step.micro_batches + step.stages - 1) / step.stages, once / (step.slices * step.stages)
    samples = np.log(step.samples)

    def term(
        name: str,
        phi: FloatArray,
        column: int,
        powers: Sequence[tuple[str, float, float, FloatArray]],
        group: int,
        side: int = 0,
        owner: str = "",
    ) -> Term:
        entries = [(parameters.add(name, 0.0, 3.0), np.ones(len(table)))]
        # in brackets, so that a column of the same name keeps an exponent of its own
        entries += [(parameters.add(f"{name}^({what})", mean, sd), x) for what, mean, sd, x in powers]
        entries += _columns(table, roles, scale, parameters, name, column)
        return Term(name, phi, np.stack([x for _, x in entries], axis=1), np.array([i for i, _ in entries], np.int64), group, side)  # fmt: skip

    batched = [("samples", 1.0, 0.3, samples)] if has & set(BATCHES) else []
    sliced = [("slices", -0.9, 0.3, np.log(step.slices))] if "tensor" in has else []
    crowd = [("devices", 0.0, 0.1, np.log(step.devices))] if has & set(SPREAD) else []
    terms = [
        term("compute", slots, COMPUTE, [*batched, *sliced, *crowd], 0),
        term("traffic", slots, ACTIVATIONS, [*batched, *sliced], 0),
        term("launch", slots, LAUNCH, [], 0, side=1),
        term("update", shard, EXCHANGE, [], 1),
    ]
    if "tensor" in has:
        terms.append(term("slices", slots * (step.slices - 1) / step.slices, ACTIVATIONS, batched, 0))
    if "pipeline" in has:
        crossings = once * (step.micro_batches + step.stages - 1) * (step.stages - 1) / step.stages
        terms.append(term("hops", crossings, ACTIVATIONS, batched, 1))
    if has & set(SPREAD):
        ring = shard * (step.replicas - 1) / step.replicas
        terms.append(term("exchange", ring, EXCHANGE, [("replicas", 0.0, GROWTH, np.log(step.replicas))], 1))
    if "hosts" in has:
        ring = shard * (step.hosts - 1) / step.hosts
        terms.append(term("across", ring, EXCHANGE, [("hosts", 0.0, GROWTH, np.log(step.hosts))], 1))
    rest = np.array([parameters.add("rest", 0.0, 3.0)], np.int64)
    terms.append(Term("rest", np.ones(len(table)), np.ones((len(table), 1)), rest, 1))
    return Expression(tuple(terms), (parameters.add("overlap", 1.0, 0.7), -1))


def _columns(
    table: Table, roles: Mapping[str, Role], scale: Scale, parameters: Parameters, owner: str, column: int
) -> list[tuple[int, FloatArray]]:
    """(parameter, values) of every size, rate and kind in one term."""
    found: list[tuple[int, FloatArray]] = []
    means, told = _expected(roles, column)
    for name, role in roles.items():
        if name in means:
            sd = (0.3 if told else 0.5) * _learnable(scale.values[name])
            found.append((parameters.add(f"{owner}^{name}", means[name], sd), scale.log(table, name)))
        elif role == "kind":
            for level, x in scale.indicators(table, name).items():
                found.append((parameters.add(f"{owner}:{name}={level}", 0.0, 0.7), x))
    return found


def _learnable(values: int) -> float:
    """By how much less the exponents of a column may leave their priors when it has few different values: k values are
    k - 1 contrasts, which about EXPONENTS terms share. Else a constant and a steep term pass for a shallow one."""
    return min(1.0, ((values - 1) / EXPONENTS) ** 0.5) if values > 1 else 1.0


def _expected(roles: Mapping[str, Role], column: int) -> tuple[dict[str, float], bool]:
    """(column -> exponent expected in a term, whether one column is the very quantity): every quantity counts once.

    A column of flops says all of computing; else a composition (parameters, tokens) says nothing where what it is composed
    of is there; columns of one family share its exponent.
    """
    sizes = {n: family(n) for n, r in roles.items() if r == "size"}
    names = [f.name for f in sizes.values() if f is not None]
    told = DECISIVE[column] in names
    parts = bool({"depth", "width"} & set(names))
    means = {n: RATE[column] if r == "rate" else 0.0 for n, r in roles.items() if r in ("rate", "other")}
    for name, known in sizes.items():
        if told:
            means[name] = float(known is not None and known.name == DECISIVE[column]) / names.count(DECISIVE[column])
        elif known is None:
            means[name] = UNKNOWN[column]
        elif known.composed and parts:
            means[name] = 0.0
        else:
            means[name] = known.exponents[column] / names.count(known.name)
    return means, told


def started(expression: Expression, times: FloatArray, parameters: Parameters) -> FloatArray:
    """[parameters] the priors with every term's coefficient at a plausible size: computing most of the time, the rest little."""
    mean = np.array(parameters.mean)
    for t in expression.terms:
        active = t.phi[t.phi > 0]
        level = np.median(np.log(times)) - (np.log(np.median(active)) if len(active) else 0.0)
        exponents = t.design[:, 1:] @ mean[t.columns[1:]]
        mean[t.columns[0]] = level - float(np.median(exponents)) - (0.5 if t.name == "compute" else 2.0)
    return mean
