#!/usr/bin/env python3
"""Prints the size of the project, and fails where it exceeds a limit below. Lower a limit when the project has become smaller.

    .ci/size.py     lines of Rust without comments and blank lines, public items of the libraries, tracked files, each file and
                    function that is longer than its limit, and public functions of more than six arguments

Tests: folders `tests` (integration tests, their crates and helpers), items under `#[cfg(test)]`, and the files of modules that
are declared so. A public item is a line that begins with `pub` and declares one.
"""

import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
from circles import end_of_attribute, end_of_item, tokens

LONGEST_FILE, LONGEST_FUNCTION, MOST_ARGUMENTS = 500, 60, 6
# Lines of product and of tests, public items, tracked files.
LIMITS = {"product": 85_200, "tests": 32_900, "public items": 1_570, "files": 1_400}
# Functions that may be longer.
LONG = {
    # Tables.
    "engine/src/ops/tests.rs: errors_name_the_operation_and_the_shapes",
    "kernels/proof/src/gemm/mod.rs: cases",
    # Loops of kernels, whose parts share the registers of the whole.
    "kernels/cuda/src/attention/sm80_backward.rs: keys",
    "kernels/cuda/src/attention/sm80_forward.rs: forward",
    "kernels/cuda/src/attention/sm90.rs: run",
    "kernels/src/rows/row.rs: each_vector",
    "kernels/src/tiles/fma.rs: multiply",
}
PUBLIC = re.compile(
    r'^\s*pub (?:const |unsafe |async |extern "C" )*(?:fn|struct|enum|trait|type|mod|static|union)\b|^\s*pub const [A-Z]', re.M
)
LIBRARIES = ("kernels", "kernels/num", "kernels/cuda", "engine", "albert", "albert/tasks")


def lines_of(code):
    return {line + more for token, line in code for more in range(token.count("\n") + 1)}


def test_items(code):
    """The tokens of each item under `#[cfg(test)]`."""
    at = 0
    while at < len(code):
        if code[at][0] != "#" or at + 1 == len(code) or code[at + 1][0] != "[":
            at += 1
            continue
        start, is_test = at, False
        while code[at][0] == "#":
            end = end_of_attribute(code, at)
            words = [word for word, _ in code[at:end]]
            is_test |= words[2] == "cfg" and "test" in words and "not" not in words
            at = end
        if is_test:
            at = end_of_item(code, at)
            yield code[start:at]


def functions(code):
    """(name, first line, lines with code) of each function with a body."""
    for at, (token, line) in enumerate(code):
        if token != "fn" or at + 1 == len(code) or not code[at + 1][0].isidentifier():
            continue
        depth, end = 0, at + 1
        while end < len(code) and not (depth == 0 and code[end][0] in ("{", ";")):
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(code[end][0], 0)
            end += 1
        if end == len(code) or code[end][0] == ";":
            continue
        braces, stop = 1, end + 1
        while braces and stop < len(code):
            braces += {"{": 1, "}": -1}.get(code[stop][0], 0)
            stop += 1
        yield code[at + 1][0], line, len(lines_of(code[at:stop]))


def arguments(code, at):
    """Number of arguments of the function whose `fn` is at `at`."""
    depth, count, is_inside, is_filled, previous = 0, 0, False, False, ""
    for token, _ in code[at + 2 :]:
        closes = token in (")", "]", "}") or token == ">" and previous not in ("-", "=")
        if not is_inside and depth == 0 and token == "(":
            is_inside = True
        elif is_inside and depth == 1 and closes:
            return count + is_filled
        elif is_inside and depth == 1 and token == ",":
            count, is_filled = count + is_filled, False
        else:
            is_filled = is_inside
        depth, previous = depth + (token in ("(", "[", "{", "<")) - closes, token


def public_functions(code):
    for at, (token, line) in enumerate(code):
        before = [word for word, _ in code[max(0, at - 3) : at]]
        while before and before[-1] in ("const", "unsafe", "async"):
            before.pop()
        if token == "fn" and before and before[-1] == "pub" and code[at + 1][0].isidentifier():
            yield code[at + 1][0], line, arguments(code, at)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split("\n")
    tracked = [pathlib.PurePath(name) for name in listed if (root / name).is_file()]
    code = {name: tokens((root / name).read_text()) for name in tracked if name.suffix == ".rs" and not (root / name).is_symlink()}
    in_items, of_tests = {}, set()
    for name, file in code.items():
        items = list(test_items(file))
        in_items[name] = lines_of(token for item in items for token in item)
        folder = name.parent if name.stem in ("mod", "lib", "main") else name.parent / name.stem
        for item in items:
            words = [word for word, _ in item]
            if words[-1] == ";" and "mod" in words:
                module = folder / words[words.index("mod") + 1]
                of_tests |= {module.with_suffix(".rs"), module / "mod.rs"}
    product, tests, public, long = 0, 0, 0, []
    for name, file in code.items():
        every = lines_of(file)
        is_test = "tests" in name.parts[:-1] or name in of_tests
        kept = set() if is_test else every - in_items[name]
        product, tests = product + len(kept), tests + len(every - kept)
        if len(every) > LONGEST_FILE:
            long.append(f"{name}: {len(every)} lines of code; expected at most {LONGEST_FILE}")
        for function, line, count in functions(file):
            if count > LONGEST_FUNCTION and f"{name}: {function}" not in LONG:
                long.append(f"{name}:{line}: {function} has {count} lines; expected at most {LONGEST_FUNCTION}")
        for function, line, count in public_functions(file) if not is_test else ():
            if count > MOST_ARGUMENTS:
                long.append(f"{name}:{line}: {function} has {count} arguments; expected at most {MOST_ARGUMENTS}")
        if not is_test and str(name).startswith(tuple(f"{library}/src/" for library in LIBRARIES)):
            public += len(PUBLIC.findall((root / name).read_text()))
    sizes = {"product": product, "tests": tests, "public items": public, "files": len(tracked)}
    print(", ".join(f"{what}: {size} of {LIMITS[what]}" for what, size in sizes.items()))
    over = [f"{what}: {size}; expected at most {LIMITS[what]}, as .ci/size.py says" for what, size in sizes.items() if size > LIMITS[what]]
    print("\n".join(over + sorted(long)), file=sys.stderr, end="\n" if over or long else "")
    sys.exit(bool(over or long))


if __name__ == "__main__":
    main()
