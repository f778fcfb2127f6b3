"""The papers, section by section: what is trained and measured, the ledger of claims, its page."""
