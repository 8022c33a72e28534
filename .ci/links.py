#!/usr/bin/env python3
"""Checks that relative links in the Markdown pages of the project name files, and anchors name headings.

    .ci/links.py            prints each broken link; exit code 1 if there is one
"""

import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def without_code(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[\[\]()]", "", code[0]), text)


def anchors(page):
    """Anchors of the headings, as GitHub forms them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", without_code(page.read_text()), flags=re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=root, capture_output=True, text=True, check=True).stdout
    links, broken = 0, []
    for name in listed.split("\n"):
        page = root / name
        if not name or not page.exists():
            continue
        for link in LINK.findall(without_code(page.read_text())):
            if re.match(r"[a-z]+:", link):
                continue
            links += 1
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                broken.append(f"{name}: no such file: {link}")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                broken.append(f"{name}: no such heading: {link}")
    for line in broken:
        print(line, file=sys.stderr)
    print(f"{links} links, {len(broken)} broken")
    return 1 if broken or not links else 0


if __name__ == "__main__":
    sys.exit(main())
