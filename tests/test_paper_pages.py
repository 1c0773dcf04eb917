"""The pages of the papers equal what the committed results give; runs go on."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.papers import pages, passages, results, runs, tables
from benchmarks.papers.coverage import COVERAGE
from benchmarks.papers.experiment import Budget, Contrast, Experiment, Measure
from benchmarks.papers.results import Cell, Value

PAGES = pages.rendered(runs.RESULTS)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_is_what_the_results_give(name):
    made = "python -m benchmarks.papers pages"
    assert (pages.DOCS / name).read_text() == PAGES[name], f"run {made}"


@pytest.mark.parametrize("name", passages.PAGES)
def test_tables_on_other_pages_are_what_the_results_give(name):
    text = (passages.DOCS / name).read_text()
    assert passages.BLOCK.search(text)
    made = "python -m benchmarks.papers pages"
    assert passages.rendered(text, runs.RESULTS) == text, f"run {made}"


def test_a_page_shows_another_result(tmp_path):
    shutil.copytree(runs.RESULTS, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "coupled-2017" / "table-1-paper-0.json"
    held = json.loads(path.read_text())
    held[0]["numbers"]["RMSE"] += 1.0
    path.write_text(json.dumps(held))
    assert pages.rendered(tmp_path)["coupled-2017.md"] != PAGES["coupled-2017.md"]


def test_links_of_the_list_lead_to_headings():
    for name, anchor in re.findall(r"\]\(([\w-]+\.md)#([^)]+)\)", PAGES["index.md"]):
        heads = [line[3:] for line in PAGES[name].splitlines() if line[:3] == "## "]
        assert anchor in map(pages.slug, heads)


def test_every_published_experiment_has_a_command():
    assert len(COVERAGE) == 32
    for one in COVERAGE:
        for experiment in pages.experiments_of(one):  # KeyError without it
            for budget in ("quick", "paper"):
                settings = experiment.settings(budget)
                assert experiment.budget(budget).splits and settings
                for own in settings:  # the row of a run is found again
                    case = results.case_of(experiment, {"settings": own})
                    assert case in experiment.cases


def test_every_published_value_belongs_to_a_case():
    held = json.loads(results.PUBLISHED.read_text())
    competitors = ("AEPDGP2", "PBP", "GPCep", "GPCaug")
    for paper, experiments in held.items():
        for name, entries in experiments.items():
            experiment = pages.BY_NAME[paper, name]
            cases = [*experiment.cases]
            cases += [{"contrast": one.name} for one in experiment.contrasts]
            measures = {measure.name for measure in experiment.measures}
            for entry in entries:
                if not set(entry["case"].values()) & set(competitors):
                    assert entry["case"] in cases, (paper, name, entry["case"])
                assert set(entry) - {"case"} <= measures, (paper, name)


def test_a_value_as_it_is_printed():
    assert Value.printed("-2.47(0.05)") == Value(-2.47, 0.05, 0.005)
    assert Value.printed("554") == Value(554.0, None, 0.5)
    for text in ("−2.47 ± 0.05", "97.50", "554"):
        value = Value.printed(text.replace("−", "-").replace(" ± ", "("))
        assert tables.as_printed(value) == text


def test_worse_is_by_two_standard_errors_and_the_rounding():
    measure = Measure("RMSE", better="lower")
    printed = Value(1.0, 0.3, 0.05)
    at = Cell(measure, Value(2.04, 0.4), 5, printed)  # 2 · 0.5 + 0.05 = 1.05
    assert at.difference == Value(pytest.approx(1.04), pytest.approx(0.5))
    assert not at.is_worse and replace(at, ours=Value(2.06, 0.4)).is_worse
    upwards = replace(at, measure=Measure("accuracy", better="higher"))
    assert not upwards.is_worse and replace(upwards, ours=Value(-0.1, 0.4)).is_worse


def counting(calls: list) -> Experiment:
    def run(settings, split):
        calls.append((settings["M"], split))
        return {"score": 10.0 * settings["M"] + split**2, "errors": {"score": 0.5}}

    return Experiment(
        "toy",
        "counting",
        run,
        cases=({"M": 1}, {"M": 2}),
        measures=(Measure("score"),),
        quick=Budget((0, 1), {"steps": 3}),
        full=Budget((0,), {"steps": 9}),
        contrasts=(Contrast("2 − 1", "score", {"M": 2}, {"M": 1}),),
    )


def test_what_is_there_is_not_run_again(tmp_path):
    calls = []
    experiment = counting(calls)
    runs.run(experiment, "quick", [0], tmp_path)
    runs.run(experiment, "quick", [0, 1, 3], tmp_path)
    assert calls == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 3), (2, 3)]
    other = replace(experiment, quick=Budget((0,), {"steps": 4}))
    runs.run(other, "quick", [0], tmp_path)  # other settings are another run
    assert calls[6:] == [(1, 0), (2, 0)]


def test_a_run_that_was_stopped_goes_on_from_its_own_file(tmp_path):
    found = []

    def run(settings, split):
        checkpoint = settings["checkpoint"]
        found.append(checkpoint.exists())
        checkpoint.write_text("half")
        if len(found) == 2:
            raise KeyboardInterrupt
        return {"score": 1.0}

    experiment = replace(counting([]), run=run)
    with pytest.raises(KeyboardInterrupt):
        runs.run(experiment, "quick", [0], tmp_path)
    runs.run(experiment, "quick", [0], tmp_path)
    assert found == [False, False, True]
    path = runs.path_of(tmp_path, experiment, "quick", 0)
    assert [one["seconds"] is None for one in runs.read(path)] == [False, True]
    assert not list(tmp_path.rglob("*.checkpoint"))


def test_means_errors_and_paired_gains(tmp_path):
    experiment = counting([])
    runs.run(experiment, "quick", [0], tmp_path)
    first = results.rows(experiment, results.found(experiment, tmp_path)[1])
    assert first[1].cells[0].ours == Value(20.0, 0.5)  # over the rows of one split
    runs.run(experiment, "quick", [0, 1, 3], tmp_path)
    budget, held = results.found(experiment, tmp_path)
    assert budget == "quick" and len(held) == 6
    one, _, gain = results.rows(experiment, held)
    error = np.std([10.0, 11.0, 19.0], ddof=1) / np.sqrt(3)
    assert one.cells[0].ours == Value(pytest.approx(40 / 3), pytest.approx(error))
    assert gain.cells[0].ours == Value(10.0, 0.0)
