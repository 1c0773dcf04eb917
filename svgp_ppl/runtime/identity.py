"""What determines a program: equal identities are one program, and keep nothing alive.

A model is code and what the code reads: globals, variables of the surrounding function,
those of helper functions and classes in the same module, and attributes of objects that
this code has a name for. JAX would trace it once and not look again.
"""

import dataclasses
import hashlib
import inspect
import pickle
import sys
import weakref
from collections.abc import Callable, Hashable, Iterator, Set
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import numpy as np

__all__ = ["Identities", "mentions"]

# Reading more than this costs as much as a trace.
_MOST_BYTES = 2**28
# Packages whose code does not change, nor what it reads.
_LIBRARIES = frozenset({"blackjax", "builtins", "jax", "numpyro", "optax", "svgp_ppl"})


class Identities:
    """Identities of the parts of one program.

    Functions and classes seen before are skipped: they may lead back to themselves.

    Args:
        forget: Called with the weak reference to a part that is gone.
    """

    def __init__(self, forget: Callable[[weakref.ref], None]):
        self._forget, self._seen = forget, set()
        self._names: set[str] = set()  # that the code has for variables and attributes
        # By id: objects whose attributes it may read, and the module that it is in.
        self._objects: dict[int, tuple[Any, str | None]] = {}

    def of(self, parts: Any) -> Hashable:
        """What distinguishes the parts of a program, and what they read."""
        return self._of(parts), tuple(self._attributes())

    def _of(self, part: Any, module: str | None = None) -> Hashable:
        """What distinguishes a part of a program.

        Args:
            part: A plain value, a frozen dataclass, an array or a table, code, or an
                object that is equal to itself alone.
            module: Where the code is that reads it: code of others is not examined.
        """
        of = partial(self._of, module=module)
        if part is None or isinstance(part, str | bytes | int | float | complex):
            return type(part), part
        if isinstance(part, type):
            return self._object(part, module), self._code_of(part, module)
        if isinstance(part, tuple | list):
            return type(part), tuple(map(of, part))
        if isinstance(part, set | frozenset):
            return type(part), frozenset(map(of, part))
        if isinstance(part, dict):
            return dict, tuple((name, of(value)) for name, value in part.items())
        if isinstance(part, jax.tree_util.PyTreeDef):
            return part
        if dataclasses.is_dataclass(part) and part.__hash__ is not None:
            fields = dataclasses.fields(part)
            values = tuple(of(getattr(part, field.name)) for field in fields)
            return type(part), values, self._code_of(type(part), module)
        if _can_be_written_into(part):
            return self._contents(part)
        if isinstance(part, property | classmethod):  # as its class has it
            return of(_function_of(part))
        if isinstance(part, partial):
            return partial, of(part.func), of(part.args), of(part.keywords)
        if inspect.ismethod(part):  # a new object at every access
            own = self._code_of(type(part.__self__), module)
            return of(part.__self__), of(part.__func__), own
        if inspect.isfunction(part):
            is_own = module is None or part.__module__ == module
            return self._same(part), self._surroundings(part) if is_own else ()
        try:
            return self._object(part, module), self._code_around(part, module)
        except TypeError:
            # No weak references to it: a number of NumPy, a range, a date.
            return (type(part), part) if isinstance(part, Hashable) else object()

    def _same(self, value: Any) -> "_Same":
        return _Same(value, self._forget)

    def _object(self, value: Any, module: str | None) -> "_Same":
        """The same, of an object whose attributes code may read."""
        classes = value.__mro__ if isinstance(value, type) else type(value).__mro__
        for owner in (value, type(value), *classes):
            if not _is_of_library(_home_of(owner)):
                self._objects.setdefault(id(owner), (owner, module))
        return self._same(value)

    def _code_around(self, part: Any, module: str | None) -> Hashable:
        """The code of an object, and that which it wraps as handlers do."""
        wrapped = getattr(part, "__wrapped__", None) if callable(part) else None
        inner = () if wrapped is None else self._of(wrapped, module)
        return inner, self._code_of(type(part), module)

    def _code_of(self, cls: type, module: str | None) -> Hashable:
        """What the methods of a class read."""
        is_other = module is not None and cls.__module__ != module
        if is_other or id(cls) in self._seen or _is_of_library(cls.__module__):
            return ()
        self._seen.add(id(cls))
        own = tuple(self._surroundings(method) for method in _methods(cls))
        return own, tuple(self._code_of(b, cls.__module__) for b in cls.__bases__)

    def _surroundings(self, function: Any) -> Hashable:
        """The outer values that a function and its helpers read.

        What code of other modules reads is not examined.
        """
        if id(function) in self._seen:
            return ()
        self._seen.add(id(function))
        names, module = _names(function.__code__), function.__module__
        self._names |= names
        around = {n: v for n, v in function.__globals__.items() if n in names}
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        for name, cell in cells:
            with suppress(ValueError):  # assigned later
                around[name] = cell.cell_contents
        found = tuple((n, self._of(v, module)) for n, v in sorted(around.items()))
        defaults = (function.__defaults__, function.__kwdefaults__)
        return found, self._of(defaults, module)

    def _attributes(self) -> Iterator[Hashable]:
        """What distinguishes the attributes that the code has a name for.

        They may be code, which has more names, and have attributes themselves.
        """
        known: set[tuple[int, str]] = set()
        while found := self._named() - known:
            known |= found
            for i, name in sorted(found):
                owner, module = list(self._objects.values())[i]
                yield name, self._of(_attributes_of(owner, {name})[name], module)

    def _named(self) -> set[tuple[int, str]]:
        """Number of an object and name, for all attributes with a known name."""
        return {
            (i, name)
            for i, (owner, _) in enumerate(self._objects.values())
            for name in _attributes_of(owner, self._names)
        }

    def _contents(self, part: Any) -> Hashable:
        """What distinguishes the contents of an array of NumPy or a table of pandas."""
        if max(getattr(part, "nbytes", 0), sys.getsizeof(part)) > _MOST_BYTES:
            return self._same(part)
        try:
            return hashlib.sha256(pickle.dumps(part, protocol=5)).digest()
        except (pickle.PicklingError, TypeError, AttributeError):  # of any objects
            return self._same(part)


