"""Tasks that judge a model as it is and under any plan, each number with its interval and its price."""

from timonel.evaluate._greedy import Greedy
from timonel.evaluate.answers import parse_answer
from timonel.evaluate.culture import culture_task
from timonel.evaluate.fluency import Fluency, fluency
from timonel.evaluate.generate import Written, generate
from timonel.evaluate.metrics import METRICS, Metric, difference, level, metrics_table
from timonel.evaluate.n4 import n4_task
from timonel.evaluate.questions import Question, QuestionTask
from timonel.evaluate.recommend import Recommendation, recommend
from timonel.evaluate.rivals import diff_mean_plan, edge_plan, head_plan, prompt_rival
from timonel.evaluate.run import Evaluation, evaluate
from timonel.evaluate.task import BASELINE, Condition, Task

__all__ = [
    "BASELINE",
    "METRICS",
    "Condition",
    "Evaluation",
    "Fluency",
    "Greedy",
    "Metric",
    "Question",
    "QuestionTask",
    "Recommendation",
    "Task",
    "Written",
    "culture_task",
    "diff_mean_plan",
    "difference",
    "edge_plan",
    "evaluate",
    "fluency",
    "generate",
    "head_plan",
    "level",
    "metrics_table",
    "n4_task",
    "parse_answer",
    "prompt_rival",
    "recommend",
]
