"""What a function does, as a digest: its compiled code, and everything of the user's own that it reads.

    code        instructions with their constants and names; comments, white space, docstrings and line numbers are not in it
    defaults    and keyword defaults, by content
    closure     what the cells hold, by content
    globals     functions and classes of the user's own files recursively, constants by content, libraries by name and version; of
                the user's own modules what is read of them, and of theirs
    imports     inside of the function: a library by its version; one's own file, and all of one's own that it imports, by the bytes

The compiled code is what runs, even where the file was edited since; it belongs to one version of Python, which is in the
digest. A function or class of a library (site-packages, the standard library) is its name and the library's version; one that
its module does not have under its name, since a function of the library made it, is its code and what it closes over, too.
"""

from __future__ import annotations

import ast
import dis
import enum
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import cache, cached_property, lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

Content: TypeAlias = Callable[[object], bytes]  #: the digest of a value

PYTHON = f"python {platform.python_version_tuple()[0]}.{platform.python_version_tuple()[1]}"
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD", "IMPORT_NAME", "IMPORT_FROM")
_WHOLE = "whole"  #: of what `_reads` finds: globals of which more may be read than attributes
_DULL = frozenset({"RESUME", "CACHE", "NOP", "EXTENDED_ARG", "PRECALL"})
_CLASS_DULL = frozenset({"__doc__", "__module__", "__qualname__", "__dict__", "__weakref__", "__annotations__", "__firstlineno__", "__static_attributes__", "__abstractmethods__", "_abc_impl", "__slotnames__", "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__parameters__", "__orig_bases__"})  # fmt: skip
#: what enum makes of the members
_OF_ENUMS = frozenset({"_member_names_", "_member_map_", "_value2member_map_", "_hashable_values_", "_unhashable_values_", "_unhashable_values_map_"})  # fmt: skip


def function_parts(function: FunctionType, content: Content) -> Iterator[object]:
    """What makes the digest of a function of the user's own, as values; O(code + what it reads).

    `content` is called for defaults, cells and globals, and knows how to end at a function that calls itself.
    """
    yield from _held_parts(function, content)
    for name, value in globals_read(function):
        yield name
        yield content(value)
    reads = _reads(function.__code__)
    for name in sorted(reads["IMPORT_NAME"]):
        yield name
        yield imported(name, str(function.__globals__.get("__package__") or ""), sorted(reads["IMPORT_FROM"]))


def _held_parts(function: FunctionType, content: Content) -> Iterator[object]:
    """Its code and what it carries along."""
    yield PYTHON
    yield code_digest(function.__code__)
    yield content(function.__defaults__)
    yield content(function.__kwdefaults__)
    set_on = sorted((k, v) for k, v in vars(function).items() if k not in _WRAPPED)
    if set_on:
        yield content(set_on)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name
        yield content(_cell(cell))


def made_parts(function: FunctionType, content: Content) -> Iterator[object]:
    """Of a function that a library's function made: what it reads of the library is named by the version."""
    yield from named_parts(function)
    yield from _held_parts(function, content)


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


_WRAPPED = ("__wrapped__", "__signature__")  #: what functools sets on a function: it is in its cells
_FLAGS = 0x2AC  # *args, **kwargs, generators and coroutines; the others say how it was compiled (inspect.CO_..)


def globals_read(function: FunctionType) -> list[tuple[str, object]]:
    """(name, value) of the globals that a function reads, sorted; of the user's own modules, and of those in them, the attributes
    it may read, or the module itself where it may be handed on."""
    reads = _reads(function.__code__)
    names, attributes = reads["LOAD_GLOBAL"] | reads["LOAD_NAME"], reads["LOAD_ATTR"] | reads["LOAD_METHOD"]
    found: dict[str, object] = {}
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if name in reads[_WHOLE] or not _is_own_module(value):
            found[name] = value
        if _is_own_module(value):
            _read_of(value, name, attributes, {id(value)}, found)
    return sorted(found.items())


