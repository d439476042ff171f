"""Exercises: two or more a chapter, each with a folded solution whose code the build executed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from project import REPOSITORY, add_site, chapter, code, command, make_project
from test_browser import BOOK, Visit, browser  # noqa: F401, a fixture

from staircase_lib.chapters import read_chapters

#: Chapters with code and without experiments of their own: nothing there is left to try.
WITHOUT = {"08_conclusion", "A_settings", "E_running", "explorer", "glossary", "notation", "map"}
CHAPTERS = {
    c.name: c.path.read_text(encoding="utf-8")
    for c in read_chapters(REPOSITORY)
    if c.code and c.name not in WITHOUT
}
MARK = re.compile(
    r"^(`{3,})\{(exercise|solution(?:-start|-end)?|code-cell)\}(.*)\n(:label: (\S+)\n)?",
    re.MULTILINE,
)


@dataclass
class Exercise:
    """An exercise of a chapter, the labels of its solutions, and the code cells in these."""

    label: str
    title: str
    solutions: list[str]
    cells: int = 0


def exercises(text: str) -> tuple[list[Exercise], list[str]]:
    """The exercises of a chapter in their order, and what is wrong with them."""
    found: list[Exercise] = []
    wrong: list[str] = []
    inside = False
    for mark in MARK.finditer(text):
        kind, argument, label = mark[2], mark[3].strip(), mark[5] or ""
        if kind == "exercise":
            found.append(Exercise(label, argument, []))
            if not label:
                wrong.append(f"an exercise without a label: {argument}")
        elif kind in ("solution", "solution-start"):
            if not found or argument != found[-1].label:
                wrong.append(f"a solution of {argument!r} that does not follow it")
            else:
                found[-1].solutions.append(label)
            inside = kind == "solution-start"
        elif kind == "solution-end":
            inside = False
        elif inside and found:
            found[-1].cells += 1
    for exercise in found:
        if len(exercise.solutions) != 1 or not exercise.solutions[0]:
            wrong.append(f"{exercise.label}: expected one solution with a label")
    kinds = {exercise.title.partition(":")[0] for exercise in found}
    if len(found) < 2 or not {"Easy", "New"} <= kinds:
        wrong.append("expected an exercise `Easy: …` and one `New: …`")
    if sum(exercise.cells > 0 for exercise in found) < 2:
        wrong.append("expected code in two solutions")
    return found, wrong


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_chapter_has_exercises_with_solutions_that_run(name: str):
    found, wrong = exercises(CHAPTERS[name])
    assert wrong == []
    short = name.partition("_")[0] if "_" in name else "intro"
    labels = [label.lower() for e in found for label in (e.label, *e.solutions)]
    numbers = range(1, len(found) + 1)
    assert labels == [f"{kind}-{short.lower()}-{k}" for k in numbers for kind in ("ex", "sol")]


def exercise(kind: str, label: str) -> str:
    return f"\n```{{exercise}} {kind}: what is it\n:label: ex-{label}\n\nSay it.\n```\n"


def solution(label: str, *inside: str, name: str = "") -> str:
    start = f"\n```{{solution-start}} ex-{label}\n:label: sol-{name or label}\n```\n\nIt is this.\n"
    return start + "".join(inside) + "\n```{solution-end}\n```\n"


GOOD = (
    exercise("Easy", "one-1"), solution("one-1", code("print('first', 1)")),
    exercise("New", "one-2"), solution("one-2", code("print('second', 2)"), "\nSo be it.\n"),
)  # fmt: skip
WRONG = {
    "no solution": (*GOOD[:3],),
    "two solutions": (*GOOD, solution("one-2", name="one-3")),
    "solution of another": (GOOD[0], GOOD[3], GOOD[2], GOOD[1]),
    "no label": (*GOOD[:2], GOOD[2].replace(":label: ex-one-2\n", ""), GOOD[3]),
    "nothing new": (*GOOD[:2], exercise("Easy", "one-2"), GOOD[3]),
    "no code": (*GOOD[:3], solution("one-2")),
    "code before the solution": (*GOOD[:3], code("print(2)"), solution("one-2")),
    "only one": GOOD[:2],
}


def test_a_good_page_passes():
    assert exercises("".join(GOOD))[1] == []


@pytest.mark.parametrize("case", WRONG)
def test_what_is_incomplete_is_refused(case: str):
    assert exercises("".join(WRONG[case]))[1] != []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A book of one page with exercises, executed and rendered as the real one is."""
    root = make_project(tmp_path_factory.mktemp("exercises"), {"one": chapter("One", *GOOD)})
    add_site(root)
    done = command(root, "book")
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "_build" / "html" / "book" / "one.html"


@pytest.mark.browser
def test_a_folded_solution_opens_with_the_keyboard(browser: Browser, site: Path):  # noqa: F811
    visit = Visit(browser, site)
    page = visit.page
    summary = page.locator("#sol-one-2 > summary")
    output = page.locator("#sol-one-2 .cell_output")
    assert summary.inner_text() == "Solution to Exercise 2"
    assert output.count() == 1 and not output.is_visible()
    summary.focus()
    page.keyboard.press("Enter")
    assert output.is_visible() and "second 2" in output.inner_text()
    assert page.locator("#sol-one-2", has_text="So be it.").count() == 1
    page.keyboard.press("Space")
    assert not output.is_visible()
    ids = page.evaluate("[...document.querySelectorAll('main [id]')].map((node) => node.id)")
    assert len(ids) == len(set(ids))
    visit.close()


@pytest.mark.browser
def test_solutions_need_no_script_and_are_open_on_paper(browser: Browser, site: Path):  # noqa: F811
    visit = Visit(browser, site, java_script_enabled=False)
    output = visit.page.locator("#sol-one-1 .cell_output")
    assert not output.is_visible()
    visit.page.emulate_media(media="print")
    box = output.bounding_box()
    assert box is not None and box["height"] > 10
    visit.page.emulate_media(media="screen")
    visit.page.locator("#sol-one-1 > summary").click()
    assert output.is_visible()
    visit.context.close()


@pytest.mark.browser
def test_a_link_to_a_solution_opens_it(browser: Browser, site: Path):  # noqa: F811
    visit = Visit(browser, site)
    visit.page.goto(f"{site.as_uri()}#sol-one-2-content")
    visit.page.wait_for_selector("#sol-one-2[open]")
    visit.close()


def test_an_undefined_exercise_fails_the_build(tmp_path: Path):
    page = chapter("One", GOOD[0], solution("two-1", name="one-1"))
    root = make_project(tmp_path, {"one": page})
    add_site(root)
    done = command(root, "book")
    assert done.returncode != 0 and "undefined label: ex-two-1" in done.stdout + done.stderr


@pytest.mark.parametrize("name", CHAPTERS)
def test_solutions_in_the_built_book_have_been_executed(name: str):
    page = next(BOOK.rglob(f"{name}.html"), None)
    source = REPOSITORY / "book" / f"{name}.md"
    if page is None or page.stat().st_mtime < source.stat().st_mtime:
        pytest.skip("the page has not been built since the chapter was written")
    parts = re.split('<div class="exercise|<details class="solution', page.read_text("utf-8"))[1:]
    expected, _ = exercises(CHAPTERS[name])
    assert len(parts) == 2 * len(expected)
    for exercise, part in zip(expected, parts[1::2], strict=True):
        assert exercise.cells == 0 or "cell_output" in part, f"{exercise.label} has no output"
