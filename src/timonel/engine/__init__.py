"""Running prompts under conditions: batches, shared prefixes, and a store that survives being killed."""

from timonel.engine.engine import SCORING_VERSION, Engine, Progress
from timonel.engine.face import score
from timonel.engine.folder import RunFolder, is_running, open_run, read_record
from timonel.engine.request import Answer, Reading, Request, choice, continuation
from timonel.engine.store import Store
from timonel.engine.workload import Workload

__all__ = [
    "SCORING_VERSION",
    "Answer",
    "Engine",
    "Progress",
    "Reading",
    "Request",
    "RunFolder",
    "Store",
    "Workload",
    "choice",
    "continuation",
    "is_running",
    "open_run",
    "read_record",
    "score",
]
