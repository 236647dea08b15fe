"""The line of a handed-out file's docstring that says its speedup.

A file is verified and timed with UNKNOWN in that place: only then are the figures there. They are
written in afterwards, as text within the docstring, and no other byte changes. The certificate's
digest is of the file with the figures. A candidate that may read its own text could tell the two
apart, so its file has KEPT, and stays as it was verified. Names tell that: code that hides them has
other ways to tell a user from us.
"""

from __future__ import annotations

import ast
import re

from kwharness.base.verdicts import Speedup

UNKNOWN = "Speedup: not measured."
KEPT = "Speedup: as its certificate says. This file may read its own text, which stays as verified."
_READS_ITSELF = re.compile(
    r"""
    \b(?:
        # Its docstring, code or path, by name or among all names of a module.
        __doc__ | __file__ | __spec__ | __loader__ | __dict__ | __globals__ | __builtins__
        | __import__ | builtins | globals | locals | vars | f_globals | f_locals | f_builtins
        | f_code | __code__ | co_filename | co_consts | getsource | getdoc
        | inspect | linecache | importlib | pkgutil | runpy | tokenize | traceback
        | sys\.modules | from\s+sys\s+import | get_objects | get_referents | get_referrers
        # Files, in Python.
        | open | FileIO | fdopen | read_text | read_bytes | readlines? | mmap | memmap | from_file
        | fromfile | genfromtxt | loadtxt
        # Files, in C and C++.
        | fopen | fopen64 | freopen | open64 | openat | w?i?fstream | w?filebuf | syscall | incbin
    )\b
    | (?<![.\w])(?:eval|exec)\s*\(  # model.eval() is another
    """,
    re.VERBOSE,
)
# What stands before our docstring is at most two comments (docstring.put). It has no three quotes:
# they are escaped in it.
_OURS = re.compile(r'\ufeff?(?:[ \t\f]*#[^\r\n]*(?:\r\n|\r|\n)){0,2}"""[^\0]*?\n"""\n')
_LINE = re.compile(rf"(?<=\n)(?:{re.escape(UNKNOWN)}|{re.escape(KEPT)})(?=\n)")


def line_to_verify(code: str) -> str:
    """Returns the line with which a candidate is verified, by its text without its docstring."""
    return KEPT if _READS_ITSELF.search(code) else UNKNOWN


def with_figures(text: str, speedup: Speedup | None) -> str:
    """Returns a file with the speedup in the place of UNKNOWN, if its docstring has that.

    Raises ValueError where more than the docstring would change.
    """
    if speedup is None:
        return text
    docstring = _OURS.match(text)
    if docstring is None:
        raise ValueError("the file does not begin with a docstring of ours")
    found = _LINE.search(docstring[0])  # the candidate's own words come behind ours
    if found is None or found[0] == KEPT:
        return text
    against = re.sub(r"[^\w .:@+-]", "?", speedup.against)
    line = (
        f"Speedup: {speedup.value:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}] against {against}, "
        "the fastest baseline (95 % interval)."
    )
    front = docstring[0][: found.start()] + line + docstring[0][found.end() :]
    if not (_is_a_docstring(docstring[0]) and _is_a_docstring(front)):
        raise ValueError("more than the file's docstring would change")
    return front + text[docstring.end() :]


def _is_a_docstring(front: str) -> bool:
    """Whether a text is one string and nothing else. The rest of its file is then the same program
    behind any other one: no foreign text need be parsed to know that.
    """
    try:
        body = ast.parse(front.removeprefix("\ufeff")).body
    except (SyntaxError, ValueError):
        return False
    if len(body) != 1 or not isinstance(body[0], ast.Expr):
        return False
    only = body[0].value
    return isinstance(only, ast.Constant) and isinstance(only.value, str)
