"""What a person sees: tables and sentences on standard output, progress and complaints on standard error."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table


def complain(sentence: str) -> None:
    """One sentence on standard error, on one line, whatever a library's message in it looks like."""
    print(f"timonel: {' '.join(sentence.splitlines())}", file=sys.stderr, flush=True)


def remark(text: str) -> None:
    """Lines beside the result, on standard error."""
    print(text, file=sys.stderr, flush=True)


def quiet_libraries() -> None:
    """Turns off the bars and notices that libraries print about their own work."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def say(text: str = "") -> None:
    """Text on standard output, wrapped to the terminal."""
    from rich.console import Console

    Console(highlight=False, soft_wrap=not sys.stdout.isatty()).print(text, markup=False, emoji=False)


def show(table: Table) -> None:
    """A table on standard output; never squeezed narrower than it is when it goes into a file."""
    from rich.console import Console

    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=140)
    console.print(table)


def table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table; columns after the first that hold numbers stand to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for index, header in enumerate(headers):
        cells = [row[index] for row in rows]
        numeric = bool(cells) and all(not cell or cell.strip()[:1] in "+-−0123456789—" for cell in cells)
        made.add_column(Text(header), justify="right" if numeric and index else "left", no_wrap=index == 0)
    for row in rows:
        made.add_row(*map(Text, row))  # no markup, no emoji codes: cells hold texts of prompts
    return made


def print_json(value: Any) -> None:
    """One JSON value on standard output; numbers that are none become null."""
    print(json.dumps(_clean(value), ensure_ascii=False, indent=2))


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows for `print_json`."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict(orient="records")]


def _clean(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _clean(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(one) for one in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class Meter:
    """Progress on standard error: a bar on a terminal, a line now and then in a log; silent for two seconds."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._stage = ""
        self._start = self._last = 0.0
        self._shown = False

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Takes the engine's report."""
        now = time.monotonic()
        if stage != self._stage or done == 0:
            self._stage, self._start, self._last, self._shown = stage, now, now, False
        spent = now - self._start
        if self.quiet or total == 0 or (spent < 2 and not self._shown):
            return
        terminal = sys.stderr.isatty()
        if done < total and now - self._last < (0.2 if terminal else 15):
            return
        self._last, self._shown = now, True
        left = _duration(spent * (total - done) / done) + " left" if 0 < done < total else _duration(spent)
        share = done / total
        if terminal:
            bar = "━" * int(30 * share) + "─" * (30 - int(30 * share))
            end = "\n" if done >= total else ""
            print(f"\r\x1b[2K{stage} {bar} {share:4.0%}  {left}", end=end, file=sys.stderr, flush=True)
        else:
            print(f"timonel: {stage} {share:.0%}, {left}", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def duration(seconds: float) -> str:
    """A length of time for people: `45 s`, `12 min`, `1.5 h`."""
    return _duration(seconds)
