"""Learning from programs (inst2vec: Ben-Nun, Jakobovits and Hoefler, 2018).

- `compile_c` and `read_ir`: C to LLVM IR, and IR to functions of statements
- `normalised`: a statement as a word, without names and numbers
- `flow_edges` and `context_pairs`: which statements depend on each other
- `train_embedding`: vectors of statements; `Embedding`: similarity, nearest statements and
  analogies
- `analogy_scores`, `distance_score`: tests of their quality
- `poj104`: the programs of POJ-104
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.code.analogies import Score, analogy_scores, distance_score
from caldera.code.corpora import SourceProgram as Program
from caldera.code.corpora import poj104
from caldera.code.embedding import StatementEmbedding as Embedding
from caldera.code.embedding import pairs_of, train_embedding
from caldera.code.flow_graph import context_pairs, flow_edges
from caldera.code.llvm_ir import Function, Statement, compile_c, read_ir
from caldera.code.vocabulary import Vocabulary, normalised

__all__ = [
    "Embedding",
    "Function",
    "Program",
    "Score",
    "Statement",
    "Vocabulary",
    "analogy_scores",
    "compile_c",
    "context_pairs",
    "distance_score",
    "flow_edges",
    "normalised",
    "pairs_of",
    "poj104",
    "read_ir",
    "train_embedding",
]

_guard(
    globals(),
    "Function",
    "Program",
    "Score",
    "Statement",
    methods={
        "Embedding": "analogy nearest save similarities similarity",
        "Vocabulary": "numbers of",
    },
)
