"""Tests of figures (measured numbers). The documents must contain the stored figures with their date and machine."""

import json
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest

from benchmarks import auto
from benchmarks.figures import FigurePart, generate
from benchmarks.figures import __main__ as command
from benchmarks.figures.__main__ import MARKED, PARTS, fill, load_figures, pages, render, rounded
from benchmarks.figures.methods import FIXED, MAIN, PAIRS, SPEED
from benchmarks.harness import SAMPLING, bundled, captions
from benchmarks.tables import estimate

FIGURES = load_figures()


def test_documents_show_the_stored_figures():
    texts = render(FIGURES)
    stale = [page.name for page in pages() if fill(page.read_text("utf-8"), texts) != page.read_text("utf-8")]
    assert not stale, "run python -m benchmarks.figures --write"


def test_every_part_is_stored_with_its_origin_and_every_table_is_shown():
    assert list(FIGURES) == list(PARTS)
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages())
    assert {match[1] for match in MARKED.finditer(text)} == set(render(FIGURES))
    assert text.count("<!-- figures: ") == text.count("<!-- /figures -->") == len(MARKED.findall(text))
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", part["day"]) and part["count"] > 0 for part in FIGURES.values())


def test_fill_replaces_the_text_between_markers():
    page = "A <!-- figures: a -->1<!-- /figures --> b\n<!-- figures: t -->\n| old |\n\n*when*\n<!-- /figures -->\nend\n"
    once = fill(page, {"a": "2", "t": "| x |\n\n*now*"})
    assert once == page.replace(">1<", ">2<").replace("old", "x").replace("when", "now")
    assert fill(once.replace("\n| x |\n\n*now*\n", ""), {"a": "1", "t": "| old |\n\n*when*"}) == page
    with pytest.raises(KeyError):
        fill(page, {"a": "2"})


def test_stored_floats_have_six_digits():
    others = [12345678, True, None, "1.23456789"]
    assert rounded({"a": [1.23456789, *others]}) == {"a": [1.23457, *others]}


def test_every_compared_method_is_measured():
    assert {name for pair in PAIRS for name in pair} | set(SPEED) <= set(MAIN)
    assert len({preset.drafting.settings.drafts for preset in FIXED.values()}) == 1


def test_stored_figures_name_a_clean_commit():
    """The part `auto` was measured in a changed checkout before this rule, and has to be measured again."""
    assert {name for name, part in FIGURES.items() if "dirty" in part["commit"]} <= {"auto"}


def test_published_figures_have_at_least_eight_prompts():
    assert all(part.count >= 8 for part in PARTS.values())


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Return a function that runs the command in a copy of the documents, with a part that measures only its count."""
    page = tmp_path / "README.md"
    page.write_text("<!-- figures: half --><!-- /figures -->\n", encoding="utf-8")
    part = FigurePart(8, lambda count: count, lambda data: {"half": f"{data} prompts"})
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "STORED", tmp_path / "figures.json")
    monkeypatch.setattr(command, "PARTS", {"half": part})
    monkeypatch.setattr(command, "pages", lambda: [page])
    changed = []
    outputs = {"status": lambda: "".join(f" M {path}\n" for path in changed).rstrip(), "rev-parse": lambda: "abc1234"}
    monkeypatch.setattr(command, "git", lambda name, *_: outputs[name]())

    def run(*arguments: str, changes: tuple[str, ...] = ()) -> dict:
        """Run the command, and return the stored figures and the page."""
        changed[:] = changes
        command.STORED.write_text("{}", encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["figures", *arguments])
        command.main()
        stored = json.loads(command.STORED.read_text(encoding="utf-8"))
        assert (f"{stored.get('half', {}).get('data')} prompts" in page.read_text(encoding="utf-8")) == bool(stored)
        return stored.get("half", {})

    return run


def test_a_small_count_is_a_dry_run(measured, capsys):
    assert measured("--count", "1", changes=("adt_core/settings.py",)) == {}
    assert "1 prompts\n\nNo file was changed, because of the small --count" in capsys.readouterr().out
    assert measured("--count", "1", "--force")["count"] == 1
    assert measured("--count", "9")["count"] == 9 and measured()["count"] == 8


def test_figures_name_a_clean_commit(measured, capsys):
    assert measured(changes=("figures.json", "README.md"))["commit"] == "abc1234", "the command writes these files"
    with pytest.raises(SystemExit):
        measured(changes=("adt_core/settings.py",))
    assert "adt_core/settings.py has changes without a commit" in capsys.readouterr().err
    assert measured("--force", changes=("adt_core/settings.py",))["commit"] == "abc1234-dirty"


def test_estimates_in_tables():
    stored = None, [2.0, None, None], [2.0, 1.5, 3]
    assert list(map(estimate, stored)) == ["", "2.00", "2.00 (1.50 to 3.00)"]


def test_the_fair_baseline_is_the_first_row():
    assert list(generate.TITLES) == [generate.BATCHED, generate.TRANSFORMERS, "no-drafting", "auto"]


@pytest.mark.long
def test_batched_guidance_gives_the_tokens_of_transformers_generate():
    """The unconditional prompt is shorter than the prompt, so the second row begins with padding."""
    target = bundled().target
    names = "encode_prompt", "unconditional", "decoder"
    short = SimpleNamespace(length=6, **{name: getattr(target, name) for name in names})
    model = generate.chameleon()
    (prompt,) = captions(generate.FIRST_CAPTION, 1)
    for seed in (1, 2):
        sampling = replace(SAMPLING, seed=seed)
        tokens = [way(model, short, prompt, sampling) for way in (generate.batched, generate.generate)]
        assert tokens[0].equal(tokens[1]) and len(tokens[0]) == 6


@pytest.mark.long
def test_both_transformers_baselines_are_measured():
    lines = generate.measure(1)
    assert [line["method"] for line in lines] == list(generate.TITLES)
    assert all(line["seconds"] > 0 for line in lines) and lines[0]["speedup"].low is None
    assert generate.tables(lines)["transformers"].count("\n") == 5


def test_auto_is_measured_for_each_batch_size_and_set(monkeypatch, capsys):
    line = {"kind": "", "at once": 0, "speedup": None, "totals": 2.0, "worst": 1.5, "identical": "1 of 1"}
    monkeypatch.setattr(auto, "workers", lambda *_: nullcontext())
    monkeypatch.setattr(
        auto,
        "measure",
        lambda _, kind, size, *__: [
            line | {"kind": kind, "at once": size, "method": name} for name in ("auto", "jacobi")
        ],
    )
    monkeypatch.setattr(sys, "argv", ["auto", "--batch-size", "1,4", "--sets", "grammar,ordinary"])
    auto.main()
    printed = capsys.readouterr().out
    for kind, size in product(("grammar", "ordinary"), (1, 4)):
        assert f"| {kind} | {size} | auto | " in printed and f"auto, {kind}, batch size {size}: 1.000 " in printed
