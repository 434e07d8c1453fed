"""GPU time: what is charged to whom, kept in a ledger, and held to budgets."""
