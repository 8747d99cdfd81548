"""A flow unfolded: every task that could run, each once, and what each choose would compare.

    unfold(value) -> FlowGraph

A value becomes a table of branches: the options taken, and the node that computes it there. A call joins the tables of its
arguments on the names they share (a hash join: O(rows in + rows out) for each pair of sets of names); calls with equal keys
are one node, whatever branches they come from: that is the sharing. Nothing is computed.

Nodes are numbered so that each stands behind those it needs. Three kinds: `call`, a task; `choose`, which stands for the
winner that the run finds; `gather`, which stands for a list. The last two are no tasks and move no data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, TypeAlias

from partita.dataflow.flow import Call, Choose, Explore, Gather, Shape, Step, Value
from partita.dataflow.keys import Memo, Ref, key_of
from partita.dataflow.select import First, Halving, Select, Threshold
from partita.errors import FlowError, sentence_of

Options: TypeAlias = dict[str, int]  #: name -> which option
Kind: TypeAlias = Literal["call", "choose", "gather"]
Rows: TypeAlias = list[tuple[Options, Any]]
MOST_NODES = 1_000_000
MOST_WITHIN = 100  #: deeper ones would be more calls in each other than Python allows


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands in a task's arguments for the result of the node that its `needs` have at this place."""

    place: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """One branch that a choose compares."""

    options: Mapping[str, str]  #: the names that are chosen over -> label of the option
    value: int  #: node
    score: int  #: node
    config: int = 0  #: of a halving: which options apart from the budget
    rung: int = 0  #: of a halving: which budget


@dataclass(frozen=True, slots=True)
class Choice:
    """What a choose node compares."""

    name: str
    over: tuple[str, ...]
    select: Select
    shape: Shape
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One task, one choice or one list."""

    kind: Kind
    key: str
    label: str  #: of the step, for people
    options: Mapping[str, str]  #: name -> label of the option, of one branch it is on
    needs: tuple[int, ...]
    step: int = -1  #: of a call
    arguments: tuple[tuple[str, Any], ...] = ()  #: of a call: with a `Slot` for each need
    choice: Choice | None = None


@dataclass(frozen=True, eq=False)
class FlowGraph:
    """Nodes 0 .. n-1, and the results asked for."""

    nodes: tuple[Node, ...]
    steps: tuple[Step, ...]
    sinks: tuple[tuple[Mapping[str, str], int], ...]  #: (options that nothing chose over, node)
    names: Mapping[str, tuple[str, ...]]  #: of an explore -> labels of its options
    configurations: int  #: ways to take one option of everything: what running them one after another would run
    applied: int  #: calls that this would be, without sharing

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """[n] the nodes that read each, as often as they do."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for k, node in enumerate(self.nodes):
            for need in node.needs:
                found[need].append(k)
        return tuple(map(tuple, found))

    @cached_property
    def lasting(self) -> tuple[bool, ...]:
        """[n] whether a result may be kept from run to run: neither its step nor one upstream forbids it."""
        found: list[bool] = []
        for node in self.nodes:  # needs stand before those that need them
            found.append((node.kind != "call" or self.steps[node.step].cache) and all(found[n] for n in node.needs))
        return tuple(found)

    @cached_property
    def tasks(self) -> int:
        return sum(n.kind == "call" for n in self.nodes)

    @cached_property
    def branches(self) -> int:
        """Candidates of all choices, and results that nothing chose between."""
        chosen = sum(len(n.choice.candidates) for n in self.nodes if n.choice)
        return chosen + (len(self.sinks) if len(self.sinks) > 1 or not chosen else 0)


def unfold(value: object) -> FlowGraph:
    """The tasks of a flow that returned `value`. Raises FlowError with what cannot be unfolded, and why."""
    told = list(value) if isinstance(value, list | tuple) else [value]
    values = [v for v in told if isinstance(v, Value)]
    if len(values) < len(told) or not values:
        lost = next((v for v in told if not isinstance(v, Value)), value)
        raise FlowError(f"the flow returned {lost!r}, no value of a step", hint="return what a step or a choose gave")
    unfolding = _Unfolding()
    sinks = [(unfolding.labelled(options), node) for v in values for options, node in unfolding.nodes_of(v)]
    configurations, applied = _one_after_another(values, unfolding.names)
    return FlowGraph(
        tuple(unfolding.nodes), tuple(unfolding.steps), tuple(sinks), {n: e.labels for n, e in unfolding.names.items()},
        configurations, applied,
    )  # fmt: skip


