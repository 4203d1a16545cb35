"""The names nearest to one that was not found."""

import difflib
from collections.abc import Iterable


def near(name: str, known: Iterable[str]) -> str:
    """Up to three known names that look like `name`, joined by commas; all of them where none does."""
    names = list(known)
    return ", ".join(difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names)
