"""Blocks: which processes share one q(v), as ``blocks=`` of a guide names them."""

from collections.abc import Sequence

from svgp_ppl.guides.processes import Shapes

__all__ = ["as_blocks", "groups_of", "require_processes"]


def as_blocks(blocks: Sequence[Sequence[str]] | None) -> list[list[str]] | None:
    """Names of the processes of each block; None stands for all in one block.

    Raises:
        ValueError: A block is a name, and not a list of names.
    """
    if isinstance(blocks, str) or any(isinstance(b, str) for b in blocks or ()):
        raise ValueError(
            "blocks must be a list of lists of names, such as [['f', 'g']], and is "
            f"{blocks!r}."
        )
    return blocks if blocks is None else [list(names) for names in blocks]


def require_processes(
    blocks: list[list[str]] | None, shapes: Shapes, prefix: str
) -> None:
    """Raise unless every name is that of a process, and in one block only.

    Every block has a name of its own too, in which those of its processes are joined.
    """
    named = [name for names in blocks or [] for name in names]
    unknown = set(named) - set(shapes)
    if unknown:
        raise ValueError(
            f"blocks name {sorted(unknown)}; the processes of the model are "
            f"{sorted(shapes)}."
        )
    twice = {name for name in named if named.count(name) > 1}
    if twice:
        raise ValueError(
            f"{sorted(twice)} are in more than one block: one q(v) has to hold "
            "all that a process is coupled with."
        )
    joined = ["_".join([prefix, *names]) for names in blocks or []]
    others = [f"{prefix}_{name}" for name in set(shapes) - set(named)]
    for name in joined:
        if [*joined, *others, *shapes].count(name) > 1:
            raise ValueError(
                f"the q(v) of a block is named '{name}', after its processes, and so "
                "is that of another block or process: they would share parameters. "
                f"Rename a process; the model has {sorted(shapes)}."
            )


def groups_of(
    blocks: list[list[str]] | None, shapes: Shapes, prefix: str
) -> dict[str, Shapes | None]:
    """Name of a block -> its members; of a process in none -> None."""
    free, groups = dict(shapes), {}
    for names in [list(free)] if blocks is None else blocks:
        members = {name: free.pop(name) for name in names}
        groups["_".join([prefix, *members])] = members
    return groups | dict.fromkeys(free)