class _Same:
    """An object, equal to itself alone, and not kept alive."""

    __slots__ = ("_number", "reference")

    def __init__(self, value: Any, forget: Callable[[weakref.ref], None]):
        self.reference, self._number = weakref.ref(value, forget), id(value)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other) -> bool:
        if self is other:
            return True
        value = self.reference()
        is_same = isinstance(other, _Same) and other.reference() is value
        return value is not None and is_same


def mentions(identity: Any, reference: weakref.ref) -> bool:
    """Whether an object is a part of what has this identity."""
    if isinstance(identity, tuple):
        return any(mentions(part, reference) for part in identity)
    return isinstance(identity, _Same) and identity.reference is reference


def _names(code: Any) -> set[str]:
    """Global names of a function, and of those defined inside it."""
    inner = [c for c in code.co_consts if inspect.iscode(c)]
    return set(code.co_names).union(*map(_names, inner))


def _methods(cls: type) -> Iterator[Any]:
    """The functions that a class defines."""
    for member in vars(cls).values():
        function = _function_of(member)
        if inspect.isfunction(function):
            yield function


def _function_of(member: Any) -> Any:
    """The function of a property, a static or a class method; others as they are."""
    if isinstance(member, property):
        return member.fget
    return getattr(member, "__func__", member)


def _attributes_of(owner: Any, names: Set[str]) -> dict[str, Any]:
    """Those of these names that are in an object: set, in slots, or on request."""
    own = getattr(owner, "__dict__", {})
    found = {name: own[name] for name in names & own.keys()}
    cls = type(owner)
    is_asked = hasattr(cls, "__getattr__")
    for name in names - found.keys():
        with suppress(Exception):
            if is_asked or inspect.ismemberdescriptor(getattr(cls, name)):
                found[name] = getattr(owner, name)
    return found


def _home_of(part: Any) -> str:
    """Name of a module, or of that of a class or of the class of an object."""
    if inspect.ismodule(part):
        return part.__name__
    return (part if isinstance(part, type) else type(part)).__module__


def _is_of_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


def _can_be_written_into(part: Any) -> bool:
    is_immutable = isinstance(part, jax.Array | np.generic)
    return hasattr(type(part), "__array__") and not is_immutable
