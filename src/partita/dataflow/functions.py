"""What a function does, as a digest: its compiled code, and everything of the user's own that it reads.

    code        instructions with their constants and names; comments, white space, docstrings and line numbers are not in it
    defaults    and keyword defaults, by content
    closure     what the cells hold, by content
    globals     functions and classes of the user's own files recursively, constants by content, modules by name and version
    imports     inside of the function: a library by its version, one's own file by its bytes

The compiled code is what runs, even where the file was edited since; it belongs to one version of Python, which is in the
digest. A function or class of a library (site-packages, the standard library) is its name and the library's version.
"""

from __future__ import annotations

import dis
import hashlib
import importlib.metadata
import importlib.util
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

Content: TypeAlias = Callable[[object], bytes]  #: the digest of a value

PYTHON = f"python {platform.python_version_tuple()[0]}.{platform.python_version_tuple()[1]}"
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD", "IMPORT_NAME")
_DULL = frozenset({"RESUME", "CACHE", "NOP", "EXTENDED_ARG", "PRECALL"})
_CLASS_DULL = frozenset({"__doc__", "__module__", "__qualname__", "__dict__", "__weakref__", "__annotations__", "__firstlineno__", "__static_attributes__", "__abstractmethods__", "_abc_impl", "__slotnames__", "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__parameters__", "__orig_bases__"})  # fmt: skip


