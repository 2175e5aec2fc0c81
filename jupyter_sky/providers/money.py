"""Amounts of money, as a person reads them."""

from __future__ import annotations


def dollars(amount: float) -> str:
    """Return an amount of money for a person."""
    return f"${amount:,.2f}" if amount >= 0.1 or not amount else f"${amount:.4f}"
