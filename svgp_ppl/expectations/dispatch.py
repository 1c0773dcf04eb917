"""Open functions of a likelihood: a form for each class of them, and a default."""

from collections.abc import Callable
from functools import singledispatch, update_wrapper
from typing import Any

__all__ = ["by_likelihood", "has_distribution_of"]


def has_distribution_of(likelihood: Any, cls: type) -> bool:
    """Whether a likelihood has the distribution of this class, and so its formulas.

    A subclass that writes ``__call__`` anew has another distribution.
    """
    own: Any = type(likelihood)
    return isinstance(likelihood, cls) and own.__call__ is cls.__call__


def by_likelihood(default: Callable) -> Any:
    """``functools.singledispatch`` on the class whose distribution a likelihood has.

    What is registered for a class holds for its subclasses, unless they write
    ``__call__`` anew: those have the default until something is registered for them.
    """
    generic = singledispatch(default)

    def dispatched(likelihood, *args):
        for cls in type(likelihood).__mro__:
            if cls is not object and cls in generic.registry:
                is_same = has_distribution_of(likelihood, cls)
                return (generic.registry[cls] if is_same else default)(
                    likelihood, *args
                )
        return default(likelihood, *args)

    open_function: Any = update_wrapper(dispatched, default)
    open_function.register = generic.register
    open_function.registry = generic.registry
    return open_function
