"""Rows of parquet and JSON Lines files, with errors that name the file and the row. Imports no torch."""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.errors import UserError

EXTENSIONS = (".parquet", ".jsonl", ".json")


class Rows(list[dict[str, Any]]):
    """Rows that remember which file each came from."""

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []
        self._ends: list[int] = []

    def append_file(self, path: Path, rows: Iterable[dict[str, Any]]) -> None:
        """Adds the rows of one file at the end."""
        self.extend(rows)
        self._names.append(str(path))
        self._ends.append(len(self))

    def place(self, index: int) -> str:
        """Where row ``index`` came from, for messages: file and row, counted from 1 in each file."""
        number = bisect.bisect_right(self._ends, index)
        start = self._ends[number - 1] if number else 0
        return f"{self._names[number]} row {index - start + 1}"


def place(rows: Sequence[Mapping[str, Any]], i: int) -> str:
    """Where row ``i`` came from, for messages; rows that were handed in are counted from 1."""
    return rows.place(i) if isinstance(rows, Rows) else f"data row {i + 1}"


def load_rows(files: str | Path | Sequence[str | Path], *, key: str = "data.train_files") -> Rows:
    """Reads parquet (``.parquet``) and JSON Lines (``.jsonl``, ``.json``) files, in the order given.

    A ``.json`` file may also hold one array of objects. ``~`` is expanded.

    Args:
        files: one path or several.
        key: the setting that named the files, for messages.

    Raises:
        UserError: no file given, a file that is missing, damaged, empty or of an unknown kind, a line that
            is not UTF-8 or not a JSON object.
    """
    paths = [files] if isinstance(files, str | Path) else list(files)
    if not paths:
        raise UserError(f"{key} is empty; give a parquet or JSONL file")
    rows = Rows()
    for path in (Path(os.path.expanduser(item)) for item in paths):
        rows.append_file(path, _read(path, key))
    return rows


def _read(path: Path, key: str) -> list[dict[str, Any]]:
    if path.is_dir():
        raise UserError(f"{key}={path} is a folder; name the files in it")
    if not path.is_file():
        raise UserError(f"{key}={path}: no such file; `cohort data --help` lists data sets that can be made")
    if path.suffix not in EXTENSIONS:
        raise UserError(f"{key}={path}: unknown extension {path.suffix!r}; legal are {', '.join(EXTENSIONS)}")
    rows = _read_parquet(path, key) if path.suffix == ".parquet" else _read_json(path, key)
    if not rows:
        raise UserError(f"{key}={path}: the file has no rows")
    return rows


def _read_parquet(path: Path, key: str) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{key}={path}: not a readable parquet file ({_first_line(error)})") from error
    try:
        return table.to_pylist()
    except UnicodeDecodeError:
        for i in range(table.num_rows):
            try:
                table.slice(i, 1).to_pylist()
            except UnicodeDecodeError as error:
                raise UserError(f"{key}={path} row {i + 1}: not UTF-8 ({error})") from error
        raise


def _read_json(path: Path, key: str) -> list[dict[str, Any]]:
    data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    if path.suffix == ".json" and data.lstrip()[:1] == b"[":
        items = _parse(data, f"{key}={path}")
        return [_checked(item, f"{key}={path} item {i}") for i, item in enumerate(items, 1)]
    rows = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            place = f"{key}={path} line {number}"
            rows.append(_checked(_parse(line, place), place))
    return rows


def _parse(data: bytes, place: str) -> Any:
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: not UTF-8 (byte {error.start} is 0x{data[error.start]:02x})") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{place}: not JSON ({error.msg} at column {error.colno})") from error


def _checked(item: object, place: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise UserError(f"{place}: a row must be a JSON object, this is {type(item).__name__}")
    return item


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def write_rows(path: str | Path, rows: Sequence[Mapping[str, object]]) -> Path:
    """Writes rows as one parquet file, whole or not at all, and returns its path.

    Raises:
        UserError: if there is nothing to write or the place cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(os.path.expanduser(path))
    if not rows:
        raise UserError(f"{path}: there are no rows to write")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    names = dict.fromkeys(name for row in rows for name in row)  # pyarrow would look at the first row alone
    table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            pq.write_table(table, draft)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
    return path
