#!/usr/bin/env python3
"""Prints the licences of the third-party crates in the program, each text once, with the crates that have it.

    .ci/licenses.py > target/dist/THIRD-PARTY-LICENSES.txt

Exit code 1: a crate names no licence, or its source has no file with the text.
"""

import json
import pathlib
import re
import subprocess
import sys

FILE = re.compile(r"(licen[cs]e|copying|notice|unlicense)", re.IGNORECASE)
command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"]
metadata = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
packages = {package["id"]: package for package in metadata["packages"]}
dependencies = {
    node["id"]: [other["pkg"] for other in node["deps"] if any(kind["kind"] is None for kind in other["dep_kinds"])]
    for node in metadata["resolve"]["nodes"]
}
found, open_ends = set(), [package["id"] for package in packages.values() if package["name"] == "albert-program"]
while open_ends:
    package = open_ends.pop()
    if package not in found:
        found.add(package)
        open_ends += dependencies[package]

texts, failed = {}, False
for package in sorted((packages[one] for one in found if packages[one]["source"]), key=lambda package: package["name"]):
    name = f"{package['name']} {package['version']} ({package['license']})"
    files = sorted(path for path in pathlib.Path(package["manifest_path"]).parent.iterdir() if FILE.match(path.name) and path.is_file())
    if not package["license"] or not files:
        print(f"{name}: expected a licence and its text in the source of the crate", file=sys.stderr)
        failed = True
    for path in files:
        texts.setdefault(path.read_text(errors="replace").strip(), []).append(name)
for text, names in texts.items():
    print("\n".join(["=" * 100, *names, "", text, ""]))
sys.exit(failed)
