"""The ledger: every claim as an object whose verdict is computed from evidence."""

from headcount.theory.claims.claim import Claim, Evidence, Finding, Verdict
from headcount.theory.claims.conditions import CONDITIONS
from headcount.theory.claims.costs import COSTS
from headcount.theory.claims.counting import COUNTING
from headcount.theory.claims.filters import FILTERS
from headcount.theory.claims.laws import LAWS
from headcount.theory.claims.mechanism import MECHANISM

LEDGER: dict[str, Claim] = {claim.id: claim for claim in (*MECHANISM, *FILTERS, *COUNTING, *COSTS, *LAWS, *CONDITIONS)}
"""Every claim by id."""

__all__ = ["LEDGER", "Claim", "Evidence", "Finding", "Verdict"]
