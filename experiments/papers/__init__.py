"""Both papers, claim by claim: studies, measures, ledger, judging, page."""