@dataclass
class _Unfolding:
    """Tables of the values met, and the nodes made of them."""

    nodes: list[Node] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    place: dict[int, int] = field(default_factory=dict)  #: id(step) -> its place in `steps`
    names: dict[str, Explore] = field(default_factory=dict)
    by_key: dict[str, int] = field(default_factory=dict)
    tables: dict[int, Rows] = field(default_factory=dict)  #: id(value) -> its branches
    held: list[Value] = field(default_factory=list)  #: so that ids stay their own
    level: dict[str, int] = field(default_factory=dict)  #: name -> how many steps stand before its first use
    depth: list[int] = field(default_factory=list)  #: [nodes] steps on the longest way to it
    within: list[int] = field(
        default_factory=list
    )  #: [nodes] chooses and lists directly in each other that it stands for
    lists: list[bool] = field(default_factory=list)  #: [nodes] whether it stands for a list of results
    memo: Memo = field(default_factory=Memo)
    alike: set[tuple[int, int]] = field(default_factory=set)  #: steps that were compared and found to be the same

    def table(self, value: Value) -> Rows:
        """[(options, node)] of a value; those below it first, so that no chain is too long to recurse into."""
        waiting = [value]
        while waiting:
            v = waiting[-1]
            below = [x for x in _below(v) if id(x) not in self.tables]
            if below:
                waiting += below
                if len(waiting) > MOST_NODES:
                    raise FlowError(
                        f"more than {MOST_NODES:,} values wait for each other: a cycle", hint="a flow has no circles"
                    )
                continue
            waiting.pop()
            if id(v) not in self.tables:
                self.held.append(v)
                self.tables[id(v)] = self._table(v)
        return self.tables[id(value)]

    def _table(self, value: Value) -> Rows:
        if isinstance(value, Call):
            return self._called(value)
        if isinstance(value, Choose):
            return self._chosen(value)
        if isinstance(value, Gather):
            return self._gathered(value)
        if isinstance(value, Explore):
            return self._explored(value)
        raise FlowError(
            f"a value of the unknown kind {type(value).__name__}", hint="use step, explore, choose and gather"
        )

    def _explored(self, e: Explore) -> Rows:
        """A row for each option: its value, or, where that is one of the flow, each of its branches."""
        known = self.names.setdefault(e.name, e)
        if known is not e and (known.labels != e.labels or known.ordered != e.ordered):
            raise FlowError(
                f"two explores are called {e.name!r}, with {', '.join(known.labels)[:80]} and {', '.join(e.labels)[:80]}",
                hint="give them different names, or use the same one twice",
            )
        rows: Rows = []
        for k, option in enumerate(e.options):
            inner = self._argument(option)
            clash = next((o for o, _ in inner if e.name in o), None)
            if clash is not None:
                raise FlowError(f"an option of explore {e.name!r} depends on {e.name!r} itself: a cycle", hint="give the inner explore another name")  # fmt: skip
            rows += [({e.name: k, **options}, found) for options, found in inner]
        return rows

    def _argument(self, argument: Any) -> Rows:
        """[(options, template)]: an argument with `_Of(node)` where a value stood."""
        if isinstance(argument, Explore):
            return self.tables[id(argument)]
        if isinstance(argument, Value):
            return [(options, _Of(node)) for options, node in self.tables[id(argument)]]
        if not _holds_value(argument):
            return [({}, argument)]
        if isinstance(argument, dict):
            keys = list(argument)
            return [
                (o, dict(zip(keys, row, strict=True))) for o, row in joined([self._argument(argument[k]) for k in keys])
            ]
        return [(o, type(argument)(row)) for o, row in joined([self._argument(x) for x in argument])]

    def _called(self, call: Call) -> Rows:
        """A node for each combination of options that the arguments allow."""
        self._use(call)
        step = self.place.setdefault(id(call.step), len(self.steps))
        self.steps += [call.step] if step == len(self.steps) else []
        names = [name for name, _ in call.arguments]
        rows: Rows = []
        for options, row in joined([self._argument(a) for _, a in call.arguments]):
            needs: list[int] = []
            arguments = tuple((n, _slotted(a, needs)) for n, a in zip(names, row, strict=True))
            node = self._node("call", call.step, options, tuple(needs), step, arguments)
            self._check_version(node, call.step)
            rows.append((options, node))
            if len(self.nodes) > MOST_NODES:
                raise FlowError(f"the flow has more than {MOST_NODES:,} tasks", hint="explore fewer options")
        return rows

    def _node(
        self,
        kind: Kind,
        step: Step,
        options: Options,
        needs: tuple[int, ...],
        place: int,
        arguments: tuple[tuple[str, Any], ...],
    ) -> int:
        told = {n: _told(a, needs, self.nodes) for n, a in arguments}
        try:
            key = key_of(step.function, told, step.version, self.memo)
        except RecursionError as error:
            raise FlowError(
                f"an argument of step {step.name}: {sentence_of(error)}", hint="hand in something flatter"
            ) from error
        return self._add(Node(kind, key, step.name, self.labelled(options), needs, place, arguments))

    def _check_version(self, node: int, step: Step) -> None:
        """Raise FlowError where a named version stands for two functions, so that one would be taken for the other."""
        known = self.steps[self.nodes[node].step]
        pair = (id(known), id(step))
        if known.function is step.function or step.version is None or pair in self.alike:
            return
        if not _same_code(known.function, step.function, self.memo):
            raise FlowError(f"two steps are called {step.name} and have the version {step.version!r}", hint="name another version, or leave it out: then their code tells")  # fmt: skip
        self.alike.add(pair)

    def _add(self, node: Node) -> int:
        found = self.by_key.get(node.key)
        if found is None:
            found = self.by_key[node.key] = len(self.nodes)
            self.nodes.append(node)
            self.depth.append((node.kind == "call") + max((self.depth[n] for n in node.needs), default=0))
            within = 1 + max((self.within[n] for n in node.needs), default=0) if node.kind != "call" else 0
            if within > MOST_WITHIN:
                raise FlowError(
                    f"more than {MOST_WITHIN} chooses and lists directly in each other", hint="put a step between them"
                )
            self.within.append(within)
            self.lists.append(self._is_list(node))
        return found

    def _is_list(self, node: Node) -> bool:
        if node.choice is None:
            return node.kind == "gather"
        return not node.choice.select.single or any(self.lists[c.value] for c in node.choice.candidates)

    def _use(self, call: Call) -> None:
        """Note how early the names that a call explores itself are used."""
        needs = (n for v in _below(call) if not isinstance(v, Explore) for _, n in self.tables[id(v)])
        depth = max((self.depth[n] for n in needs), default=0)
        for v in _below(call):
            if isinstance(v, Explore):
                self.level[v.name] = min(self.level.get(v.name, depth), depth)

    def _chosen(self, choose: Choose) -> Rows:
        rows = joined([self.nodes_of(choose.value), self.nodes_of(choose.by)])
        over = self._over(choose.over, rows, f"choose {choose.name}".strip(), all_of=self.nodes_of(choose.value))
        budget = choose.select.budget if isinstance(choose.select, Halving) else ""
        if budget and budget not in over:
            over = (*over, *self._over((budget,), rows, f"choose {choose.name}".strip(), all_of=rows))
        self._check_order(choose, over, budget)
        said = choose.name or f"choose {', '.join(over)}"
        if any(self.lists[score] for _, (_, score) in rows):
            raise FlowError(f"a score of {said} is a list, and not one number", hint="apply a step to it that gives one, e.g. their mean")  # fmt: skip
        found: Rows = []
        for options, group in _grouped(rows, over):
            candidates = self._candidates(group, over, budget)
            needs = tuple(n for c in candidates for n in (c.value, c.score))
            choice = Choice(said, over, choose.select, choose.shape, candidates)
            told = {"select": repr(choose.select), "shape": repr(choose.shape), "of": [(Ref(self.nodes[c.value].key), Ref(self.nodes[c.score].key), c.config, c.rung) for c in candidates]}  # fmt: skip
            key = key_of(_chosen_by, told, "1", self.memo)
            found.append((options, self._add(Node("choose", key, said, self.labelled(options), needs, choice=choice))))
        return found

    def nodes_of(self, value: Value) -> Rows:
        """A value's table with nodes in it. Raises FlowError for an explore that has options of another kind."""
        rows = self.table(value)
        if isinstance(value, Explore):
            if any(not isinstance(found, _Of) for _, found in rows):
                raise FlowError(
                    f"no step was applied to explore {value.name!r}, whose options are no values of steps",
                    hint="apply a step to it first",
                )
            return [(options, found.node) for options, found in rows]
        return rows

    def _over(self, told: tuple[str, ...], rows: Rows, what: str, all_of: Rows) -> tuple[str, ...]:
        """The names to take away, those that are used first before the others: then neighbours share most."""
        there = dict.fromkeys(n for options, _ in (rows if told else all_of) for n in options)
        unknown = [n for n in told if n not in there]
        if unknown or not there:
            has = f"it depends on {', '.join(sorted(there))}" if there else "its value depends on no explore"
            raise FlowError(f"{what} over {', '.join(unknown) or 'nothing'} has no branches: {has}", hint="name an explore that the value depends on")  # fmt: skip
        return tuple(sorted(told or there, key=lambda n: self.level.get(n, 0)))

    def _check_order(self, choose: Choose, over: tuple[str, ...], budget: str) -> None:
        """Raise FlowError where order means something and is not declared."""
        if choose.shape is not None and (len(over) != 1 or not self.names[over[0]].ordered):
            raise FlowError(f"a {choose.shape} choose over {', '.join(over)}", hint="a shape needs one name, of an explore with ordered=True")  # fmt: skip
        if choose.shape is not None and budget:
            raise FlowError("a halving with a shape", hint="declare one of the two")
        if choose.shape == "convex" and isinstance(choose.select, Threshold | First):
            raise FlowError(
                f"a convex choose that keeps {choose.select}", hint="a threshold needs shape='monotone', or none"
            )
        if budget and not (budget in self.names and self.names[budget].ordered):
            raise FlowError(f"halving over {budget!r}", hint="name an explore with ordered=True, budgets that grow")
        if budget and len(over) < 2:
            raise FlowError(f"halving over {budget!r} alone", hint="name what the budgets are for: over='lr'")

    def _candidates(self, group: Rows, over: tuple[str, ...], budget: str) -> tuple[Candidate, ...]:
        """In the order of their options, the name used first slowest."""
        rows = sorted(group, key=lambda row: [row[0].get(n, -1) for n in over])
        configs: dict[tuple[Any, ...], int] = {}
        found = []
        for k, (options, (value, score)) in enumerate(rows):
            rest = tuple(options.get(n, -1) for n in over if n != budget)
            config = configs.setdefault(rest, len(configs)) if budget else k
            taken = self.labelled({n: options[n] for n in over if n in options})
            found.append(Candidate(taken, value, score, config, options.get(budget, 0)))
        return tuple(found)

    def _gathered(self, gather: Gather) -> Rows:
        rows = self.nodes_of(gather.value)
        over = self._over(gather.over, rows, "gather", rows)
        found: Rows = []
        for options, group in _grouped(rows, over):
            ordered = sorted(group, key=lambda row: [row[0].get(n, -1) for n in over])
            needs = tuple(node for _, node in ordered)
            key = key_of(_chosen_by, {"of": [Ref(self.nodes[n].key) for n in needs]}, "gather 1", self.memo)
            found.append(
                (options, self._add(Node("gather", key, f"gather {', '.join(over)}", self.labelled(options), needs)))
            )
        return found

    def labelled(self, options: Options) -> dict[str, str]:
        names = self.names
        return {name: names[name].labels[k] for name, k in options.items()}


