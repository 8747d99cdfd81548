"""TrainingJob: what a user hands over. A job is a Python function that returns one: `file.py:function`.

def job(data: str = "cifar") -> partita.TrainingJob:
    return partita.TrainingJob(
        model=lambda: MyResNet(),
        loss=torch.nn.functional.cross_entropy,
        batches=lambda epoch: my_batches(data, epoch),        # (inputs, target) pairs
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    )
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from partita.errors import JobError, PartitaError, place_of, refuse, sentence_of

drawing = threading.RLock()  #: held by who draws from the process's global generators, or puts others in their place

Precision = Callable[[], contextlib.AbstractContextManager[Any]]  #: what forwards run inside

Batch = tuple[Any, Any]  #: (inputs, target): each a tensor, or a tuple, list or dict of tensors


@dataclass(frozen=True)
class TrainingJob:
    """Everything that training needs. Every worker process calls the job's function, so it must give the same each time."""

    model: Callable[[], nn.Module] | nn.Module  #: a function is called after seeding, so all workers start alike
    loss: Callable[[Any, Any], Tensor]  #: (model output, target) -> scalar, the mean over the samples
    batches: Callable[[int], Iterable[Batch]]  #: epoch -> its batches, the same ones in every process
    optimizer: Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer]  #: gets (name, parameter) pairs
    scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = (
        None  #: stepped once a step
    )
    micro_batch_sizes: tuple[int, ...] = ()  #: sizes to measure; empty: a half, a quarter .. of the batch
    seed: int = 0
    clip_norm: float | None = None  #: gradients are scaled so that the norm of all of them is at most this
    autocast: torch.dtype | None = None  #: forwards and losses run under torch.autocast with this type, e.g. bfloat16

    def __post_init__(self) -> None:
        """Raises JobError with every field that cannot be used."""
        wanted = {
            "model": "torch.nn.Module or a function that returns one",
            "loss": "function (output, target)",
            "batches": "function (epoch)",
            "optimizer": "function (parameters)",
            **({"scheduler": "function (optimizer)"} if self.scheduler is not None else {}),
        }
        faults = [
            f"its {name} is a {type(getattr(self, name)).__name__}, not a {what}"
            for name, what in wanted.items()
            if not callable(getattr(self, name))
        ]
        clip, kind = self.clip_norm, self.autocast
        if clip is not None and not (isinstance(clip, int | float) and 0 < clip < math.inf):
            faults.append(f"its clip_norm is {clip!r}, not a number above 0")
        if kind not in (None, torch.bfloat16):
            faults.append(f"its autocast is {kind!r}; torch.bfloat16 is known (float16 needs a scaled loss)")
        refuse(
            JobError,
            faults,
            "the job",
            hint="see partita.TrainingJob: it takes functions, so that every worker can call them",
        )

    def precision(self, device: torch.device) -> Precision:
        """What forwards on a device run inside."""
        if self.autocast is None:
            return contextlib.nullcontext
        return functools.partial(torch.autocast, device.type, dtype=self.autocast)

    def build(self) -> nn.Module:
        """The model in training mode, initialised under the job's seed. Raises JobError where it is no module."""
        with drawing, users_code("its model"):
            torch.manual_seed(self.seed)
            model = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model()
        if not isinstance(model, nn.Module):
            raise JobError(
                f"the job's model is a {type(model).__name__}, not a torch.nn.Module",
                hint="let `model` be a module or a function that returns one",
            )
        return model.train()

    def optimizer_of(self, parameters: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """A fresh optimizer. Raises JobError where it is none, or one whose steps call the model."""
        with users_code("its optimizer"):
            made = self.optimizer(parameters)
        if not isinstance(made, torch.optim.Optimizer):
            raise JobError(
                f"the job's optimizer function returns a {type(made).__name__}, not a torch.optim.Optimizer",
                hint="let `optimizer` return one for the parameters that it gets",
            )
        if isinstance(made, torch.optim.LBFGS):
            raise JobError(
                "the job's optimizer is LBFGS, which runs the model several times a step",
                hint="use one whose step() needs no closure: SGD, AdamW, ...",
            )
        return made

    def example(self) -> Batch:
        """The first batch of the first epoch. Raises JobError where there is none or it is no (inputs, target) pair."""
        with users_code("its batches"):
            for batch in self.batches(0):
                return checked_batch(batch)
        raise JobError("the job's first epoch has no batches", hint="let `batches(0)` yield (inputs, target) pairs")


@contextlib.contextmanager
def users_code(what: str) -> Iterator[None]:
    """Turns whatever a part of the job raises into a JobError that names the line."""
    try:
        yield
    except PartitaError:
        raise
    except Exception as error:
        raise JobError(
            f"the job failed in {what}{place_of(error)}: {sentence_of(error)}", hint="correct that line of the job"
        ) from error


def checked_batch(batch: Any) -> Batch:
    """The batch as a pair. Raises JobError with what is wrong with it."""
    if not (isinstance(batch, tuple | list) and len(batch) == 2):
        raise JobError(
            f"a batch is a {type(batch).__name__}, not an (inputs, target) pair", hint="yield (inputs, target)"
        )
    return batch[0], batch[1]


def batch_size(batch: Batch) -> int:
    """Samples in a batch: the first dimension of its first tensor. Raises JobError where there is none."""
    first = batch[0] if isinstance(batch, tuple) and batch else None
    for leaf in [first] if isinstance(first, Tensor) and first.dim() > 0 else pytree.tree_leaves(batch):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            if leaf.shape[0] == 0:
                raise JobError("a batch has 0 samples", hint="leave empty batches out")
            return int(leaf.shape[0])
    raise JobError("a batch holds no tensor with a first dimension", hint="yield (inputs, target) with tensors in it")


def micro_batches(batch: Batch, size: int) -> Iterator[Batch]:
    """Cut a batch into micro-batches of `size` samples, the last one possibly smaller.

    Tensors whose first dimension is the batch are cut; everything else goes along whole.
    """
    shape = pytree.tree_structure(batch)
    for part in leaves_of_micro_batches(batch, size):
        inputs, target = pytree.tree_unflatten(part, shape)
        yield inputs, target


def leaves_of_micro_batches(batch: Batch, size: int) -> Iterator[list[Any]]:
    """The leaves of each micro-batch, in the order in which the captured inputs are numbered."""
    total, leaves = batch_size(batch), pytree.tree_leaves(batch)
    for start in range(0, total, size):
        yield [_cut(leaf, total, start, start + size) for leaf in leaves]


def check_alike(batch: Batch, example: Batch, which: str) -> None:
    """Raise JobError unless the batch has the example's structure, types and shapes; only its number of samples may differ.

    What was captured from the example holds for such batches only: numbers in them are part of the captured code.
    """
    if _same_form(batch, example):
        return  # as nearly all are, once a step: what follows takes as long as a small layer
    leaves, shape = pytree.tree_flatten(batch)
    wanted, wanted_shape = pytree.tree_flatten(example)
    faults = [] if shape == wanted_shape else ["another structure of tuples, lists and dicts"]
    sizes = batch_size(batch), batch_size(example)
    for k, (leaf, w) in enumerate(zip(leaves, wanted, strict=False)):
        found, known = _form(leaf, sizes[0]), _form(w, sizes[1])
        if found != known:
            faults.append(f"leaf {k} is {found}, not {known}")
    refuse(
        JobError,
        faults,
        f"{which} is unlike the first batch of the first epoch",
        hint="pad or crop to one shape; leave numbers that change out of the batch, or make them tensors",
        most=3,
    )


def _same_form(found: Any, wanted: Any) -> bool:
    """Tensors of the same shapes and types in the same tuples and lists, and nothing else."""
    if isinstance(found, Tensor) and isinstance(wanted, Tensor):
        return found.dtype == wanted.dtype and found.shape == wanted.shape
    if type(found) is not type(wanted) or not isinstance(found, tuple | list):
        return False
    return len(found) == len(wanted) and all(map(_same_form, found, wanted))


def _form(leaf: Any, samples: int) -> str:
    """ "torch.float32 [*, 3, 32, 32]"; of what is no tensor, itself."""
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    sizes = ["*" if i == 0 and n == samples else str(n) for i, n in enumerate(leaf.shape)]
    return f"{leaf.dtype} [{', '.join(sizes)}]"


def _cut(leaf: Any, total: int, start: int, end: int) -> Any:
    whole = not isinstance(leaf, Tensor) or leaf.dim() == 0 or leaf.shape[0] != total
    return leaf if whole else leaf[start:end]


def call(model: nn.Module, inputs: Any) -> Any:
    """model(inputs): a dict is spread as keywords, a tuple or list as positions."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def load_job(source: str, settings: Mapping[str, str] | None = None) -> TrainingJob:
    """The job that `file.py:function` returns, called with `settings` as keyword arguments.

    Raises JobError where the file or the function is missing, where calling it fails, or where it returns something else.
    """
    path, colon, name = source.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise JobError(f"{source!r} names no job", hint="write it as file.py:function")
    if not Path(path).is_file():
        raise JobError(f"{path} does not exist", hint="check the path before the colon")
    function = getattr(_load_module(Path(path)), name, None)
    if not callable(function):
        raise JobError(f"{path} has no function {name!r}", hint="check the name after the colon")
    try:
        job = function(**(settings or {}))
    except PartitaError:
        raise
    except (Exception, SystemExit) as error:
        raise JobError(
            f"{source} failed{place_of(error)}: {sentence_of(error)}",
            hint=f"call {name}() in Python to see the whole trace",
        ) from error
    if not isinstance(job, TrainingJob):
        raise JobError(
            f"{source} returned a {type(job).__name__}, not a partita.TrainingJob",
            hint="return partita.TrainingJob(...)",
        )
    return job


def _load_module(path: Path) -> Any:
    """The file as a module of its own; a second call gives the same one."""
    name = f"partita_job_{abs(hash(path.resolve()))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise JobError(
            f"{path} cannot be imported{place_of(error)}: {sentence_of(error)}", hint=f"run python {path}"
        ) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module
