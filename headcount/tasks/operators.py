"""The matrices A whose powers a polynomial filter asks for: synthetic ones and real graphs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import networkx as nx
import numpy as np
from jaxtyping import Float

from headcount.config import BadInput, file_errors

GRAPHS = {
    "karate": nx.karate_club_graph,
    "les-miserables": nx.les_miserables_graph,
    "davis": nx.davis_southern_women_graph,
    "florentine": nx.florentine_families_graph,
}
"""Real graphs that ship with networkx, read as unweighted and undirected."""

LARGEST_GRAPH = 2048
"""More nodes than this are refused: the k x N^2 family of powers would not fit a small machine."""

Matrix = Float[np.ndarray, "tokens tokens"]


def cyclic_shift(tokens: int) -> Matrix:
    """(A x)_i = x_{i+1 mod N}: a permutation, so its powers A^0 .. A^(N-1) are orthogonal."""
    return np.roll(np.eye(tokens), 1, axis=1)


def random_orthogonal(tokens: int, seed: int) -> Matrix:
    """Haar-distributed orthogonal matrix: QR of a Gaussian with the signs of R's diagonal."""
    gaussian = np.random.default_rng(seed).standard_normal((tokens, tokens))
    factor, triangle = np.linalg.qr(gaussian)
    return factor * np.sign(np.diag(triangle))


def random_gaussian(tokens: int, seed: int) -> Matrix:
    """Gaussian matrix divided by its largest singular value, so that powers do not blow up."""
    gaussian = np.random.default_rng(seed).standard_normal((tokens, tokens))
    return gaussian / np.linalg.norm(gaussian, 2)


def normalised_adjacency(adjacency: Matrix, normalisation: str) -> Matrix:
    """Turn an adjacency matrix into an operator.

    Args:
        adjacency: (N, N). For the two symmetric forms it is read as an undirected, unweighted
            graph without self-loops.
        normalisation: "self-loops" for (D+I)^-1/2 (A+I) (D+I)^-1/2, "plain" for
            D^-1/2 A D^-1/2 (a node without edges gets a zero row), "none" for the matrix itself.
    """
    if normalisation == "none":
        return adjacency
    edges = ((adjacency != 0) | (adjacency != 0).T).astype(float)
    np.fill_diagonal(edges, 1.0 if normalisation == "self-loops" else 0.0)
    degree = edges.sum(1)
    root = np.divide(1.0, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0)
    return root[:, None] * edges * root[None, :]


def graph_adjacency(name: str) -> Matrix:
    """Adjacency matrix of one of GRAPHS."""
    return nx.to_numpy_array(GRAPHS[name](), weight=None)


def file_digest(path: str) -> str:
    """SHA-256 of a file's bytes, 16 hexadecimal digits.

    Raises:
        BadInput: if the file cannot be read.
    """
    with file_errors(path, f"file '{path}' cannot be read"):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def file_adjacency(path: str, expected_digest: str) -> Matrix:
    """Read a user's graph: .npy (a square matrix), .graphml, or an edge list (two names a line).

    Args:
        path: the file.
        expected_digest: `file_digest` at the time the configuration was made.

    Raises:
        BadInput: if the file changed, cannot be parsed, or is no usable graph.
    """
    if file_digest(path) != expected_digest:
        raise BadInput(f"graph file '{path}' changed since this run was planned")
    suffix = Path(path).suffix.lower()
    try:
        if suffix == ".npy":
            matrix = np.load(path, allow_pickle=False)
            if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
                raise BadInput(f"graph file '{path}' holds shape {matrix.shape}; a square matrix is needed")
            matrix = matrix.astype(float)
        else:
            graph = nx.read_graphml(path) if suffix == ".graphml" else nx.read_edgelist(path, data=False)
            matrix = nx.to_numpy_array(graph, weight=None)
    except BadInput:
        raise
    except Exception as error:
        # networkx, ElementTree and numpy raise a dozen unrelated types on malformed files.
        raise BadInput(
            f"graph file '{path}' is not a readable .npy, .graphml or edge list: {str(error).splitlines()[0]}"
        ) from None
    if not 2 <= len(matrix) <= LARGEST_GRAPH:
        raise BadInput(f"graph file '{path}' has {len(matrix)} nodes; 2 to {LARGEST_GRAPH} are allowed")
    if not np.isfinite(matrix).all():
        raise BadInput(f"graph file '{path}' holds values that are not finite")
    return matrix


def matrix_powers(matrix: Matrix, count: int) -> Float[np.ndarray, "count tokens tokens"]:
    """[A^0, A^1, .., A^(count-1)] in float64."""
    powers = np.empty((count, *matrix.shape))
    powers[0] = np.eye(len(matrix))
    for index in range(1, count):
        powers[index] = powers[index - 1] @ matrix
    return powers
