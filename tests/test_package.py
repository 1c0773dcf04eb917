"""What is said of the package in several places is the same in all of them."""

import re
import tomllib
from pathlib import Path

import svgp_ppl

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE = (ROOT / ".ci" / "conda" / "recipe.yaml").read_text()
# conda-forge has matplotlib without a window system under another name.
ON_CONDA = {"matplotlib": "matplotlib-base"}


def test_versions_agree():
    cff = (ROOT / ".github" / "CITATION.cff").read_text()
    bibtex = (ROOT / "docs" / "citation.md").read_text()
    found = [
        *re.findall(r'^  version: "(.+)"$', RECIPE, re.M),
        *re.findall(r"^version: (.+)$", cff, re.M),
        *re.findall(r"version = \{(.+)\}", bibtex),
    ]
    assert found == [svgp_ppl.__version__] * 3


def test_conda_requires_what_the_package_requires():
    run = re.findall(r"^  run:\n((?:    - .+\n)+)", RECIPE, re.M)[0]
    found = {line.strip("- ").replace(" ", "") for line in run.splitlines()}
    expected = {f"python{PROJECT['requires-python']}"}
    for line in PROJECT["dependencies"]:
        name, bound = line.split(">=")
        expected.add(f"{ON_CONDA.get(name, name)}>={bound}")
    assert found == expected


def test_one_address():
    expected = PROJECT["urls"]["Repository"]
    files = [ROOT / "pyproject.toml", ROOT / ".ci" / "conda" / "recipe.yaml"]
    for folder in (ROOT / ".github", ROOT / "docs"):
        files += [p for p in folder.rglob("*") if p.suffix in {".md", ".yml", ".cff"}]
    for file in files:
        if "_build" not in file.parts:
            found = re.findall(
                r"https://github\.com/[\w-]+/svgp_ppl\b", file.read_text()
            )
            assert set(found) <= {expected}, file


def test_readme_shows_the_commands_that_ci_runs():
    script = (ROOT / ".ci" / "run").read_text()
    (block,) = re.findall(r"README_COMMANDS=\((.*?)\n\)", script, re.S)
    shown = (ROOT / "README.md").read_text().replace('"', "'")
    for command in re.findall(r'"(.+)"', block):
        assert command.replace("{python}", "python3") in shown, command
