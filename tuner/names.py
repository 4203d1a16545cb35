"""What to say of a name that was not found."""

import difflib
from collections.abc import Iterable


def hint(name: str, known: Iterable[str]) -> str:
    """`did you mean a, b?` with up to three names that look like `name`; all names where none does."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    return f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(names)}"