def _same_code(one: Callable[..., Any], other: Callable[..., Any], memo: Memo) -> bool:
    """Whether two functions do the same; those that cannot be told do not."""
    try:
        return key_of(one, {}, None, memo) == key_of(other, {}, None, memo)
    except FlowError:
        return False


def _chosen_by() -> None:
    """Stands for choices in keys."""


@dataclass(frozen=True, slots=True)
class _Of:
    """The result of a node, in an argument."""

    node: int


def _below(value: Value) -> Iterator[Value]:
    """The values that a value is made of directly."""
    if isinstance(value, Call):
        yield from _values([a for _, a in value.arguments])
    elif isinstance(value, Explore):
        yield from _values(list(value.options))
    elif isinstance(value, Choose):
        yield from (value.value, value.by)
    elif isinstance(value, Gather):
        yield value.value


def _values(argument: Any) -> Iterator[Value]:
    if isinstance(argument, Value):
        yield argument
    elif type(argument) in (list, tuple):
        for x in argument:
            yield from _values(x)
    elif type(argument) is dict:
        for x in argument.values():
            yield from _values(x)


def _holds_value(argument: Any) -> bool:
    return next(_values(argument), None) is not None


def _replaced(argument: Any, holds: Callable[[_Of], Any]) -> Any:
    """An argument with something else for each node in it."""
    if isinstance(argument, _Of):
        return holds(argument)
    if type(argument) in (list, tuple):
        return type(argument)(_replaced(x, holds) for x in argument)
    if type(argument) is dict:
        return {k: _replaced(x, holds) for k, x in argument.items()}
    return argument


