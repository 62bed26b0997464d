"""What a person can put right: one exception, one form of sentence."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(Exception):
    """Something the user gave is wrong; the command line prints it and exits with code 2.

    `place` says where (a file, `file:line`, a key, an option), `problem` what is wrong with which
    value, `remedy` what to do about it.
    """

    def __init__(self, place: str, problem: str, remedy: str) -> None:
        self.place, self.problem, self.remedy = place, problem, remedy
        super().__init__(f"{place}: {problem}; {remedy}")


def unknown_name(kind: str, given: str, known: Iterable[str], place: str | None = None) -> InputError:
    """The error for a name that is not in a list, with the nearest one suggested."""
    names = sorted(set(known))
    near = get_close_matches(given.lower(), names, n=1, cutoff=0.5)
    near = near or [name for name in names if len(given) >= 2 and given.lower() in name.lower()]
    if near:
        remedy = f'did you mean "{near[0]}"?'
    elif names:
        shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
        remedy = f"known: {shown}"
    else:
        remedy = "none is known here"
    return InputError(place or kind, f'there is no {kind} "{given}"', remedy)
