"""The ledger: every claim as an object whose verdict is computed from evidence."""

from headcount.theory.claims.claim import Claim, Evidence, Finding, Verdict
from headcount.theory.claims.laws import LAWS

LEDGER: dict[str, Claim] = {claim.id: claim for claim in LAWS}
"""Every claim by id."""

__all__ = ["LEDGER", "Claim", "Evidence", "Finding", "Verdict"]