def function_parts(function: FunctionType, content: Content) -> Iterator[object]:
    """What makes the digest of a function of the user's own, as values; O(code + what it reads).

    `content` is called for defaults, cells and globals, and knows how to end at a function that calls itself.
    """
    yield PYTHON
    yield code_digest(function.__code__)
    yield content(function.__defaults__)
    yield content(function.__kwdefaults__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name
        yield content(_cell(cell))
    for name, value in globals_read(function):
        yield name
        yield content(value)
    for name in sorted(_reads(function.__code__)["IMPORT_NAME"]):
        yield name
        yield imported(name)


def _cell(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


@lru_cache(maxsize=4096)
def code_digest(code: CodeType) -> bytes:
    """Of the instructions of a code object and of those in its constants, without docstring, places and offsets of constants."""
    lines = [
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS),
        code.co_varnames[: code.co_argcount + code.co_kwonlyargcount],
        code.co_exceptiontable,
        *((i.opname, _argument(code, i)) for i in _instructions(code) if i.opname not in _DULL),
    ]
    return hashlib.sha256("\n".join(map(_spelled, lines)).encode("utf-8", "surrogatepass")).digest()


def _argument(code: CodeType, instruction: dis.Instruction) -> object:
    """Of the names of arguments in a call `dis` of Python 3.11 says that they are unknown."""
    if instruction.arg is None:
        return None
    return code.co_consts[instruction.arg] if instruction.opname == "KW_NAMES" else instruction.argval


def _spelled(constant: object) -> str:
    """A constant of a code object as text on one line: the same in every process, another one for every other constant."""
    if isinstance(constant, CodeType):
        return code_digest(constant).hex()
    if isinstance(constant, tuple):
        return f"({', '.join(map(_spelled, constant))})"
    return f"{{{', '.join(sorted(map(_spelled, constant)))}}}" if isinstance(constant, frozenset) else repr(constant)


@lru_cache(maxsize=64)  # told and read one after the other, and large
def _instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    return tuple(dis.get_instructions(code))


_FLAGS = 0x2AC  # *args, **kwargs, generators and coroutines; the others say how it was compiled (inspect.CO_..)


def globals_read(function: FunctionType) -> list[tuple[str, object]]:
    """(name, value) of the globals that a function reads, sorted; of the user's own modules, the attributes it may read."""
    reads = _reads(function.__code__)
    names, attributes = reads["LOAD_GLOBAL"] | reads["LOAD_NAME"], reads["LOAD_ATTR"] | reads["LOAD_METHOD"]
    found: dict[str, object] = {}
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if isinstance(value, ModuleType) and is_own(value):
            found |= {f"{name}.{a}": getattr(value, a) for a in attributes if hasattr(value, a)}
        else:
            found[name] = value
    return sorted(found.items())


_GENERATED = frozenset({"__init__", "__repr__", "__eq__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__", "__setattr__", "__delattr__", "__replace__"})  # fmt: skip


@lru_cache(maxsize=4096)
def _reads(code: CodeType) -> Mapping[str, Set[str]]:
    """{instruction: names} of what code, and the code in its constants, reads of the world."""
    found: dict[str, set[str]] = {name: set() for name in _READS}
    for i in _instructions(code):
        if i.opname in found:
            found[i.opname].add(i.argval)
        elif isinstance(i.argval, CodeType):
            for name, inner in _reads(i.argval).items():
                found[name] |= inner
    return found


def imported(name: str) -> str:
    """The version of a library, the digest of a file of the user's own; "" where there is neither.

    >>> imported("json") == PYTHON
    True
    """
    top, _, rest = name.partition(".")
    spec = None if top in sys.stdlib_module_names else _found(top)
    if spec is None or spec.origin is None or not _own_file(spec.origin):
        return version_of(name)
    places = [Path(p, *rest.split(".")) for p in spec.submodule_search_locations or ()] if rest else [Path(spec.origin)]
    files = (f for p in places for f in (p, p.with_suffix(".py"), p / "__init__.py") if f.is_file())
    return next((hashlib.sha256(f.read_bytes()).hexdigest() for f in files), "")


def _found(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):  # a main program has none
        return None


def class_parts(kind: type, content: Content) -> Iterator[object]:
    """What makes the digest of a class of the user's own: its bases, and what its body defines but for documentation."""
    yield PYTHON
    yield kind.__name__
    yield from (content(base) for base in kind.__bases__)
    made = getattr(kind, "__dataclass_fields__", None)  # its methods are made of its fields
    if made is not None:
        yield repr(getattr(kind, "__dataclass_params__", None))
        yield from ((name, getattr(f.type, "__name__", str(f.type)), content(_default(f))) for name, f in made.items())
    for name, value in sorted(vars(kind).items()):
        if name in _CLASS_DULL or (made is not None and name in _GENERATED and _generated(value)):
            continue
        yield name
        yield content(plain(value))


def _default(f: Any) -> object:
    given = [d for d in (f.default, f.default_factory) if type(d).__name__ != "_MISSING_TYPE"]
    return given[0] if given else None


def _generated(value: object) -> bool:
    """Whether a method was written by the dataclass decorator and not by the user."""
    return isinstance(value, FunctionType) and value.__code__.co_filename.startswith("<")


def plain(value: object) -> object:
    """The functions inside of what a class holds."""
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    if isinstance(value, property):
        return (value.fget, value.fset, value.fdel)
    if type(value).__name__ in ("member_descriptor", "getset_descriptor"):  # slots
        return None
    return value


def is_own(item: object) -> bool:
    """Whether a module, or the module of a function or class, is the user's own: no library, not the standard library.

    A function that `functools.wraps` gave the name of a library's is its own where its code is.
    """
    if isinstance(item, FunctionType) and item.__globals__.get("__name__") != item.__module__:
        code = sys.modules.get(item.__globals__.get("__name__", ""))
        if code is not None and is_own(code):
            return True
    module = item if isinstance(item, ModuleType) else sys.modules.get(getattr(item, "__module__", None) or "")
    if module is None:  # made by exec, or its module was reloaded away
        return isinstance(item, FunctionType | type)
    file = getattr(module, "__file__", None)
    if file is None:  # built in; a notebook and `python -c` have no file either
        return module.__name__ == "__main__"
    return _own_file(file)


@cache
def _own_file(file: str) -> bool:
    path = Path(file).resolve()
    return not ({"site-packages", "dist-packages"} & set(path.parts) or any(_within(path, s) for s in _STDLIB))


_STDLIB = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


def _within(path: Path, folder: Path) -> bool:
    return folder in path.parents


@cache
def version_of(module: str) -> str:
    """The version of the library that a module belongs to.

    >>> version_of("json.decoder") == PYTHON
    True
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return PYTHON
    return _installed(_OFTEN.get(top, top)) or next(
        (v for v in map(_installed, _distributions().get(top, ())) if v), ""
    )


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


_OFTEN = {
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "yaml": "PyYAML",
    "skimage": "scikit-image",
}  # to read all takes half a second


@cache
def _distributions() -> dict[str, list[str]]:
    """What is imported -> what was installed, where the names differ: sklearn is of scikit-learn."""
    return {k: sorted(v) for k, v in importlib.metadata.packages_distributions().items()}


def module_parts(module: ModuleType) -> Iterable[object]:
    """A module that is handed on whole: a library by its version, one's own by the bytes of its file."""
    yield module.__name__
    yield version_of(module.__name__)
    file = Path(getattr(module, "__file__", None) or "")
    if file.is_file() and is_own(module):
        yield hashlib.sha256(file.read_bytes()).hexdigest()


def named_parts(item: Any) -> Iterable[object]:
    """A function or class of a library: its name and the library's version."""
    module = getattr(item, "__module__", None) or ""
    return (module, getattr(item, "__qualname__", repr(type(item))), version_of(module))
