#!/usr/bin/env python3
"""Finds the commonest faults of style in Markdown pages and in doc comments of Rust.

    .ci/prose.py            prints each line with its fault and a remedy; exit code 1 if there is one
"""

import re
import subprocess
import sys

# Comparisons after "is no": they are English.
COMPARED = r"(?!longer|more|less|fewer|later|earlier|larger|smaller|slower|faster|worse|better|greater|further|wider|shorter)"
FAULTS = [
    (rf"(?<!here )\b(?:is|are|was|were) no {COMPARED}\w", "write `is not a`, or turn the sentence around"),
    (r"\b[Bb]eside\b", "write `next to`, `with` or `compared with`"),
    (r"\bWould change it\b", "write `Revisit if`"),
    (r",? too(?=[.;:)])", "write `also`, before the verb"),
    (r"\bof others\b|\bother people's\b", "name them: third-party, peers"),
    (r"\b[Aa]ccuses?\b", "write `flags`"),
]
OPENING = (r"^(?:Gives|Takes|Holds|What|How|Where|Which|Most)\b", "begin with a noun phrase or an imperative verb")


def lines(path):
    """(number, text, whether it opens a doc comment) of the lines to check."""
    code, before = False, False
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        if path.endswith(".md"):
            if re.match(r" *(?:```|~~~)", line):
                code = not code
            elif not code:
                yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", "", line.rstrip()), False
            continue
        doc = re.match(r"\s*//[/!] ?(.*)", line)
        if doc and doc[1].startswith("```"):
            code = not code
        elif doc and not code:
            yield number, re.sub(r"`[^`]*`", "", doc[1]), not before
        before, code = bool(doc), code and bool(doc)


def main():
    paths = subprocess.run(["git", "ls-files", "*.md", "*.rs"], check=True, capture_output=True, text=True).stdout.split("\n")
    count = 0
    for path in filter(None, paths):
        for number, text, opens in lines(path):
            faults = FAULTS + [OPENING] * opens
            for found, remedy in ((re.search(pattern, text), remedy) for pattern, remedy in faults):
                if found:
                    print(f"{path}:{number}: `{found[0].strip()}`: {remedy}")
                    count += 1
    print(f"{len(paths) - 1} files, {count} faults")
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    main()
