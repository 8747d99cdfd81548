"""An optimizer and its scheduler as values keyed by parameter name, so that any other split of the model can take them up.

    optimizer  ->  for each parameter: its state tensors and numbers, and the values of the group it is in (learning
                   rate, weight decay ..), with what the scheduler keeps for that group
    scheduler  ->  what it keeps for all groups: steps done, milestones, the schedulers inside it

Ranks hold parts of the model: `merged` puts their values together, `restore` picks out those of the parameters at hand.
Positions never matter: neither a parameter's place in its group nor a group's in the optimizer.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from partita.errors import CheckpointError, sentence_of
from partita.records import record
from partita.training.runtime.plain_json import from_plain, to_plain

Parameters = Sequence[tuple[str, nn.Parameter]]
MakeOptimizer = Callable[[list[tuple[str, nn.Parameter]]], torch.optim.Optimizer]
Scheduler = torch.optim.lr_scheduler.LRScheduler

#: A scheduler's lists with one element a group: base_lrs, _last_lr, max_lrs, min_lrs, base_momentums, lr_lambdas.
_BY_GROUP = re.compile(r"(lrs?|momentums|lambdas)$")
_MEMBERS = ("params", "param_names")  #: of a group: who is in it, not how it is trained


@dataclass(frozen=True)
class Group:
    """How some parameters are trained. Values are JSON, as `to_plain` makes it."""

    parameters: tuple[str, ...]
    values: Mapping[str, Any]  #: lr, weight_decay, betas ..
    schedule: Mapping[str, Any] | None = None  #: what the scheduler keeps for this group; None without a scheduler


@dataclass(frozen=True)
class OptimizerState:
    """Everything that an optimizer and its scheduler remember."""

    kind: str = ""  #: class of the optimizer; empty: there is none (a stage without parameters)
    tensors: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)  #: parameter -> field -> tensor
    numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: parameter -> field -> JSON
    groups: tuple[Group, ...] = ()
    scheduler_kind: str = ""  #: class of the scheduler; empty: there is none
    scheduler: Mapping[str, Any] = field(default_factory=dict)  #: what it keeps for all groups, as JSON


# ---- taking --------------------------------------------------------------------------------------------------------------


def optimizer_state(
    optimizer: torch.optim.Optimizer | None, parameters: Parameters, scheduler: Scheduler | None = None
) -> OptimizerState:
    """What an optimizer of these parameters, and its scheduler, remember. The tensors are the optimizer's own.

    Raises CheckpointError, which names the object and the field, for what could not be restored from a file.
    """
    if optimizer is None:
        return OptimizerState()
    kind, name_of = type(optimizer).__name__, {id(p): n for n, p in parameters}
    tensors: dict[str, dict[str, Tensor]] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for parameter, values in optimizer.state.items():
        name = name_of.get(id(parameter))
        if name is None:
            raise _unknown(kind, "state of", parameter)
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors.setdefault(name, {})[key] = value.detach()
            else:
                numbers.setdefault(name, {})[key] = to_plain(value, f"{kind}'s {key!r} of {name}")
    common, by_group = _schedule(scheduler, len(optimizer.param_groups))
    groups = []
    for k, group in enumerate(optimizer.param_groups):
        strangers = [p for p in group["params"] if id(p) not in name_of]
        if strangers:
            raise _unknown(kind, "group of", strangers[0])
        values = {
            key: to_plain(v, f"{kind}'s {key!r} of parameter group {k}")
            for key, v in group.items()
            if key not in _MEMBERS
        }
        groups.append(Group(tuple(name_of[id(p)] for p in group["params"]), values, by_group[k]))
    return OptimizerState(
        kind, tensors, numbers, tuple(groups), type(scheduler).__name__ if scheduler else "", common or {}
    )


def _unknown(kind: str, where: str, thing: object) -> CheckpointError:
    what = f"a tensor of shape {tuple(thing.shape)}" if isinstance(thing, Tensor) else repr(thing)
    return CheckpointError(
        f"{kind} has a {where} {what}, which is no parameter of the model: no checkpoint holds it",
        hint="let `optimizer` use the parameters that it is given, and keep state for them only",
    )


def _schedule(scheduler: Scheduler | None, groups: int) -> tuple[Any, list[Any]]:
    """(what a scheduler keeps for all groups, what it keeps for each), as JSON."""
    if scheduler is None:
        return None, [None] * groups
    kind = type(scheduler).__name__
    state = {k: to_plain(v, f"{kind}'s field {k!r}") for k, v in scheduler.state_dict().items()}
    return _split(state, groups)


def _split(state: Any, groups: int) -> tuple[Any, list[Any]]:
    """A scheduler's state apart: the lists with an element a group leave their element in each group's.

    >>> _split({"last_epoch": 4, "base_lrs": [0.1, 0.2], "_schedulers": [{"gamma": 0.9, "_last_lr": [1, 2]}]}, 2)[1]
    [{'base_lrs': 0.1, '_schedulers': [{'_last_lr': 1}]}, {'base_lrs': 0.2, '_schedulers': [{'_last_lr': 2}]}]
    """
    common: dict[str, Any] = {}
    each: list[dict[str, Any]] = [{} for _ in range(groups)]
    for key, value in state.items():
        if isinstance(value, list) and len(value) == groups and _BY_GROUP.search(key):
            for own, v in zip(each, value, strict=True):
                own[key] = v
        elif key == "_schedulers":
            parts = [_split(v, groups) for v in value]
            common[key] = [c for c, _ in parts]
            for k, own in enumerate(each):
                own[key] = [e[k] for _, e in parts]
        else:
            common[key] = value
    return common, list(each)


def _joined(common: Any, each: Sequence[Any]) -> dict[str, Any]:
    """What `_split` took apart.

    >>> _joined({"last_epoch": 4, "_schedulers": [{"a": 1}]}, [{"lrs": 3, "_schedulers": [{"lrs": 1}]}])
    {'last_epoch': 4, '_schedulers': [{'a': 1, 'lrs': [1]}], 'lrs': [3]}
    """
    state = dict(common)
    if "_schedulers" in common:
        state["_schedulers"] = [
            _joined(c, [e["_schedulers"][i] for e in each]) for i, c in enumerate(common["_schedulers"])
        ]
    keys = dict.fromkeys(k for e in each for k in e if k != "_schedulers")
    return state | {k: [e[k] for e in each] for k in keys}


def merged(states: Iterable[OptimizerState]) -> OptimizerState:
    """The states of several ranks as one; of a parameter that several have, the first one's.

    Raises CheckpointError where their schedulers disagree on what they keep for all groups: no other split could go on.
    """
    having = [s for s in states if s.kind]
    if not having:
        return OptimizerState()
    first = having[0]
    for other in having[1:]:
        differing = [k for k in first.scheduler if other.scheduler.get(k) != first.scheduler[k]]
        if differing:
            raise CheckpointError(
                f"{first.scheduler_kind}'s field {differing[0]!r} differs between the ranks: {first.scheduler[differing[0]]!r} "
                f"and {other.scheduler.get(differing[0])!r}",
                hint="let a scheduler depend on the step alone, not on the parameters of its rank",
            )
    seen: set[str] = set()
    groups: dict[str, Group] = {}
    for group in (g for s in having for g in s.groups):
        names = tuple(n for n in group.parameters if n not in seen)
        seen.update(names)
        key = json.dumps([group.values, group.schedule], sort_keys=True)
        known = groups.get(key, Group((), group.values, group.schedule))
        groups[key] = Group((*known.parameters, *names), group.values, group.schedule)
    return OptimizerState(
        first.kind,
        {n: t for s in reversed(having) for n, t in s.tensors.items()},
        {n: v for s in reversed(having) for n, v in s.numbers.items()},
        tuple(g for g in groups.values() if g.parameters),
        first.scheduler_kind,
        first.scheduler,
    )


# ---- as files ------------------------------------------------------------------------------------------------------------


def flat_tensors(state: OptimizerState) -> dict[str, Tensor]:
    """ "parameter/field" -> tensor."""
    return {f"{n}/{key}": t for n, fields in state.tensors.items() for key, t in fields.items()}


def to_json(state: OptimizerState) -> dict[str, Any]:
    """All but the tensors, as JSON values."""
    return {
        "kind": state.kind,
        "optimizer": {f"{n}/{key}": v for n, fields in state.numbers.items() for key, v in fields.items()},
        "groups": [
            {"parameters": list(g.parameters), "values": dict(g.values), "schedule": g.schedule} for g in state.groups
        ],
        "scheduler": {"kind": state.scheduler_kind, "fields": dict(state.scheduler)} if state.scheduler_kind else None,
    }


def from_json(value: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> OptimizerState:
    """The state that `to_json` and `flat_tensors` took apart. Raises CheckpointError for anything else."""
    words = words_of(value, "the optimizer's state")
    kind, fields = (words.scheduler.kind, words.scheduler.fields) if words.scheduler else ("", {})
    return OptimizerState(words.kind or "", _nested(tensors), _nested(words.optimizer), words.groups, kind, fields)


@dataclass(frozen=True)
class _Scheduler:
    kind: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Words:
    """What a checkpoint says of the optimizer beside its tensors."""

    kind: str | None
    optimizer: Mapping[str, Any]  #: "parameter/field" -> JSON
    groups: tuple[Group, ...]
    scheduler: _Scheduler | None


def words_of(value: Mapping[str, Any], what: str) -> Words:
    """Raises CheckpointError with every fault."""
    return record(Words, value, CheckpointError, what, hint="give an earlier checkpoint")


def _nested(flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path, value in flat.items():
        name, _, key = path.rpartition("/")
        found.setdefault(name, {})[key] = value
    return found


# ---- putting back --------------------------------------------------------------------------------------------------------


def restore(
    optimizer: torch.optim.Optimizer,
    parameters: Parameters,
    state: OptimizerState,
    scheduler: Scheduler | None = None,
    make: MakeOptimizer | None = None,
) -> None:
    """Give an optimizer of these parameters, and its scheduler, what `state` says of them.

    With `make`, which makes another optimizer like it, the state is compared with what the optimizer would keep itself.
    Raises CheckpointError where kinds, groups, fields, types or shapes do not fit; both may then be restored in part.
    """
    kind = type(optimizer).__name__
    if state.kind and state.kind != kind:
        raise CheckpointError(
            f"the checkpoint's optimizer is {state.kind}, the job's is {kind}",
            hint="resume with the optimizer that it was trained with, or load model.safetensors in the job's model",
        )
    with _misfits_told(kind):
        name_of = {id(p): n for n, p in parameters}
        groups = [_group_of(g, name_of, state) for g in optimizer.param_groups]
        for own, saved in zip(optimizer.param_groups, groups, strict=True):
            if saved is not None:
                values = _like(own, from_plain(saved.values), f"{kind}'s group of {saved.parameters[0]}")
                own.update(
                    {k: v.to(own[k].device) if isinstance(v, Tensor) and k in own else v for k, v in values.items()}
                )
        if make is not None:
            _check(state, _expected(make, parameters, optimizer))
        _load(optimizer, name_of, state)
        if scheduler is not None and state.scheduler_kind:
            _restore_scheduler(scheduler, state, groups)


@contextlib.contextmanager
def _misfits_told(kind: str) -> Iterator[None]:
    """Turns whatever a state that does not fit raises, in torch's own code too, into a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"the checkpoint's state does not fit {kind}: {sentence_of(error)}",
            hint="give an earlier checkpoint, or load model.safetensors in the job's model",
        ) from error


