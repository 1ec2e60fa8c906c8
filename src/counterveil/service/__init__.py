"""One server: tickets, ledger, answers, HTTP."""
