"""CPM-3 (paper Sec. 4.3, B.3): the workspace by N heads or ceil(sqrt N) interleaved ones, the counting MLP
behind it, and two ways around the workspace: a histogram from one uniform head, and all tokens from one
softmax head."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.models import AttentionConfig, Layer, ModelConfig, Sizes
from headcount.tasks.cpm3 import pair_counts_brute
from headcount.tasks.operators import cyclic_shift
from headcount.theory.constructions.construction import (
    Construction,
    NoConstruction,
    Semantics,
    ceil_sqrt,
    compile_attention,
    fill,
    gaussian_inputs,
    identity,
    integer_inputs,
    owned_outputs,
    routers,
)
from headcount.theory.constructions.polynomial import Content, ValueContent, powers_of

Mechanism = Literal["mha", "iha"]

WIDEST_MLP = 65536
"""Largest hidden width a `ModelConfig` takes."""


def shifts_brute(x: Float[Tensor, "examples tokens 1"]) -> Float[Tensor, "examples tokens shifts"]:
    """The workspace by definition: row i is x_i, x_(i+1), .., x_(i+N-1), indices modulo N."""
    N = x.shape[1]
    rows = [torch.stack([x[:, (i + s) % N, 0] for s in range(N)], -1) for i in range(N)]
    return torch.stack(rows, 1)


def softmax_shifts(beta: float) -> Semantics:
    """The workspace at finite inverse temperature: x_(i+s) + (S - N x_(i+s)) / (e^beta + N - 1), for both.

    Multi-head: the logits of a row are beta at one key and 0 at the other N - 1, so with Z = e^beta + N - 1
    the head gives (e^beta x + S - x) / Z, where S is the sum of all tokens and x the wanted one; the
    difference to x is (S - N x) / Z. Interleaved: each of the H pseudo-keys has one match among N tokens, so
    a row has H logits beta and H (N - 1) zeros: the normaliser is H Z, the value factor H cancels it, and
    only pseudo-key j has values in column j: the same expression. The worst case over tokens in [low, high]
    is (N - 1)(high - low) / Z.
    """

    def semantics(x: Tensor) -> Tensor:
        N = x.shape[1]
        exact = shifts_brute(x)
        return exact + (x.sum((1, 2), keepdim=True) - N * exact) / (math.exp(beta) + N - 1)

    return semantics


def softmax_error_bound(tokens: int, beta: float, span: float) -> float:
    """Largest workspace error for tokens in an interval of length `span`: (N-1) span / (e^beta + N - 1)."""
    return (tokens - 1) * span / (math.exp(beta) + tokens - 1)


def workspace(
    tokens: int,
    attention: Mechanism,
    *,
    beta: float | None = None,
    output: Literal["concat", "mixed"] = "concat",
    content: Content = "full",
    value_content: ValueContent = "full",
) -> Construction:
    """Every token value at every position, from scalar tokens X (N, 1) and positions.

    With P the cyclic shift, (P x)_i = x_(i+1), and hard attention (beta not given; ties share equally):

        multi-head, N heads:    W_Q^h = [0; P^(h-1)],   W_K^h = [0; I],               W_V^h = e_1
        interleaved, H heads:   W_Q^m = [0; P^(s_m)],   W_K^m = [0; (P^(m-1))^T],     W_V^m = H e_1 e_m^T

    with H = P = ceil(sqrt N), the paper's routers, and s_m the first output of head m when H heads share N
    outputs as evenly as possible; for N = H^2 this is the paper's (m-1) H. The query of head h matches one
    key of each of its H pseudo-heads, so H keys tie, and the factor H undoes their weight 1 / H.

    Finite beta gives `softmax_shifts`. With output "mixed" finite beta is exact, for every beta > 0: the
    columns sum to sum_s r_s = S because weights sum to 1, so x_(i+s) = (Z r_s - sum_t r_t) / (e^beta - 1),
    which is linear in the columns and fits in W_O.

    Raises:
        NoConstruction: if N < 2, or beta is not positive, or mixing is asked for without beta.
    """
    N = tokens
    if N < 2:
        raise NoConstruction(f"tokens = {N}: there is no other token to gather")
    if beta is not None and not 0 < beta < 700:
        raise NoConstruction(f"beta = {beta}: softmax must prefer the match and exp(beta) must be finite")
    if output == "mixed" and beta is None:
        raise NoConstruction("hard attention needs no output projection; mixing corrects a finite beta")
    H = N if attention == "mha" else ceil_sqrt(N)
    owned = list(owned_outputs(N, H))
    P_to = powers_of(cyclic_shift(N), N)
    if attention == "mha":
        weights = {
            "query.positions": P_to,
            "key.positions": identity(N).expand(N, N, N),
            "value.features": torch.ones(N, 1, 1, dtype=torch.float64),
        }
    else:
        weights = {
            "query.positions": P_to[[first for _, column, first in owned if column == 0]],
            "key.positions": P_to[:H].mT,
            "value.features": H * identity(H)[:, None, :],
            **routers(H),
        }
    config = AttentionConfig(
        attention=attention,
        heads=H,
        score="hard" if beta is None else "softmax",
        inverse_temperature=beta,
        content=content,
        value_content=value_content,
        output=output,
        value_width=1 if attention == "mha" else H,
    )
    if output == "mixed" and beta is not None:
        Z = math.exp(beta) + N - 1
        W_O = torch.zeros(H, config.value_width or 1, N, dtype=torch.float64)
        for head, column, shift in owned:
            W_O[head, column] = -1.0
            W_O[head, column, shift] += Z
        weights["join.weight"] = W_O / (math.exp(beta) - 1)
    exact = beta is None or output == "mixed"
    count = "N" if attention == "mha" else "ceil(sqrt N) interleaved"
    return Construction(
        name=f"{attention}-workspace N={N} {_temperature(beta)} {content}/{value_content} {output}",
        statement=f"{count} heads gather every token at every position",
        source="Sec. 4.3, B.3" if beta is None else "not in the paper",
        module=compile_attention(config, Sizes(N, 1, N), weights),
        semantics=shifts_brute if exact or beta is None else softmax_shifts(beta),
        inputs=torch.cat([identity(N)[..., None], gaussian_inputs(8, N, 1)]),
        limit=shifts_brute,
    )


def _temperature(beta: float | None) -> str:
    return "hard" if beta is None else f"beta={beta:g}"


def attention_parameters(tokens: int, attention: Mechanism) -> int:
    """Parameters of the workspace layer in the paper's form (content and values full).

    Multi-head: 2 N (N+1) N + N (N+1). Interleaved: 2 N (N+1) H + (N+1) H^2 + 4 H^3.
    """
    N, H = tokens, ceil_sqrt(tokens)
    if attention == "mha":
        return 2 * N * (N + 1) * N + N * (N + 1)
    return 2 * N * (N + 1) * H + (N + 1) * H**2 + 4 * H**3


def printed_parameters(tokens: int, attention: Mechanism) -> int:
    """Counts of Sec. B.3 as printed, attention and counting MLP (in brackets).

        T_MHA = 2N^3 + N^3 + [(N+1)N(N-1) + N^2]
        T_IHA = 2(N^2+N)H + (N+1)H^2 + [H^2 N(N-1) + N^2] + 4H^3

    The attention part of T_IHA is `attention_parameters`; that of T_MHA counts N^3 for values where there are
    N(N+1), and leaves out the 2N^2 feature rows of queries and keys.
    """
    N, H = tokens, ceil_sqrt(tokens)
    if attention == "mha":
        return 2 * N**3 + N**3 + (N + 1) * N * (N - 1) + N**2
    return 2 * (N**2 + N) * H + (N + 1) * H**2 + H**2 * N * (N - 1) + N**2 + 4 * H**3


def printed_bound(tokens: int) -> float:
    """Printed bound on T_IHA: 37 N^2.5 + N^2 (N-1) + N^2."""
    return 37 * tokens**2.5 + tokens**2 * (tokens - 1) + tokens**2


def count_brute(multiplier: int, modulus: int) -> Semantics:
    """Labels of integer tokens (examples, N, 1) by enumeration of all pairs."""

    def semantics(x: Tensor) -> Tensor:
        labels = [pair_counts_brute(row.numpy(), multiplier, modulus) for row in x[..., 0].round().long()]
        return torch.tensor(labels, dtype=torch.float64)[..., None]

    return semantics


def count_brute_residues(multiplier: int, modulus: int) -> Semantics:
    """`count_brute` of one-hot residues (examples, N, M)."""
    of_integers = count_brute(multiplier, modulus)
    return lambda x: of_integers(x.argmax(-1, keepdim=True).double())


class ModuloCount(nn.Module):
    """sum_(j1,j2) phi(x_i + G x_j1 + x_j2) on a workspace; the paper's activation phi(z) = 1(z = 0 mod M).

    N^2 hidden units, one an ordered pair, reading the N workspace columns (column 0 is x_i itself), and N^2
    output weights. phi is not continuous: a workspace error, however small, makes it miss the multiples of M.
    """

    def __init__(self, tokens: int, modulus: int) -> None:
        super().__init__()
        self.modulus = modulus
        self.pairs = nn.Linear(tokens, tokens**2, bias=False)
        self.total = nn.Linear(tokens**2, 1, bias=False)

    def forward(self, x: Float[Tensor, "batch tokens shifts"]) -> Float[Tensor, "batch tokens 1"]:
        """Counts from a workspace whose column s holds x_(i+s)."""
        return self.total((self.pairs(x).remainder(self.modulus) == 0).to(x.dtype))


def pair_coefficients(tokens: int, multiplier: int) -> Float[Tensor, "pairs shifts"]:
    """Row (a, b) is G e_a + e_b: what an ordered pair of workspace columns adds to x_i."""
    every = identity(tokens)
    return (multiplier * every[:, None, :] + every[None, :, :]).reshape(tokens**2, tokens)


def _check_task(multiplier: int, modulus: int) -> None:
    if modulus < 1 or multiplier < 0:
        raise NoConstruction(f"M = {modulus}, G = {multiplier}: M must be positive and G not negative")


def modulo_count(
    tokens: int, modulus: int, multiplier: int, attention: Mechanism, *, low: int = 0, high: int = 9
) -> Construction:
    """The paper's solution: hard-attention workspace, then `ModuloCount` with rows e_0 + G e_a + e_b.

    Exact for any integers that float64 holds exactly; low and high only say what is tested.

    Raises:
        NoConstruction: see `workspace`; or if M < 1 or G < 0.
    """
    _check_task(multiplier, modulus)
    gather = workspace(tokens, attention)
    count = ModuloCount(tokens, modulus)
    own = identity(tokens)[0]
    fill(
        count,
        {
            "pairs.weight": own + pair_coefficients(tokens, multiplier),
            "total.weight": torch.ones(1, tokens**2),
        },
    )
    return Construction(
        name=f"modulo-count {attention} N={tokens} M={modulus} G={multiplier}",
        statement="workspace and a modulo activation count pairs exactly",
        source="Sec. 4.3, B.3",
        module=nn.Sequential(gather.module, count),
        semantics=count_brute(multiplier, modulus),
        inputs=integer_inputs(tokens, low, high),
    )


def relu_count(
    tokens: int,
    modulus: int,
    multiplier: int,
    attention: Mechanism,
    *,
    low: int = 0,
    high: int = 6,
    beta: float | None = None,
) -> Construction:
    """Workspace, then the two-layer ReLU MLP of `Layer`, exact for integer tokens in low..high.

    For integer z,  1(z = 0) = tent(z) = relu(z+1) - 2 relu(z) + relu(z-1),  so with z = x_i + G' x_j1 + x_j2
    and G' = G mod M, which gives the same label,

        1(z = 0 mod M) = sum of tent(z - c) over the multiples c of M from min z to max z,

    3 hidden units a pair and multiple: width 3 N^2 Q, Q = floor(z_max / M) - ceil(z_min / M) + 1. The sum
    over c changes by at most |dz| (M >= 2), so a workspace error e moves a label by at most N^2 (G' + 1) e:
    at finite beta rounding the output still gives the label where `softmax_error_bound` makes that less than
    1/2.

    Raises:
        NoConstruction: see `workspace`; or if M < 1, G < 0, high < low, or the MLP would exceed WIDEST_MLP.
    """
    _check_task(multiplier, modulus)
    if high < low:
        raise NoConstruction(f"tokens in {low}..{high}: there are none")
    N, M, G = tokens, modulus, multiplier % modulus
    multiples = range(-(-(G + 2) * low // M) * M, (G + 2) * high + 1, M)
    width = 3 * N**2 * len(multiples)
    if width > WIDEST_MLP:
        raise NoConstruction(f"N = {N}, M = {M}, tokens in {low}..{high}: {width} hidden units, {WIDEST_MLP} at most")
    if width == 0:
        raise NoConstruction(f"no multiple of {M} is in reach: every label is 0 and no hidden unit is left")
    gather = workspace(N, attention, beta=beta, content="positions", value_content="features")
    assert isinstance(gather.module.config, AttentionConfig)
    config = ModelConfig(**gather.module.config.model_dump(), mlp_width=width, workspace=N)
    layer = Layer(config, Sizes(N, 1, 1))
    # Hidden unit (a, b, c, o): relu(x_i + G x_a + x_b - c + o), o = 1, 0, -1; W_1 reads [x_i, workspace].
    z = torch.cat([torch.ones(N**2, 1, dtype=torch.float64), pair_coefficients(N, G)], -1)
    offsets = torch.tensor([[o - c for o in (1, 0, -1)] for c in multiples], dtype=torch.float64)
    tent = torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64)
    fill(
        layer,
        {f"attention.{name}": value for name, value in gather.module.state_dict().items() if name != "join.weight"}
        | {
            "hidden.weight": z.repeat_interleave(offsets.numel(), 0),
            "hidden.bias": offsets.flatten().repeat(N**2),
            "out.weight": tent.repeat(width // 3)[None],
        },
    )
    slope = N**2 * (G + 1) * (softmax_error_bound(N, beta, high - low) if beta is not None else 0.0)
    return Construction(
        name=f"relu-count {attention} N={N} M={M} G={multiplier} {_temperature(beta)}",
        statement="workspace and a two-layer ReLU MLP count pairs of bounded integer tokens",
        source="Sec. 4.3, B.3; the ReLU form is not in the paper",
        module=layer,
        semantics=count_brute(multiplier, M),
        inputs=integer_inputs(N, low, high),
        tolerance=1e-9 + slope,
    )


def histogram_count(tokens: int, modulus: int, multiplier: int) -> Construction:
    """One uniform multi-head attention head over one-hot residues, then the MLP of `Layer`: exact, any N.

    W_Q = W_K = 0 makes the weights 1 / N, W_V = I_M the output c / N with c the histogram of residues. Then

        label_i = f_rho(c) with rho = x_i mod M,   f_rho(c) = sum_r c[r] c[s],   s = (-rho - G r) mod M,

    and for integers  c[r] c[s] = ((c[r] + c[s])^2 - c[r]^2 - c[s]^2) / 2,
                      t^2 = sum_(q=0)^(T-1) (2 - [q = 0]) relu(t - q)  for t = 0 .. T.

    A hidden unit for (rho, u, q) computes relu(u.c - q - T (1 - x_i[rho])): the last term closes it unless
    token i has residue rho, since u.c <= T.

    Raises:
        NoConstruction: if N < 1, M < 1 or G < 0, or the MLP would exceed WIDEST_MLP.
    """
    _check_task(multiplier, modulus)
    N, M = tokens, modulus
    if N < 1:
        raise NoConstruction(f"tokens = {N}: there is nothing to count")
    units = [
        (rho, u, float(q), coefficient * (1.0 if q == 0 else 2.0))
        for rho in range(M)
        for u, coefficient in _square_terms(M, multiplier, rho)
        for q in range(_reach(u, N))
    ]
    if len(units) > WIDEST_MLP:
        raise NoConstruction(f"N = {N}, M = {M}: {len(units)} hidden units, {WIDEST_MLP} at most")
    config = ModelConfig(
        heads=1,
        content="features",
        value_content="features",
        output="concat",
        query_width=1,
        value_width=M,
        mlp_width=len(units),
        workspace=M,
    )
    W_1 = torch.zeros(len(units), 2 * M, dtype=torch.float64)
    b_1 = torch.zeros(len(units), dtype=torch.float64)
    for unit, (rho, u, q, _) in enumerate(units):
        T = _reach(u, N)
        W_1[unit, rho] = T
        W_1[unit, M:] = N * torch.tensor(u, dtype=torch.float64)
        b_1[unit] = -q - T
    integers = integer_inputs(N, 0, M - 1)[..., 0].long()
    return Construction(
        name=f"histogram-count N={N} M={M} G={multiplier}",
        statement="one uniform head over one-hot residues and a two-layer ReLU MLP solve CPM-3",
        source="not in the paper; against Sec. 4.3 read as a bound on the task",
        module=fill(
            Layer(config, Sizes(N, M, 1)),
            {
                "attention.value.features": identity(M)[None],
                "hidden.weight": W_1,
                "hidden.bias": b_1,
                "out.weight": torch.tensor([[weight for *_, weight in units]], dtype=torch.float64),
            },
        ),
        semantics=count_brute_residues(multiplier, M),
        inputs=torch.nn.functional.one_hot(integers, M).double(),
        tolerance=1e-10,
    )


def _square_terms(modulus: int, multiplier: int, rho: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Directions u and coefficients a with f_rho(c) = sum a (u.c)^2, equal directions merged."""
    terms: dict[tuple[int, ...], float] = {}
    for r in range(modulus):
        s = (-rho - multiplier * r) % modulus
        for members, coefficient in (((r, s), 0.5), ((r,), -0.5), ((s,), -0.5)):
            u = tuple(members.count(residue) for residue in range(modulus))
            terms[u] = terms.get(u, 0.0) + coefficient
    return ((u, a) for u, a in terms.items() if a)


def _reach(u: tuple[int, ...], tokens: int) -> int:
    """Largest value of u.c over histograms of N tokens."""
    return max(u) * tokens


def softmax_of_tokens(tokens: int) -> Construction:
    """One softmax head that reads the scalars has every token in its output, up to a common shift.

        query 1 (position rows of ones),  key x_j (feature row 1),  value e_j (position rows I):
        out_i = sum_j softmax_j(x_j) e_j = softmax(x_1, .., x_N)

    So N heads are not needed to gather N tokens; the bound of Sec. 4.3 is about transport of scalar values.
    `token_differences` undoes the softmax, and x_i itself, which position i knows, fixes the shift.

    Raises:
        NoConstruction: if N < 1.
    """
    N = tokens
    if N < 1:
        raise NoConstruction(f"tokens = {N}: there is nothing to gather")
    config = AttentionConfig(
        heads=1, value_content="full", output="concat", query_width=1, value_width=N, inverse_temperature=1.0
    )
    weights = {
        "query.positions": torch.ones(1, N, 1),
        "key.features": torch.ones(1, 1, 1),
        "value.positions": identity(N)[None],
    }
    return Construction(
        name=f"softmax-of-tokens N={N}",
        statement="one softmax head outputs softmax(x_1 .. x_N), which determines the tokens up to a shift",
        source="not in the paper; against Sec. 4.3 read as a bound on attention that reads content",
        module=compile_attention(config, Sizes(N, 1, N), weights),
        semantics=lambda x: (x.exp() / x.exp().sum(1, keepdim=True)).mT.expand(-1, N, -1),
        inputs=3 * gaussian_inputs(16, N, 1),
    )


def token_differences(
    outputs: Float[Tensor, "examples tokens shifts"],
) -> Float[Tensor, "examples tokens shifts"]:
    """x_j - x_1 from the output of `softmax_of_tokens`: log of a ratio of its columns."""
    logs = outputs.log()
    return logs - logs[..., :1]
