"""Search for the best hyper-parameters and architectures.

from caldera import search
space = {"learning_rate": search.log(1e-4, 1e-1), "hidden": search.integer(64, 1024, step=64)}
study = search.run(build, space, data, method="tpe", stop="asha", trials=200, folder="study")
study.best.model
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.base.foreign_names import answer_foreign as _answer_foreign
from caldera.search.algorithms.basic_samplers import GridSearch as Grid
from caldera.search.algorithms.basic_samplers import Random, Swarm, Threshold
from caldera.search.algorithms.early_stopping import ASHA, Hyperband, Median, Promotion
from caldera.search.algorithms.evolution import PBT, Controller, Evolution, HierarchicalEvolution
from caldera.search.algorithms.optuna_samplers import (
    CMAES,
    NSGA2,
    GaussianProcess,
    QuasiRandom,
)
from caldera.search.algorithms.tpe import TPE
from caldera.search.analysis import Importance
from caldera.search.architecture import cell, hierarchy, layers, make_cell, make_layers, repeat
from caldera.search.callbacks import TrialTensorBoard as TensorBoard
from caldera.search.charts import TrialTable as Table
from caldera.search.dimension import Dimension, choice, integer, log, uniform
from caldera.search.luck import Luck, luck
from caldera.search.method import Method, methods
from caldera.search.method import TrialProposal as Proposal
from caldera.search.objective import (
    Constraint,
    Objective,
    accuracy,
    at_least,
    at_most,
    metric,
    pareto,
    time_to,
    weighted,
)
from caldera.search.runner import run
from caldera.search.scheduler import StudyCallback
from caldera.search.sensible import build_like, space_of
from caldera.search.space import Space
from caldera.search.study import Study, is_study, load
from caldera.search.trial import Trial

__all__ = [
    "ASHA",
    "CMAES",
    "NSGA2",
    "PBT",
    "TPE",
    "Constraint",
    "Controller",
    "Dimension",
    "Evolution",
    "GaussianProcess",
    "Grid",
    "HierarchicalEvolution",
    "Hyperband",
    "Importance",
    "Luck",
    "Median",
    "Method",
    "Objective",
    "Promotion",
    "Proposal",
    "QuasiRandom",
    "Random",
    "Space",
    "Study",
    "StudyCallback",
    "Swarm",
    "Table",
    "TensorBoard",
    "Threshold",
    "Trial",
    "accuracy",
    "at_least",
    "at_most",
    "build_like",
    "cell",
    "choice",
    "hierarchy",
    "integer",
    "is_study",
    "layers",
    "load",
    "log",
    "luck",
    "make_cell",
    "make_layers",
    "methods",
    "metric",
    "pareto",
    "repeat",
    "run",
    "space_of",
    "time_to",
    "uniform",
    "weighted",
]

_guard(
    globals(),
    methods={
        "Constraint": "violated",
        "Space": "at check_build decoded draw near",
        "Study": "losses model_of of_state page plot seconds_to",
    },
)
_answer_foreign(globals())
