"""What devices send each other in a compiled program, read from its text."""

import re
from typing import NamedTuple

__all__ = ["Message", "messages"]

_KINDS = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute"
_LINE = re.compile(rf"= (\(.*?\)|\S+) ({_KINDS})(?:-start)?\(")
_SHAPE = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")


class Message(NamedTuple):
    """A collective operation.

    Attributes:
        kind: Such as "all-reduce".
        shapes: Of what each device has when it is done.
        num_bytes: Of all of them together.
        in_loop: Whether it stands in the body of a loop, or is done once.
    """

    kind: str
    shapes: list[tuple[int, ...]]
    num_bytes: int
    in_loop: bool


def messages(text: str) -> list[Message]:
    """The collective operations of a program, ``executable.as_text()``."""
    found = []
    for line in text.splitlines():
        if (match := _LINE.search(line)) is None:
            continue
        parts = _SHAPE.findall(match.group(1))
        shapes = [tuple(map(int, filter(None, sizes.split(",")))) for _, sizes in parts]
        sizes = [
            _width(kind) * _product(shape) for (kind, _), shape in zip(parts, shapes)
        ]
        in_loop = "while/body" in line
        found.append(Message(match.group(2), shapes, sum(sizes), in_loop))
    return found


def _width(kind: str) -> int:
    """Bytes of a number."""
    bits = re.search(r"\d+$", kind)
    return 1 if bits is None else max(1, int(bits.group()) // 8)


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
