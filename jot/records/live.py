"""Reading a live store: what its processes have finished so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from jot.errors import UserError
from jot.records.cells import Cell, Recorded, natural
from jot.records.lines import EXTRA, FIELDS, SUMS, TRACE, are_totals, check_meta, from_line, parse


class Rows:
    """All records of one cell in a store, by document; can be refreshed while other processes append."""

    def __init__(self, folder: Path, cell_id: str) -> None:
        self.folder, self.cell_id = folder, cell_id
        self.ends: dict[Path, tuple[int, int]] = {}  # how far each part was read: bytes, lines
        self.rows: dict[str, dict] = {}

    def refresh(self, skip: Path | None = None) -> None:
        for path in sorted(self.folder.glob(f"{self.cell_id}*.jsonl")):
            if path != skip:
                self.read(path)

    def read(self, path: Path) -> None:
        """Takes in the lines completed since the last call; one without its line feed is being written, or torn."""
        end, number = self.ends.setdefault(path, (0, 0))
        try:
            with open(path, "rb") as file:
                file.seek(end)
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(f"cannot read {path} ({error.strerror}); check its permissions") from error
        for line in lines[:-1]:
            end, number = end + len(line) + 1, number + 1
            try:
                record = from_line(line)
            except (ValueError, TypeError, RecursionError) as error:
                raise UserError(
                    f"line {number} of {path} is no record ({str(error)[:80]}); "
                    "delete that line to decode its sample again"
                ) from error
            if record["cell"] != self.cell_id[-10:]:
                raise UserError(
                    f"{path} holds records of another configuration ({record['cell']}, not "
                    f"{self.cell_id[-10:]}); move it to the store it came from"
                )
            old = self.rows.setdefault(record["doc_id"], record)
            if any(old[name] != record[name] for name in ("generated", "score")):
                raise UserError(f"{path} repeats {record['doc_id']!r} with another result; remove one of the two files")
            self.ends[path] = end, number

    def frame(self) -> pd.DataFrame:
        return to_frame(self.rows.values())


def to_frame(rows: Iterable[Mapping]) -> pd.DataFrame:
    """Records as a table, one row a sample ordered by document; `score` is NaN where a task has none."""
    rows = sorted(rows, key=lambda row: natural(row["doc_id"]))
    frame = pd.DataFrame({name: [row[name] for row in rows] for name in FIELDS})
    frame["score"] = frame["score"].astype("float64")
    for name in EXTRA:
        if any(name in row for row in rows):
            frame[name] = [row.get(name, "plain") for row in rows]
    for name in TRACE:
        if any(row.get("trace") for row in rows):
            frame[f"trace_{name}"] = [(row.get("trace") or {}).get(name) for row in rows]
    return frame


def read_meta(path: Path) -> dict:
    """`<cell>.json`, checked against its own name: an edited configuration is refused, totals that cannot be are left
    out.
    """
    try:
        meta = parse(path.read_text())
        check_meta(meta)
        key = Cell(meta["config"]).key
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); check the path and its permissions") from error
    except ValueError as error:
        raise UserError(f"{path} is not a cell's configuration ({error}); restore it or use another store") from error
    if key != path.stem[-10:] or meta.get("cell") != path.stem:
        raise UserError(
            f"{path} was written by another configuration than its name says (or edited); "
            "restore it or use another store"
        )
    if not are_totals(meta.get("totals")):
        meta.pop("totals", None)  # the samples tell them
    return meta


def recorded_live(folder: Path, cell_id: str, meta: dict) -> Recorded:
    rows = Rows(folder, cell_id)
    rows.refresh()
    # The file's totals are those of the last run that ended in order.
    return Recorded(meta | {"totals": totals(rows.rows.values())}, rows.frame())


def totals(rows: Iterable[Mapping]) -> dict:
    """Sums over samples, as kept in `<cell>.json`."""
    rows = list(rows)
    scores = [row["score"] for row in rows if row["score"] is not None and row["score"] == row["score"]]
    sums = {name: sum(row[name] for row in rows) for name in SUMS}
    return {"samples": len(rows), "score": sum(scores) if scores else None, **sums}
