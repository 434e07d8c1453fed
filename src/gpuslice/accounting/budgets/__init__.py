"""Budgets of GPU time: their objects, their windows, what is left of them, and what follows from that."""