def _is_own_module(value: object) -> bool:
    return isinstance(value, ModuleType) and is_own(value)


def _read_of(module: Any, name: str, attributes: Set[str], above: Set[int], found: dict[str, object]) -> None:
    """Note what may be read of a module; of one of which nothing is, the module."""
    here = [a for a in sorted(attributes) if hasattr(module, a)]
    if not here:
        found[name] = module
    for a in here:
        value = getattr(module, a)
        if not _is_own_module(value):
            found[f"{name}.{a}"] = value
        elif id(value) not in above:
            _read_of(value, f"{name}.{a}", attributes, above | {id(value)}, found)


_GENERATED = frozenset({"__init__", "__repr__", "__eq__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__", "__setattr__", "__delattr__", "__replace__"})  # fmt: skip


@lru_cache(maxsize=4096)
def _reads(code: CodeType) -> Mapping[str, Set[str]]:
    """{instruction: names} of what code, and the code in its constants, reads of the world; what is imported relative to a
    package has as many dots before it as in the source."""
    found: dict[str, set[str]] = {name: set() for name in (*_READS, _WHOLE)}
    told = [i for i in _instructions(code) if i.opname not in _DULL]
    for k, i in enumerate(told):
        if i.opname == "IMPORT_NAME":
            level = told[k - 2].argval if k > 1 else 0
            found[i.opname].add("." * (level if type(level) is int else 0) + i.argval)
        elif i.opname in found:
            found[i.opname].add(i.argval)
            if i.opname in ("LOAD_GLOBAL", "LOAD_NAME") and told[k + 1].opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                found[_WHOLE].add(i.argval)
        elif isinstance(i.argval, CodeType):
            for name, inner in _reads(i.argval).items():
                found[name] |= inner
    return found


def imported(name: str, package: str = "", of_it: Iterable[str] = ()) -> str:
    """The version of a library, the digest of the user's own files behind an import; "" where there is neither. `package`: in which
    the import stands; `of_it`: what may be imported from there, modules or not.

    >>> imported("json") == PYTHON
    True
    """
    dot = "." if name.strip(".") else ""
    names = [_absolute(n, package) for n in (name, *(f"{name}{dot}{m}" for m in of_it))]
    files = [f for n in names for f in own_files(n)]
    if files:
        return digest_behind(files)
    top = names[0].partition(".")[0]
    return version_of(names[0]) if top else ""


def _absolute(name: str, package: str) -> str:
    """ "" for what lies above all packages."""
    try:
        return importlib.util.resolve_name(name, package or None)
    except ImportError:
        return ""


def own_files(name: str) -> list[Path]:
    """The user's own files that importing a module runs: its packages', then its own. None of a library's, nor where the name is
    something in a module."""
    top, *rest = name.split(".")
    spec = None if not top or top in sys.stdlib_module_names else _found(top)
    if spec is None or (spec.origin is not None and not _own_file(spec.origin)):
        return []
    found = [Path(spec.origin)] if spec.origin is not None else []
    folders = [Path(p) for p in spec.submodule_search_locations or ()]
    for part in rest:
        files = (f / part / "__init__.py" if (f / part).is_dir() else f / f"{part}.py" for f in folders)
        found += [f for f in files if f.is_file()]
        folders = [f / part for f in folders if (f / part).is_dir()]
    return found if all(_own_file(str(f)) for f in found) else []


def digest_behind(files: Iterable[Path]) -> str:
    """Of the bytes of files and of all of the user's own that they import, and those, and of where they lie beside each other; where all
    of them lie is not in it."""
    seen = files_behind(files)
    top = os.path.commonpath([f.parent for f in seen]) if seen else ""
    rows = sorted((f.relative_to(top).as_posix(), hashlib.sha256(f.read_bytes()).hexdigest()) for f in seen)
    return hashlib.sha256(repr(rows).encode("utf-8", "surrogatepass")).hexdigest()


