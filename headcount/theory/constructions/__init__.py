"""Proofs that run: weights compiled into the module classes that are trained, compared in float64 with
semantics written without attention."""

from headcount.theory.constructions.border import (
    concatenated_border,
    content_floor,
    expand,
    iha_border,
    mha_border,
)
from headcount.theory.constructions.catalogue import catalogue
from headcount.theory.constructions.construction import (
    Construction,
    NoConstruction,
    ceil_sqrt,
    deviation,
    distance_to_limit,
)
from headcount.theory.constructions.counting import (
    attention_parameters,
    histogram_count,
    modulo_count,
    printed_bound,
    printed_parameters,
    relu_count,
    softmax_error_bound,
    softmax_of_tokens,
    token_differences,
    workspace,
)
from headcount.theory.constructions.folds import FOLDS, folded_mechanism
from headcount.theory.constructions.inclusion import (
    Counterexample,
    Route,
    counterexample,
    every_route,
    fold,
    folding,
    include,
    inclusion,
)
from headcount.theory.constructions.patterns import PatternCount, count_patterns
from headcount.theory.constructions.polynomial import (
    iha_parameters,
    iha_polynomial,
    mha_parameters,
    mha_polynomial,
)
from headcount.theory.constructions.printed import (
    Fact,
    shift_example,
    symmetric_although_large,
    symmetric_example,
    transposed_query_examples,
    workspace_example,
)
from headcount.theory.constructions.strictness import nonlinearity, strictness
from headcount.theory.constructions.width import narrow_polynomial

__all__ = [
    "FOLDS",
    "Construction",
    "Counterexample",
    "Fact",
    "NoConstruction",
    "PatternCount",
    "Route",
    "attention_parameters",
    "catalogue",
    "ceil_sqrt",
    "concatenated_border",
    "content_floor",
    "count_patterns",
    "counterexample",
    "deviation",
    "distance_to_limit",
    "every_route",
    "expand",
    "fold",
    "folded_mechanism",
    "folding",
    "histogram_count",
    "iha_border",
    "iha_parameters",
    "iha_polynomial",
    "include",
    "inclusion",
    "mha_border",
    "mha_parameters",
    "mha_polynomial",
    "modulo_count",
    "narrow_polynomial",
    "nonlinearity",
    "printed_bound",
    "printed_parameters",
    "relu_count",
    "shift_example",
    "softmax_error_bound",
    "softmax_of_tokens",
    "strictness",
    "symmetric_although_large",
    "symmetric_example",
    "token_differences",
    "transposed_query_examples",
    "workspace",
    "workspace_example",
]
