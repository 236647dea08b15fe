"""Tasks as `kernelwright train tasks export` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl.errors import BadInput
from rl.tasks import read_tasks

ROWS = [
    {
        "ops": "[]",
        "data_source": "torch#1",
        "code": "one",
        "id": "f1",
        "level": 1,
        "split": "train",
    },
    {"ops": "[]", "data_source": "torch#2", "code": "two", "id": "f2", "level": 2, "split": "val"},
]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_exported_tasks_are_read(tmp_path: Path, ending: str) -> None:
    def write(rows: list[dict[str, Any]]) -> Path:
        path = tmp_path / f"tasks.{ending}"
        if ending == "jsonl":
            path.write_text("\n".join(map(json.dumps, rows)))
        else:
            pq.write_table(pa.Table.from_pylist(rows), path)
        return path

    found = read_tasks(write(ROWS), {"rounds": 1})
    assert [(t.name, t.level) for t in found] == [("f1", 1), ("f2", 2)]
    assert found[0].body == {"reference": "one", "rounds": 1}
    with pytest.raises(BadInput, match="line 2 is held out: it is of the split compositions"):
        read_tasks(write([ROWS[0], ROWS[1] | {"split": "compositions"}]), {})
    with pytest.raises(BadInput, match="line 2 has the id f1, as a task before it has"):
        read_tasks(write([ROWS[0], ROWS[1] | {"id": "f1"}]), {})
