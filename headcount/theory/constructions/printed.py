"""Worked examples as the paper prints them, beside what recomputing them gives (Sec. B.2, B.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headcount.tasks.cpm3 import order_sensitive, pair_counts_brute
from headcount.tasks.operators import Matrix, cyclic_shift, random_gaussian

Rows = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Fact:
    """One printed item: what it says, what stands there, what recomputing gives."""

    item: str
    printed: Rows
    recomputed: Rows

    @property
    def agrees(self) -> bool:
        """Whether the printed item is right."""
        return self.printed == self.recomputed

    @property
    def differences(self) -> tuple[tuple[int, int], ...]:
        """(row, column) of the entries that differ, counted from 0."""
        pairs = zip(self.printed, self.recomputed, strict=True)
        return tuple(
            (i, j) for i, rows in enumerate(pairs) for j, (a, b) in enumerate(zip(*rows, strict=True)) if a != b
        )


def _rows(matrix: Matrix) -> Rows:
    return tuple(tuple(float(value) for value in row) for row in matrix)


def workspace_example() -> Fact:
    """The workspace of x = (1, 2, 3): row i is x_i, x_(i+1), x_(i+2). Printed with a second row 2 3 2."""
    x = np.array([1.0, 2.0, 3.0])
    shift = cyclic_shift(3)
    columns = [x, shift @ x, shift @ shift @ x]
    return Fact("workspace of x = (1, 2, 3)", ((1, 2, 3), (2, 3, 2), (3, 1, 2)), _rows(np.stack(columns, 1)))


def shift_example() -> Fact:
    """The shift that makes the printed P X = (2, 3, 1) of X = (1, 2, 3): the printed P is its transpose, and
    moves tokens the other way."""
    return Fact("shift with P (1, 2, 3) = (2, 3, 1)", _rows(cyclic_shift(3).T), _rows(cyclic_shift(3)))


def symmetric_example() -> Fact:
    """The worked CPM-3 example, G = 10 and M = 3 on x = (1, 2, 3): the answers 3, 3, 3 are right."""
    counts = pair_counts_brute(np.array([1, 2, 3]), 10, 3)
    return Fact("CPM-3 with G = 10, M = 3 on (1, 2, 3)", ((3, 3, 3),), (tuple(float(c) for c in counts),))


def symmetric_although_large() -> bool:
    """That example has G > 2M, which should make the order of a pair matter, and is symmetric anyway."""
    multiplier, modulus = 10, 3
    return multiplier > 2 * modulus and not order_sensitive(multiplier, modulus)


def transposed_query_gap(A: Matrix) -> float:
    """Relative error of the first k = 4 example of Sec. B.2, which writes W_Q^2 = [0; (A^2)^T] for [0; A^2]:
    ||(A^2)^T - A^2|| / ||A^2||, Frobenius. Zero exactly when A^2 is symmetric."""
    square = A @ A
    return float(np.linalg.norm(square.T - square) / np.linalg.norm(square))


def transposed_query_examples(tokens: int = 7) -> tuple[float, float]:
    """`transposed_query_gap` of a symmetric and of a general matrix: 0, and not 0."""
    general = random_gaussian(tokens, seed=0)
    return transposed_query_gap(general + general.T), transposed_query_gap(general)
