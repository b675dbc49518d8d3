"""Polynomial filters: say X, A X, A^2 X, .., A^(k-1) X for a fixed matrix A (paper Sec. 3.1, B.2)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pydantic
import torch
from jaxtyping import Float

from headcount.config import BadInput
from headcount.tasks import operators
from headcount.tasks.task import Batch, Task

Operator = Literal["cyclic", "orthogonal", "gaussian", "karate", "les-miserables", "davis", "florentine", "file"]


class Polynomial(Task):
    """X ~ N(0, 1) of shape (N, d); the target is [X, A X, .., A^(k-1) X] of shape (N, k d).

    Example, cyclic shift, N = 3, d = 1, k = 2: X = (5, 7, 9) gives rows (5, 7), (7, 9), (9, 5).

    Attributes:
        k: number of terms A^0 .. A^(k-1).
        tokens: N; a graph sets it to its number of nodes.
        features: d, columns of X.
        operator: where A comes from.
        operator_seed: of the random operators; A does not change with the trial's seed.
        normalisation: of a graph, see `operators.normalised_adjacency`.
        graph: path of a user's graph when operator is "file".
        graph_digest: of that file, so that another file is another run.
    """

    name: Literal["polynomial"] = "polynomial"
    k: int = pydantic.Field(default=4, ge=1, le=4096)
    tokens: int = pydantic.Field(default=26, ge=2, le=operators.LARGEST_GRAPH)
    features: int = pydantic.Field(default=1, ge=1, le=1024)
    operator: Operator = "cyclic"
    operator_seed: int = pydantic.Field(default=0, ge=0)
    normalisation: Literal["self-loops", "plain", "none"] = "self-loops"
    graph: str | None = None
    graph_digest: str | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _size_from_graph(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        graph, operator = data.get("graph"), data.get("operator", "cyclic")
        if graph is not None and "operator" not in data:
            data["operator"] = operator = "file"
        if (operator == "file") != (graph is not None):
            raise ValueError("operator 'file' and a graph file go together")
        if operator == "file" and data.get("graph_digest") and data.get("tokens"):
            # A stored configuration can be read where the file is not; `matrix` needs it.
            return data
        if operator == "file":
            data["graph_digest"] = data.get("graph_digest") or operators.file_digest(graph)
            nodes = len(operators.file_adjacency(graph, data["graph_digest"]))
        elif operator in operators.GRAPHS:
            nodes = len(operators.graph_adjacency(operator))
            if data.get("normalisation") == "none":
                raise ValueError("normalisation 'none' is for matrix files; graphs take 'self-loops' or 'plain'")
        else:
            return data
        if data.setdefault("tokens", nodes) != nodes:
            raise ValueError(f"operator '{operator}' has {nodes} nodes, so tokens cannot be {data['tokens']}")
        return data

    @property
    def length(self) -> int:
        return self.tokens

    @property
    def input_width(self) -> int:
        return self.features

    @property
    def output_width(self) -> int:
        return self.k * self.features

    def matrix(self) -> operators.Matrix:
        """The operator A, (N, N) in float64."""
        if self.operator == "cyclic":
            return operators.cyclic_shift(self.tokens)
        if self.operator == "orthogonal":
            return operators.random_orthogonal(self.tokens, self.operator_seed)
        if self.operator == "gaussian":
            return operators.random_gaussian(self.tokens, self.operator_seed)
        if self.operator == "file":
            if self.graph is None or self.graph_digest is None:
                raise BadInput("operator 'file' needs a graph file")
            adjacency = operators.file_adjacency(self.graph, self.graph_digest)
        else:
            adjacency = operators.graph_adjacency(self.operator)
        return operators.normalised_adjacency(adjacency, self.normalisation)

    def powers(self) -> Float[np.ndarray, "k tokens tokens"]:
        """[A^0, .., A^(k-1)] in float64."""
        return _powers(self)

    def sample(self, examples: int, generator: torch.Generator) -> Batch:
        inputs = torch.randn(examples, self.tokens, self.features, generator=generator)
        return Batch(inputs, self.answer(inputs))

    def answer(
        self, inputs: Float[torch.Tensor, "examples tokens features"]
    ) -> Float[torch.Tensor, "examples tokens outputs"]:
        """The target; output column i d + c is column c of A^i X."""
        if self.features == 1:
            return (inputs[..., 0] @ _answer_matrix(self, inputs.dtype)).reshape(len(inputs), self.tokens, self.k)
        powers = torch.from_numpy(self.powers()).to(inputs.dtype)
        terms = torch.einsum("kij,bjd->bikd", powers, inputs)
        return terms.reshape(len(inputs), self.tokens, self.output_width)


@lru_cache(maxsize=16)
def _answer_matrix(task: Polynomial, dtype: torch.dtype) -> Float[torch.Tensor, "tokens outputs"]:
    """Column (i, k) is row i of A^k: one product gives answers that lie as they are asked for."""
    powers = torch.from_numpy(_powers(task)).to(dtype)
    return powers.permute(2, 1, 0).reshape(task.tokens, -1).contiguous()


@lru_cache(maxsize=16)
def _powers(task: Polynomial) -> Float[np.ndarray, "k tokens tokens"]:
    return operators.matrix_powers(task.matrix(), task.k)
