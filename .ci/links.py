#!/usr/bin/env python3
"""Checks that relative links in the Markdown pages of the project name files of the project, and anchors name headings.

    .ci/links.py            prints each broken link; exit code 1 if there is one

Links are `[text](target)`, with a title or in angle brackets too, `[name]: target`, `[text][name]`, and `href` and `src` of HTML.
"""

import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"\]\(\s*(?:<([^>\n]*)>|([^)\s]+))(?:\s+(?:\"[^\"]*\"|'[^']*'))?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[([^\]\n]+)\]:\s*<?([^\s>]+)>?", re.M)
REFERENCE = re.compile(r"\[([^\]\n]+)\]\[([^\]\n]*)\]")
HTML = re.compile(r"<[a-z][^>]*?\b(?:href|src)\s*=\s*[\"']([^\"']+)[\"']", re.I)


def without_code(text):
    text = re.sub(r"^ *(```+|~~~+).*?^ *\1", "", text, flags=re.M | re.S)
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", lambda code: re.sub(r"[\[\]()<>]", "", code[0]), text)


def anchors(page):
    """Anchors of the headings, as GitHub forms them, and of HTML."""
    found, text = {}, without_code(page.read_text())
    for heading in re.findall(r"^ {0,3}#{1,6} +(.*?)[ #]*$|^(\S.*)\n(?:=+|-+) *$", text, flags=re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[0] or heading[1]).lower()
        name = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
        found[f"{name}-{found[name]}" if name in found else name] = 0
        found[name] += 1
    return found.keys() | set(re.findall(r"<[a-z][^>]*?\b(?:id|name)\s*=\s*[\"']([^\"']+)[\"']", text, re.I))


def targets(text):
    """(link, problem or None) of each link of a page."""
    text = without_code(text)
    names = {name.lower() for name, _ in DEFINITION.findall(text)}
    for name in (name or text for text, name in REFERENCE.findall(text)):
        if name.lower() not in names:
            yield f"[{name}]", "no such reference"
    for link in [a or b for a, b in LINK.findall(text)] + [link for _, link in DEFINITION.findall(text)] + HTML.findall(text):
        yield link, None


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = {root / name for name in subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0") if name}
    places = files | {folder for file in files for folder in file.parents}
    links, broken = 0, []
    for page in sorted(file for file in files if file.suffix == ".md" and file.exists()):
        name = page.relative_to(root)
        for link, problem in targets(page.read_text()):
            if re.match(r"[a-z]+:|//", link, re.I):
                continue
            links += 1
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if problem:
                broken.append(f"{name}: {problem}: {link}")
            elif target not in places or not target.exists():
                broken.append(f"{name}: no such file: {link}")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                broken.append(f"{name}: no such heading: {link}")
    for line in broken:
        print(line, file=sys.stderr)
    print(f"{links} links, {len(broken)} broken")
    return 1 if broken or not links else 0


if __name__ == "__main__":
    sys.exit(main())