def _slotted(argument: Any, needs: list[int]) -> Any:
    def slot(of: _Of) -> Slot:
        if of.node not in needs:
            needs.append(of.node)
        return Slot(needs.index(of.node))

    return _replaced(argument, slot)


def _told(argument: Any, needs: Sequence[int], nodes: Sequence[Node]) -> Any:
    """An argument for its key: upstream results by their keys."""
    if isinstance(argument, Slot):
        return Ref(nodes[needs[argument.place]].key)
    if type(argument) in (list, tuple):
        return type(argument)(_told(x, needs, nodes) for x in argument)
    if type(argument) is dict:
        return {k: _told(x, needs, nodes) for k, x in argument.items()}
    return argument


def joined(tables: Sequence[Rows]) -> list[tuple[Options, list[Any]]]:
    """The natural join: rows that agree in every name they share, in the order of the tables.

    >>> a, b = [({"x": 0}, "a0"), ({"x": 1}, "a1")], [({"x": 1, "y": 0}, "b")]
    >>> joined([a, b])
    [({'x': 1, 'y': 0}, ['a1', 'b'])]
    """
    found: list[tuple[Options, list[Any]]] = [({}, [])]
    for table in tables:
        if len(table) == 1 and not table[0][0]:
            for _, row in found:
                row.append(table[0][1])
            continue
        found = _join(found, table)
    return found