def files_behind(files: Iterable[Path], but_for: Path | None = None) -> set[Path]:
    """Files and all of the user's own that they import, and those; but for what lies in a folder."""
    waiting, seen = list(files), set[Path]()
    while waiting:
        file = waiting.pop().resolve()
        if file not in seen and not (but_for and _within(file, but_for)):
            seen.add(file)
            stat = file.stat()
            waiting += _imported_by(file, stat.st_mtime_ns, stat.st_size)
    return seen


@lru_cache(maxsize=1024)
def _imported_by(file: Path, changed: int, size: int) -> tuple[Path, ...]:
    """The user's own files that a file imports, by any of its import statements."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # importing it fails, too
        return ()
    names: list[str] = []
    found: list[Path] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names += [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
        elif isinstance(node, ast.ImportFrom):
            folder = file.parents[node.level - 1]
            for a in ("", *(a.name for a in node.names)):
                place = folder.joinpath(*(node.module or "").split("."), a)
                found += [f for f in (place / "__init__.py", place.with_suffix(".py")) if f.is_file()]
    return (*found, *(f for n in names for f in own_files(n)))


def _found(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):  # a main program has none
        return None


def class_parts(kind: type, content: Content) -> Iterator[object]:
    """What makes the digest of a class of the user's own: its bases, and what its body defines but for documentation."""
    yield PYTHON
    yield kind.__name__
    yield from (content(base) for base in (type(kind), *kind.__bases__))
    made = getattr(kind, "__dataclass_fields__", None)  # its methods are made of its fields
    if made is not None:
        yield repr(getattr(kind, "__dataclass_params__", None))
        yield from ((name, getattr(f.type, "__name__", str(f.type)), content(_default(f))) for name, f in made.items())
    members = dict(kind.__members__) if issubclass(kind, enum.Enum) else {}
    yield from ((name, content(member.value)) for name, member in members.items())
    dull = _CLASS_DULL | _OF_ENUMS | members.keys() if members else _CLASS_DULL
    for name, value in sorted(vars(kind).items()):
        if name in dull or (made is not None and name in _GENERATED and _generated(value)):
            continue
        yield name
        yield content(plain(value))


def _default(f: Any) -> object:
    given = [d for d in (f.default, f.default_factory) if type(d).__name__ != "_MISSING_TYPE"]
    return given[0] if given else None


def _generated(value: object) -> bool:
    """Whether a method was written by the dataclass decorator and not by the user."""
    return isinstance(value, FunctionType) and value.__code__.co_filename == "<string>"


def plain(value: object) -> object:
    """The functions inside of what a class holds, and how it holds them."""
    if isinstance(value, staticmethod | classmethod):
        return (type(value).__name__, value.__func__)
    if isinstance(value, property):
        return (value.fget, value.fset, value.fdel)
    if isinstance(value, cached_property):
        return (value.func, value.attrname)
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


def is_named(item: Any) -> bool:
    """Whether a function or class is a library's that its name tells: what its module has under that name, or, of classes, anything
    but what a function made."""
    if is_own(item):
        return False
    if isinstance(item, type):
        return "<locals>" not in item.__qualname__
    found: Any = sys.modules.get(item.__module__ or "")
    for name in item.__qualname__.split("."):
        found = getattr(found, name, None)
    return getattr(found, "__func__", found) is item


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
    """A module that is handed on whole: a library by its version, one's own by the bytes of its file, or all of a package, and of those
    that they import."""
    yield module.__name__
    yield version_of(module.__name__)
    file = Path(getattr(module, "__file__", None) or "")
    if file.is_file() and is_own(module):
        yield digest_behind(file.parent.rglob("*.py") if file.name == "__init__.py" else [file])


def named_parts(item: Any) -> Iterable[object]:
    """A function or class of a library: its name and the library's version."""
    module = getattr(item, "__module__", None) or ""
    return (module, getattr(item, "__qualname__", repr(type(item))), version_of(module))