def _group_of(group: Mapping[str, Any], name_of: Mapping[int, str], state: OptimizerState) -> Group | None:
    """How the parameters of one of this optimizer's groups were trained; None where nothing is said of them."""
    names = [name_of[id(p)] for p in group["params"]]
    of = {n: g for g in state.groups for n in g.parameters}
    found = [(n, of[n]) for n in names if n in of]
    for name, other in found[1:]:
        first_name, first = found[0]
        differing = [k for k in first.values if other.values.get(k) != first.values[k]]
        if differing:
            raise CheckpointError(
                f"{first_name} and {name} are in one group of the job's optimizer, but were trained with {differing[0]} "
                f"{first.values[differing[0]]!r} and {other.values.get(differing[0])!r}",
                hint="resume with the groups that it was trained with, or load model.safetensors in the job's model",
            )
    return found[0][1] if found else None


def _like(own: Mapping[str, Any], saved: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The saved values, each of the form of the own one. Raises CheckpointError where one has another."""
    kept = {k: v for k, v in saved.items() if k not in _MEMBERS}
    for key, value in kept.items():
        if key in own and not _same_form(own[key], value):
            raise CheckpointError(
                f"{what}: {key} is {value!r} in the checkpoint, {own[key]!r} here",
                hint="resume with the optimizer and scheduler that it was trained with, or give an earlier checkpoint",
            )
    return kept


def _same_form(own: Any, saved: Any) -> bool:
    """
    >>> _same_form((0.9, 1), (0.5, 0.5)), _same_form(0.1, "x"), _same_form({"a": 1}, {"a": [2]}), _same_form(None, 3)
    (True, False, False, True)
    """
    if isinstance(own, Tensor) or isinstance(saved, Tensor):
        return isinstance(own, Tensor) and isinstance(saved, Tensor) and own.shape == saved.shape
    if own is None:  # not set: what may stand there is not known
        return not isinstance(saved, str | list)
    if isinstance(own, bool) or isinstance(saved, bool):
        return type(own) is type(saved)
    if isinstance(own, int | float):
        return isinstance(saved, int | float)
    if type(own) is not type(saved):
        return False
    if isinstance(own, dict):
        return all(k in saved and _same_form(v, saved[k]) for k, v in own.items() if isinstance(k, str))
    if isinstance(own, list | tuple):
        same_length = len(own) == len(saved) or isinstance(own, list)
        pairs = zip(own, saved, strict=True) if len(own) == len(saved) else ((own[0], v) for v in saved if own)
        return same_length and all(_same_form(a, b) for a, b in pairs)
    return True


Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype] | None]  #: field -> shape and type; None: no tensor


def _expected(
    make: MakeOptimizer, parameters: Parameters, optimizer: torch.optim.Optimizer
) -> Mapping[str, Layout] | None:
    """Parameter -> what the optimizer would keep for it, found by two steps without data; None where those fail.

    torch's optimizers all run on tensors without data but ASGD and Adafactor, which read a number. Raises whatever the
    step raises with the restored values where it works without them.
    """
    try:
        _trial(make, parameters, [])
    except Exception:
        return None
    return _trial(make, parameters, optimizer.param_groups)


def _trial(make: MakeOptimizer, parameters: Parameters, groups: Sequence[Mapping[str, Any]]) -> dict[str, Layout]:
    """What another optimizer keeps after two steps on tensors without data, with the values of `groups` if given."""
    copies = [(n, nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad)) for n, p in parameters]
    with torch.random.fork_rng(devices=[]):
        trial = make(copies)
        for k, group in enumerate(trial.param_groups):
            values = {key: v for key, v in (groups[k] if groups else {}).items() if key not in _MEMBERS}
            on_a_device = dict.fromkeys(("fused", "capturable", "foreach"), False)
            group.update({key: v for key, v in {**values, **on_a_device}.items() if key in group})
        for _ in range(2):
            for _, p in copies:
                p.grad = torch.zeros_like(p) if p.requires_grad else None
            trial.step()
    return {
        n: {
            key: (tuple(v.shape), v.dtype) if isinstance(v, Tensor) else None
            for key, v in trial.state[p].items()
            if v is not None
        }
        for n, p in copies
        if p in trial.state
    }


def _check(state: OptimizerState, expected: Mapping[str, Layout] | None) -> None:
    """Raise CheckpointError where a parameter's saved state is another than its optimizer keeps."""
    for name, layout in (expected or {}).items():
        tensors = state.tensors.get(name, {})
        numbers = [k for k, v in state.numbers.get(name, {}).items() if v is not None]
        if not tensors and not numbers:
            continue  # it had no gradient yet
        found: dict[str, Any] = {k: (tuple(t.shape), t.dtype) for k, t in tensors.items()} | dict.fromkeys(numbers)
        for key in dict.fromkeys((*layout, *found)):
            if key not in found or key not in layout or not _fits(layout[key], found[key]):
                raise CheckpointError(
                    f"{key!r} of {name} is {_words(found, key)} in the checkpoint; the optimizer keeps {_words(layout, key)}",
                    hint="give an earlier checkpoint, or load model.safetensors in the job's model",
                )


def _fits(wanted: Any, found: Any) -> bool:
    """A number stands for a tensor of no dimension, and the other way round."""
    if wanted is None or found is None:
        return all(x is None or x[0] == () for x in (wanted, found))
    return bool(wanted == found or wanted[0] == found[0] == ())


def _words(layout: Layout, key: str) -> str:
    if key not in layout:
        return "missing" if layout else "nothing"
    known = layout[key]
    return "a number" if known is None else f"{str(known[1]).removeprefix('torch.')} {list(known[0])}"


def _load(optimizer: torch.optim.Optimizer, name_of: Mapping[int, str], state: OptimizerState) -> None:
    """Each parameter's own fields into torch's state, which casts them to its type and device."""
    own = optimizer.state_dict()
    names = [name_of[id(p)] for g in optimizer.param_groups for p in g["params"]]  # numbered so by torch
    fields = {
        i: {**state.tensors.get(n, {}), **{k: from_plain(v) for k, v in state.numbers.get(n, {}).items()}}
        for i, n in enumerate(names)
    }
    optimizer.load_state_dict({**own, "state": {i: f for i, f in fields.items() if f}})


def _restore_scheduler(scheduler: Scheduler, state: OptimizerState, groups: Sequence[Group | None]) -> None:
    kind = type(scheduler).__name__
    if state.scheduler_kind != kind:
        raise CheckpointError(
            f"the checkpoint's scheduler is {state.scheduler_kind}, the job's is {kind}",
            hint="resume with the scheduler that it was trained with, or load model.safetensors in the job's model",
        )
    fresh, own = _schedule(scheduler, len(groups))
    each = [own[k] if g is None or g.schedule is None else g.schedule for k, g in enumerate(groups)]
    known = scheduler.state_dict()
    saved = {k: v for k, v in from_plain(_joined({**fresh, **state.scheduler}, each)).items() if k in known}
    scheduler.load_state_dict(_like(known, saved, kind))