def _join(left: list[tuple[Options, list[Any]]], right: Rows) -> list[tuple[Options, list[Any]]]:
    """O(left + right + out) for each pair of sets of names; which names a row has depends on the options taken.

    Raises FlowError where there would be more than MOST_NODES rows.
    """
    by_names: dict[frozenset[str], Rows] = {}
    for row in right:
        by_names.setdefault(frozenset(row[0]), []).append(row)
    indexes: dict[tuple[frozenset[str], tuple[str, ...]], dict[tuple[int, ...], Rows]] = {}
    found = []
    for options, items in left:
        for names, rows in by_names.items():
            shared = tuple(sorted(names & options.keys()))
            index = indexes.get((names, shared))
            if index is None:
                index = indexes[names, shared] = {}
                for row in rows:
                    index.setdefault(tuple(row[0][n] for n in shared), []).append(row)
            for other, item in index.get(tuple(options[n] for n in shared), ()):
                found.append(({**options, **other}, [*items, item]))
            if len(found) > MOST_NODES:
                raise FlowError(f"the flow has more than {MOST_NODES:,} tasks", hint="explore fewer options")
    return found


def _grouped(rows: Sequence[tuple[Options, Any]], over: Sequence[str]) -> list[tuple[Options, Rows]]:
    """Rows that differ only in the names `over`, together."""
    groups: dict[tuple[tuple[str, int], ...], tuple[Options, Rows]] = {}
    for options, item in rows:
        rest = {n: k for n, k in options.items() if n not in over}
        groups.setdefault(tuple(sorted(rest.items())), (rest, []))[1].append((options, item))
    return list(groups.values())


