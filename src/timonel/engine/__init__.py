"""Running prompts under conditions: batches, shared prefixes, and a store that survives being killed."""

from timonel.engine.batches import Progress
from timonel.engine.engine import Engine
from timonel.engine.face import score, score_requests, table_of
from timonel.engine.folder import RunFolder, is_running, open_run, read_record
from timonel.engine.identity import SCORING_VERSION
from timonel.engine.request import Answer, Reading, Request, choice, continuation
from timonel.engine.store import Store
from timonel.engine.workers import RayWorkers
from timonel.engine.workload import Workload

__all__ = [
    "SCORING_VERSION",
    "Answer",
    "Engine",
    "Progress",
    "RayWorkers",
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
    "score_requests",
    "table_of",
]
