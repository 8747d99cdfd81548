"""Small flows, and what they give when everything is computed for itself: an evaluator that shares nothing and prunes nothing."""

from __future__ import annotations

import itertools
import random
from typing import Any

from partita.dataflow import choose, explore, gather, largest, smallest, step
from partita.dataflow.flow import Call, Choose, Explore, Gather
from partita.dataflow.select import Best


@step
def begin(x: int) -> list[int]:
    return [x, 1]


@step
def mix(data: list[int], a: int) -> list[int]:
    return [(data[0] * 31 + a * 17 + 7) % 100_003, data[1] + 1]


@step
def join(one: list[int], other: list[int]) -> list[int]:
    return [(one[0] * 13 + other[0] * 5 + 1) % 100_003, one[1] + other[1]]


@step
def total(rows: list[list[int]]) -> list[int]:
    return [sum(r[0] for r in rows) % 100_003, len(rows)]


@step
def score(data: list[int]) -> float:
    return float((data[0] * 7919) % 100_019) + data[1] / 1000


def some_flow(seed: int) -> Any:
    """A random flow: steps in a row or joined, names explored here and there, chooses nested and one after another."""
    rng = random.Random(seed)
    value, names = begin(seed), []
    aside = value
    for k in range(rng.randrange(2, 7)):
        kind = rng.random()
        if kind < 0.55:
            name = f"n{k}"
            options: list[Any] = [rng.randrange(1000) for _ in range(rng.randrange(1, 5))]
            value = mix(value, explore(name, {f"{i}": o for i, o in enumerate(options)}))
            names.append(name)
        elif kind < 0.7:
            value = join(value, aside)
        elif kind < 0.8 and len(names) > 1:
            value, name = gather(value, over=names[-1]), names.pop()
            value = total(value)
        elif kind < 0.9 and names:
            name = f"m{k}"
            value = explore(name, {"a": mix(value, 3), "b": join(value, mix(aside, explore(f"inner{k}", [1, 2])))})
            names += [name]
            value = mix(value, 0)
        else:
            aside = value if not names else aside
            value = mix(value, k)
        if names and rng.random() < 0.4:
            over = rng.sample(names, rng.randrange(1, len(names) + 1))
            inner = [f"inner{n[1:]}" for n in over if n.startswith("m")]
            value = choose(value, by=score(value), over=[*over, *inner], select=rng.choice([largest(), smallest()]))
            names = [n for n in names if n not in over]
            value = mix(value, 1)
    return choose(value, by=score(value)) if names else value


def plainly(value: Any, env: dict[str, int]) -> Any:
    """What a value is, where every explore in `env` is decided; everything is computed anew."""
    if isinstance(value, Call):
        return value.step.function(**{n: plainly(a, env) for n, a in value.arguments})
    if isinstance(value, Explore):
        return plainly(value.options[env[value.name]], env)
    if isinstance(value, Gather):
        return [plainly(value.value, e) for e in settings(value.value, env)]
    if isinstance(value, Choose):
        rows = [(plainly(value.by, e), plainly(value.value, e)) for e in settings(value.value, env)]
        select = value.select
        assert isinstance(select, Best)
        sign = 1 if select.largest else -1
        best = sorted(range(len(rows)), key=lambda i: -sign * rows[i][0])[: select.count]
        return rows[best[0]][1] if select.single else [rows[i][1] for i in best]
    if isinstance(value, list):
        return [plainly(v, env) for v in value]
    return value


def settings(value: Any, env: dict[str, int]) -> list[dict[str, int]]:
    """Every way to decide the explores that a value depends on and `env` leaves open."""
    explores = {e.name: e for e in depends(value, env)}
    open_ = [n for n in explores if n not in env]
    if not open_:
        return [env]
    found: list[dict[str, int]] = []
    for k in range(len(explores[open_[0]].options)):
        found += settings(value, {**env, open_[0]: k})
    return found


def depends(value: Any, env: dict[str, int]) -> list[Explore]:
    """Explores that a value depends on under `env`, without those that a choose or a gather takes away."""
    if isinstance(value, Call):
        return list(itertools.chain(*(depends(a, env) for _, a in value.arguments)))
    if isinstance(value, Explore):
        inner = depends(value.options[env[value.name]], env) if value.name in env else []
        return [value, *inner]
    if isinstance(value, Choose | Gather):
        return [e for e in depends(value.value, env) if e.name not in value.over]
    return []