def _one_after_another(values: Sequence[Value], names: Mapping[str, Explore]) -> tuple[int, int]:
    """(configurations, calls) of running every configuration for itself: one option of every name, nothing shared.

    What is gathered, folds say, belongs to one configuration, which calls for each. Names whose options have names of their own
    count only those of the option taken. O(options that are values x values upstream of them).
    """
    configurations, calls = 0, Fraction(0)
    for value in values:
        seen, called = _upstream(value)
        gathered, times = _gathered_calls(value, names)
        inner = _inside(value)
        inside = {m for options in inner.values() for found, _ in options for m in found}
        ways, each = 1, Fraction(sum(times[c] for c in called))
        for n in seen - inside - gathered:
            options = inner.get(n) or [(set[str](), set[int]())] * len(names[n].options)
            of = [math.prod(len(names[m].options) for m in found - gathered) for found, _ in options]
            ways *= sum(of)
            each -= sum(times[c] for c in set[int]().union(*(cs for _, cs in options)))
            each += Fraction(
                sum(w * sum(times[c] for c in cs) for w, (_, cs) in zip(of, options, strict=True)), sum(of)
            )
        configurations += ways
        calls += ways * each
    return configurations, round(calls)


def _inside(value: Value) -> dict[str, list[tuple[set[str], set[int]]]]:
    """name -> for each of its options that are values, (names, calls) that these are made of, over all explores of that name."""
    found: dict[str, list[tuple[set[str], set[int]]]] = {}
    for e in _all_below(value):
        if isinstance(e, Explore) and any(isinstance(o, Value) for o in e.options):
            rows = found.setdefault(e.name, [(set(), set()) for _ in e.options])
            for (names, calls), option in zip(rows, e.options, strict=True):
                for v in _values(option):
                    more = _upstream(v)
                    names |= more[0]
                    calls |= more[1]
    return found


def _gathered_calls(value: Value, names: Mapping[str, Explore]) -> tuple[set[str], dict[int, int]]:
    """(names that are gathered, id of each call -> how often one configuration calls it: for each option of those it depends on)."""
    below = list(_all_below(value))
    gathered = {n for v in below if isinstance(v, Gather) for n in v.over}
    depends: dict[int, set[str]] = {}
    for v in below:  # what a value is made of stands before it
        on = set[str]().union(*(depends[id(x)] for x in _below(v)))
        if isinstance(v, Explore):
            on |= {v.name} & gathered
        depends[id(v)] = on - set(v.over) if isinstance(v, Gather) else on
    return gathered, {k: math.prod(len(names[n].options) for n in on) for k, on in depends.items()}


def _all_below(value: Value) -> Iterator[Value]:
    """A value and all that it is made of, each once, behind what it is made of itself."""
    done: set[int] = set()
    waiting = [value]
    while waiting:
        v = waiting[-1]
        below = [x for x in _below(v) if id(x) not in done]
        if below:
            waiting += below
            continue
        waiting.pop()
        if id(v) not in done:
            done.add(id(v))
            yield v


def _upstream(value: Value) -> tuple[set[str], set[int]]:
    """(names explored, calls) that a value is made of."""
    names: set[str] = set()
    calls: set[int] = set()
    done: set[int] = set()
    waiting = [value]
    while waiting:
        v = waiting.pop()
        if id(v) in done:
            continue
        done.add(id(v))
        if isinstance(v, Call):
            calls.add(id(v))
        if isinstance(v, Explore):
            names.add(v.name)
        waiting += _below(v)
    return names, calls
