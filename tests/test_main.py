"""The main job runs from start to end and leaves its figure."""

import runpy
import sys

import pytest

import svgp_ppl as gp
from svgp_ppl.__main__ import main


@pytest.mark.slow
def test_the_main_job_prints_a_summary_and_writes_its_figure(tmp_path, capsys):
    figure = tmp_path / "here.png"
    main(
        [
            *["--chains", "2", "--samples", "30", "--m", "6", "--seed", "1"],
            "--output",
            str(figure),
        ]
    )
    printed = capsys.readouterr().out
    assert "191 disasters in 112 years" in printed
    assert "lengthscale" in printed and "r_hat" in printed.lower()
    assert f"figure: {figure}" in printed
    assert figure.stat().st_size > 10_000


def test_help_names_every_option(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["svgp_ppl", "--help"])
    monkeypatch.delitem(sys.modules, "svgp_ppl.__main__")
    # A cache on disk would be that of all tests of this process.
    monkeypatch.setattr(gp, "cache_compilations", lambda: None)
    with pytest.raises(SystemExit) as exit_:
        runpy.run_module("svgp_ppl", run_name="__main__")  # python -m svgp_ppl --help
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    for option in ("--output", "--chains", "--samples", "--seed", "--m"):
        assert option in printed


def test_a_count_that_is_not_positive_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--chains", "0"])
    assert "expected a positive integer" in capsys.readouterr().err
