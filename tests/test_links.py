"""The pages: links lead to what exists, in the repository as on the site.

In the repository a link is a path and the anchor of a heading, as GitHub makes them.
On the site the build checks the same links, and fails where one leads nowhere.
"""

import fnmatch
import re
from collections import Counter
from pathlib import Path

import svgp_ppl as gp
from tests.test_doctests import public

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
    *(IN_DOCS := [p for p in sorted(DOCS.rglob("*.md")) if "_build" not in p.parts]),
    *sorted((ROOT / "notebooks").glob("*.py")),
]
DOORS = ("tutorials", "how-to", "explanations", "papers", "reference")
CODE = re.compile(r"^(```+|~~~+).*?^\1", re.S | re.M)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """The text of a page without its code, whose brackets are no links."""
    return CODE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings: lower case, no signs, hyphens for spaces."""
    found = Counter()
    anchors = set()
    for heading in re.findall(r"^#{1,6} (.+)$", prose(page), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*$]", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        anchors.add(f"{anchor}-{found[anchor]}" if found[anchor] else anchor)
        found[anchor] += 1
    return anchors


def broken(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere, each with the reason."""
    faults = []
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or DOCS / "notebooks" in target.parents:  # a copy
            faults.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            faults.append(f"{link}: no such heading, of {sorted(anchors(target))}")
    return faults


def test_links_lead_somewhere():
    faults = {str(page.relative_to(ROOT)): broken(page) for page in PAGES}
    assert not {page: found for page, found in faults.items() if found}


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading: `f(x)`\n\n[a](#a-heading-fx) [b](no.md) [c](#no)\n")
    assert [fault.split(":")[0] for fault in broken(page)] == ["no.md", "#no"]


def contents(page: Path) -> list[str]:
    """The pages that the tables of contents of a page name, patterns expanded."""
    text = "\n".join(re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.S))
    entries = [s for s in text.split() if not s.startswith(":")]
    names = {str(p.relative_to(DOCS).with_suffix("")) for p in IN_DOCS}
    folder = page.parent.relative_to(DOCS)
    return [n for e in entries for n in fnmatch.filter(names, str(folder / e))]


def below(name: str) -> list[str]:
    """All pages that are reached from one, itself included."""
    inner = contents(DOCS / f"{name}.md")
    return [name, *(found for child in inner for found in below(child))]


def test_every_page_is_behind_one_door():
    assert contents(DOCS / "index.md") == list(DOORS)
    behind = {door: set(below(door)) for door in DOORS}
    for page in IN_DOCS:
        name = str(page.relative_to(DOCS).with_suffix(""))
        if name == "index" or name.startswith("paper/"):
            continue
        doors = [door for door, names in behind.items() if name in names]
        assert len(doors) == 1, (
            f"{name} is behind {doors}: name it in the toctree of one"
        )


def test_every_public_name_is_in_the_reference():
    pages = [page.read_text() for page in (DOCS / "api").glob("*.md")]
    text = "\n".join(pages)
    named = set(
        re.findall(r"auto(?:function|class|exception):: (?:[\w.]+\.)?(\w+)", text)
    )
    # Modules whose names are all listed, by a bare ":members:".
    whole = set(re.findall(r"automodule:: svgp_ppl\.(\w+)\n   :members:\n", text))
    missing = []
    for name, _ in public(gp):
        module, _, last = name.rpartition(".")
        if module not in whole and last not in named and name != "hyperparameters":
            missing.append(name)
    assert not missing
