"""Records of runs: what is kept comes back, and what was changed is noticed."""

import json

import pandas as pd
import pytest

from staircase_lib.language import records


@pytest.fixture
def folder(tmp_path):
    tables = {"rows": pd.DataFrame({"step": [0, 8], "value": [0.25, float("nan")]})}
    return records.keep(
        tmp_path / "run",
        tables,
        parameters={"seeds": 3, "corpus": "english"},
        facts={"tokens": 1000},
        seconds=12.34,
        device="a laptop",
    )


def test_a_record_comes_back(folder):
    found = records.read(folder)
    assert found.name == "run"
    rows = found.tables["rows"]
    assert rows["step"].tolist() == [0, 8] and rows["value"].isna().tolist() == [False, True]
    assert found.provenance["parameters"] == {"seeds": 3, "corpus": "english"}
    assert found.provenance["seconds"] == 12.3
    assert {"commit", "date", "device", "python", "versions"} <= set(found.provenance)
    assert {path.suffix for path in folder.iterdir()} == {".parquet", ".json"}


def test_a_table_that_was_exchanged_is_noticed(folder):
    pd.DataFrame({"step": [0], "value": [1.0]}).to_parquet(folder / "rows.parquet")
    with pytest.raises(records.RecordError, match=r"rows\.parquet.*record the run again"):
        records.read(folder)


def test_a_missing_table_is_named(folder):
    (folder / "rows.parquet").unlink()
    with pytest.raises(records.RecordError, match=r"rows\.parquet: cannot be read"):
        records.read(folder)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"sha256": 3}'])
def test_a_provenance_that_is_none_is_refused(folder, text):
    (folder / "provenance.json").write_text(text)
    with pytest.raises(records.RecordError, match=r"provenance\.json"):
        records.read(folder)


def test_tables_outside_the_folder_are_not_read(folder):
    provenance = json.loads((folder / "provenance.json").read_text())
    provenance["sha256"] = {"../rows.parquet": "0" * 64}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    with pytest.raises(records.RecordError, match="tables in this folder"):
        records.read(folder)


def test_a_second_record_replaces_the_first(folder):
    records.keep(
        folder,
        {"rows": pd.DataFrame({"step": [1]})},
        parameters={},
        facts={},
        seconds=1.0,
        device="another",
    )
    assert records.read(folder).tables["rows"]["step"].tolist() == [1]
    assert records.read(folder).provenance["device"] == "another"
