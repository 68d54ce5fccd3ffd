import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cohort.data.files import load_rows, write_rows
from cohort.errors import UserError

ROWS = [
    {"data_source": "s", "prompt": [{"role": "user", "content": "1+1"}], "reward_model": {"ground_truth": "2"}},
    {"data_source": "s", "prompt": [{"role": "user", "content": "1+2"}], "reward_model": {"ground_truth": "3"}},
]


def write(path, data):
    path.write_bytes(data)
    return path


def test_parquet_and_jsonl_give_the_same_rows(tmp_path):
    parquet = write_rows(tmp_path / "deep" / "a.parquet", ROWS)
    jsonl = write(tmp_path / "a.jsonl", "\n".join(json.dumps(row) for row in ROWS).encode() + b"\n\n")
    array = write(tmp_path / "a.json", json.dumps(ROWS).encode())
    assert list(load_rows(parquet)) == list(load_rows(str(jsonl))) == list(load_rows(array)) == ROWS
    assert [path.name for path in parquet.parent.iterdir()] == ["a.parquet"]  # no draft is left


def test_columns_that_only_later_rows_have_are_written(tmp_path):
    path = write_rows(tmp_path / "a.parquet", [{"a": 1}, {"a": 2, "b": "x"}])
    assert list(load_rows(path)) == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_several_files_in_order_with_the_place_of_each_row(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "a.jsonl", b'{"prompt": "1"}\n{"prompt": "2"}\n')
    write(tmp_path / "b.jsonl", b'\xef\xbb\xbf{"prompt": "3"}\n')
    rows = load_rows(["~/a.jsonl", tmp_path / "b.jsonl"])
    assert [row["prompt"] for row in rows] == ["1", "2", "3"]
    assert [rows.place(i) for i in range(3)] == [
        f"{tmp_path}/a.jsonl row 1",
        f"{tmp_path}/a.jsonl row 2",
        f"{tmp_path}/b.jsonl row 1",
    ]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("none.parquet", None, "none.parquet: no such file"),
        ("a.csv", b"x", "unknown extension '.csv'; legal are .parquet, .jsonl, .json"),
        ("bad.parquet", b"PAR1 this is not parquet", "bad.parquet: not a readable parquet file"),
        ("zero.parquet", b"", "zero.parquet: not a readable parquet file"),
        ("empty.jsonl", b"\n\n", "empty.jsonl: the file has no rows"),
        ("bad.jsonl", b'{"prompt": "1"}\n\n{"prompt": 2', "bad.jsonl line 3: not JSON"),
        ("latin.jsonl", b'{"prompt": "1"}\n{"prompt": "\xe9"}\n', "latin.jsonl line 2: not UTF-8 (byte 12 is 0xe9)"),
        ("list.jsonl", b"[1, 2]\n", "list.jsonl line 1: a row must be a JSON object, this is list"),
        ("items.json", b'[{"prompt": "1"}, 7]', "items.json item 2: a row must be a JSON object, this is int"),
    ],
)
def test_bad_files_are_one_line_with_the_place(tmp_path, name, data, message):
    path = tmp_path / name
    if data is not None:
        write(path, data)
    with pytest.raises(UserError) as caught:
        load_rows(path, key="data.val_files")
    assert message in str(caught.value)
    assert str(caught.value).startswith("data.val_files=")
    assert "\n" not in str(caught.value)


def test_parquet_text_that_is_not_utf8_names_the_row(tmp_path):
    column = pa.array([b"fine", b"\xff\xfe"], type=pa.binary()).view(pa.string())
    pq.write_table(pa.table({"prompt": column}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"x.parquet row 2: not UTF-8"):
        load_rows(tmp_path / "x.parquet")


def test_a_folder_no_file_and_nothing_to_write(tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        load_rows(tmp_path)
    with pytest.raises(UserError, match="data.train_files is empty"):
        load_rows([])
    with pytest.raises(UserError, match="no rows to write"):
        write_rows(tmp_path / "x.parquet", [])
    write(tmp_path / "file", b"")
    with pytest.raises(UserError, match="cannot be written"):
        write_rows(tmp_path / "file" / "x.parquet", ROWS)
