"""Break the code on purpose, one fault at a time, and see the tests go red: `make mutants`.

Each fault is one that real projects have had. It is planted in a copy of the package, the named tests run against the
copy, and a fault that no test notices is an error. Prints a table; exit code 1 if a mutant survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    """A fault: which text of which file becomes which, and the tests that must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str


EDGES, ROWS = "tests/steer/test_edges.py", "tests/steer/test_edge_rows.py"
SCORES = "tests/engine/test_scores.py"
MUTANTS = (
    Mutant(
        "mask before the soft cap",
        "steer/_edges.py",
        """    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    kv_offset = place.kv_offsets[table.layer]
    scores = _masked(scores, mask, batch, head, at, place.past, kv_offset)  # [m, q, k]
""",
        """    kv_offset = place.kv_offsets[table.layer]
    scores = _masked(scores, mask, batch, head, at, place.past, kv_offset)  # [m, q, k]
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
""",
        ROWS,
    ),
    Mutant(
        "the query head for the key/value head",
        "steer/_tables.py",
        "head // geometry.layers[layer].group)",
        "head % geometry.layers[layer].kv_heads)",
        EDGES,
    ),
    Mutant(
        "spans shifted by one",
        "prompts/render.py",
        "max(start, first) < min(end, last)",
        "max(start, first + 1) < min(end, last + 1)",
        "tests/prompts",
    ),
    Mutant(
        "left pad not added",
        "steer/_edges.py",
        "local = table.queries[edge] + pads[batch, None] - place.past",
        "local = table.queries[edge] - place.past",
        ROWS,
    ),
    Mutant(
        "first rows of a decode step instead of the last",
        "steer/_edges.py",
        "local = table.queries[edge] + pads[batch, None] - place.past",
        "local = table.queries[edge] + pads[batch, None]",
        ROWS,
    ),
    Mutant(
        "softmax in half precision",
        "steer/_edges.py",
        "dtype = torch.promote_types(query.dtype, torch.float32)",
        "dtype = query.dtype",
        ROWS,
    ),
    Mutant(
        "no causal mask where the model gives none",
        "steer/_edges.py",
        "scores.masked_fill(columns > (at + past)[..., None], -torch.inf)",
        "scores",
        ROWS,
    ),
    Mutant(
        "a mask made for another attention function",
        "steer/_attention.py",
        "slot.function(module, query, key, value, attention_mask, **kwargs)",
        "slot.function(module, query, key, value, None, **kwargs)",
        EDGES,
    ),
    Mutant(
        "hooks stay when the body raises",
        "steer/attach.py",
        "undo.callback(hook.register(model, geometry, where).remove)",
        "undo.push(lambda kind, *_, h=hook.register(model, geometry, where): None if kind else h.remove())",
        "tests/steer/test_channels.py",
    ),
    Mutant(
        "offset from k.shape - q.shape",
        "steer/_edges.py",
        "kv_offset = place.kv_offsets[table.layer]",
        "kv_offset = key.shape[2] - query.shape[2]",
        ROWS,
    ),
    Mutant(
        "a plan written into a shared config",
        "steer/_attention.py",
        "lent = copy.copy(config)",
        "lent = config",
        "tests/steer/test_generate.py",
    ),
    Mutant(
        "a plan resumed one layer late",
        "engine/layout.py",
        "layer = one.first_layer if member in resumed else 0",
        "layer = one.first_layer + 1 if member in resumed else 0",
        SCORES,
    ),
    Mutant(
        "a window one token too wide in a packed pass",
        "engine/masks.py",
        "positions[:, :, None] - keys[:, None] < window",
        "positions[:, :, None] - keys[:, None] <= window",
        SCORES,
    ),
    Mutant(
        "rows that a plan leaves alone taken from the layer before",
        "engine/shortcuts.py",
        "kept(resume.layer + 1)[:, touched:]",
        "kept(resume.layer)[:, touched:]",
        SCORES,
    ),
    Mutant(
        "siblings of a tree see each other",
        "engine/tree.py",
        "seen = np.eye(len(self), dtype=bool)",
        "seen = np.tri(len(self), dtype=bool)",
        SCORES,
    ),
    Mutant(
        "readings before a plan's first row forgotten",
        "engine/forward.py",
        "self.early.get((member, answer), 0.0) +",
        "0.0 * self.early.get((member, answer), 0.0) +",
        "tests/engine/test_reuse.py",
    ),
    Mutant(
        "a head's channels from hidden / heads",
        "steer/interventions.py",
        "factors[head * place.head_dim : (head + 1) * place.head_dim] = alpha",
        "factors[head * (geometry.hidden // place.heads) : (head + 1) * (geometry.hidden // place.heads)] = alpha",
        "tests/steer/test_channels.py",
    ),
    Mutant(
        "a prefix shared beyond the first row that a plan changes",
        "engine/request.py",
        "min(bound.first_rows(), default=length)",
        "min(min(bound.first_rows(), default=length) + 1, length - 1)",
        SCORES,
    ),
)


def survives(mutant: Mutant, folder: Path) -> bool:
    """Plants a fault in a fresh copy of the package and runs its tests; True if they stay green."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    file = source / "timonel" / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"The mutant {mutant.name!r} no longer fits {mutant.file}; bring it up to date.")
    file.write_text(text.replace(mutant.old, mutant.new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", mutant.tests]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"The tests of {mutant.name!r} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def main() -> int:
    """Runs all mutants, or those whose name contains an argument."""
    chosen = [one for one in MUTANTS if not sys.argv[1:] or any(word in one.name for word in sys.argv[1:])]
    alive = 0
    for mutant in chosen:
        with tempfile.TemporaryDirectory() as folder:
            lives = survives(mutant, Path(folder))
        alive += lives
        print(f"{'SURVIVES' if lives else 'red     '}  {mutant.name}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} mutants turned a test red")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
