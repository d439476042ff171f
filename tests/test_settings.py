"""The settings appendix: every parameter has an author, and what is built is read right."""

import ast

import pytest
from project import REPOSITORY, chapter, code, make_project

from staircase_lib import book, chapters, settings

PARAMETERS = """seeds = 10  # paper
lr = 1e-3  # ours: usual, for AdamW
sizes = [
    2,
    3,
]  # ours: two of them"""
SETUP = """a = tasks.merge_permutations(tasks.addition(4, None, length=2))
def build(width, lr):
    training.TrainConfig(20, lr)
    return models.EmbeddingFFN(a.vocab_size, width, runs=seeds)
config = training.TrainConfig(20, lr, "adamw")
print(models.seeded(range(seeds)), training.train(build(8, 1), a, config))"""


def one(tmp_path, parameters=PARAMETERS, setup=SETUP):
    text = chapter(
        "Page",
        code(parameters, "parameters"),
        code(setup),
        extra="staircase:\n  profiles:\n    smoke: {seeds: 2}\n",
    )
    return chapters.read_chapters(make_project(tmp_path, {"page": text}))[0]


def test_author_reason_and_both_profiles_are_read(tmp_path):
    seeds, lr, sizes = settings.parameter_settings(one(tmp_path))
    assert seeds == settings.Setting("seeds", 10, 2, "paper", "")
    assert lr == settings.Setting("lr", 1e-3, 1e-3, "ours", "usual, for AdamW")
    assert sizes.why == "two of them" and sizes.value == [2, 3]


@pytest.mark.parametrize(
    "comment", ["", "# ours", "# theirs: reason", "# paper: reason", "# ours:"]
)
def test_a_parameter_without_an_author_is_named(tmp_path, comment):
    page = one(tmp_path, f"seeds = 10  {comment}")
    with pytest.raises(chapters.BookError, match=r"page: parameter seeds: expected a comment"):
        settings.parameter_settings(page)


def test_what_is_built_stands_with_its_values(tmp_path):
    assert settings.constructions(one(tmp_path)) == [
        "tasks.merge_permutations(tasks.addition(4, None, length=2))",
        "training.TrainConfig(20, lr)",  # the argument, not the parameter
        "models.EmbeddingFFN(a.vocab_size, width, runs=10)",
        "training.TrainConfig(20, 0.001, 'adamw')",
    ]


def test_every_parameter_of_the_book_has_an_author():
    pages = chapters.read_chapters(REPOSITORY)
    found = [s for page in pages if page.parameters for s in settings.parameter_settings(page)]
    assert {"paper", "ours"} == {s.chosen_by for s in found}
    for page in pages:
        for call in settings.constructions(page):
            ast.parse(call)


def test_the_appendix_is_made_again_when_another_page_changes(tmp_path):
    """Wrong variant: a list of files, which does not see a new page."""
    reads = {"pattern": '["*.md"]', "list": "[page.md]"}
    pages = {"page": chapter("Page", code("1"))}
    pages |= {
        name: chapter(name, code("2"), extra=f"staircase:\n  reads: {value}\n")
        for name, value in reads.items()
    }
    root = make_project(tmp_path, pages)

    def keys():
        found = {page.name: page for page in chapters.read_chapters(root)}
        return {name: book.chapter_parts(root, found[name], {})["reads"] for name in reads}

    before = keys()
    (root / "book/another.md").write_text(chapter("Another"))
    after = keys()
    assert after["pattern"] != before["pattern"]
    assert after["list"] == before["list"]
