#!/usr/bin/env python3
"""Finds circles of imports between the source files of a crate.

A file imports another if a `use` of it, or a path in its code, names an item that the other defines; re-exports (`pub use`)
are followed to the definition, and a `mod` declaration is no import. What a file takes from the modules that contain it is not
counted either: a folder's `mod.rs` holds what its files share. Test modules are left out.

    .ci/circles.py            prints each circle with the items that tie it; exit code 1 if there is one
"""

import pathlib
import re
import sys

CRATES = ["kernels/ptx", "kernels", "engine/bounded-input", "engine", "albert/tokenizer", "albert", "cli/measure", "cli", "benches", "tests"]
DEFINITION = re.compile(r"^(?:pub(?:\([^)]*\))? )?(?:default |const |async |unsafe |extern \"C\" )*"
                        r"(?:fn|struct|enum|union|trait|type|const|static|macro_rules!) ?(?:mut )?([A-Za-z_]\w*)", re.M)
PATH = re.compile(r"\b((?:crate|super|self)(?:::(?:super))*(?:::[A-Za-z_]\w*)+)")


def without_tests(text):
    """The text without comments, strings of a line, and modules under `cfg(test)`."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    found = re.search(r"^#\[cfg\(test\)\]\s*(?:#\[[^\n]*\]\s*)*mod \w+ \{", text, re.M)
    return text[: found.start()] if found else text


def split(text):
    """The parts of `a, b::{c, d}, e` at the commas outside of braces."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text + ","):
        if letter == "{":
            depth += 1
        elif letter == "}":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [part for part in parts if part]


def leaves(tree, prefix=()):
    """Each path of a `use`, as (parts, name that it gets)."""
    head, brace, rest = tree.partition("{")
    if brace:
        base = prefix + tuple(part for part in head.strip().split("::") if part)
        for part in split(rest[: rest.rindex("}")]):
            yield from leaves(part, base)
        return
    path, _, alias = tree.partition(" as ")
    parts = prefix + tuple(part.strip() for part in path.strip().split("::") if part.strip())
    if parts and parts[-1] == "self":
        parts = parts[:-1]
    if parts:
        yield parts, (alias.strip() or parts[-1])


class Crate:
    def __init__(self, root):
        self.modules = {}  # module path -> file
        for file in sorted((root / "src").rglob("*.rs")):
            parts = file.relative_to(root / "src").with_suffix("").parts
            if "bin" in parts[:1] or parts[-1] == "tests" or parts[-1].endswith("_tests") or "tests" in parts:
                continue
            if parts[-1] in ("lib", "main", "mod"):
                parts = parts[:-1]
            self.modules.setdefault(parts, file)
        self.text = {module: without_tests(file.read_text()) for module, file in self.modules.items()}
        self.defined = {module: set(DEFINITION.findall(text)) for module, text in self.text.items()}
        self.uses = {}
        self.exports = {}
        for module, text in self.text.items():
            self.uses[module], self.exports[module] = [], {}
            for public, tree in re.findall(r"^[ \t]*(pub(?:\([^)]*\))? )?use ([^;]+);", text, re.M):
                for parts, name in leaves(" ".join(tree.split())):
                    path = self.absolute(module, parts)
                    if path is None:
                        continue
                    self.exports[module][name] = path
                    if not public:
                        self.uses[module].append(path)
            body = re.sub(r"^[ \t]*(?:pub(?:\([^)]*\))? )?use [^;]+;", "", text, flags=re.M)
            for path in PATH.findall(body):
                path = self.absolute(module, tuple(path.split("::")))
                if path is not None:
                    self.uses[module].append(path)
            children = "|".join(m[-1] for m in self.modules if m[:-1] == module and m) or "$none"
            for path in re.findall(rf"(?<![\w:])((?:{children})::[A-Za-z_]\w*)", body):
                self.uses[module].append(module + tuple(path.split("::")))

    def absolute(self, module, parts):
        head = parts[0]
        if head == "crate":
            return parts[1:]
        if head in ("super", "self"):
            at = module
            while parts and parts[0] in ("super", "self"):
                if parts[0] == "super":
                    at = at[:-1]
                parts = parts[1:]
            return at + parts
        if module + (head,) in self.modules:
            return module + parts
        return None

    def definition(self, path, seen=()):
        """The module that defines what `path` names, or None."""
        if path in seen:
            return None
        cut = len(path)
        while path[:cut] not in self.modules:
            cut -= 1
            if cut < 0:
                return None
        module, rest = path[:cut], path[cut:]
        if not rest or rest[0] in self.defined[module]:
            return module
        if rest[0] in self.exports[module]:
            return self.definition(self.exports[module][rest[0]] + rest[1:], seen + (path,))
        return module if rest[0] == "*" else None

    def edges(self):
        edges = {module: {} for module in self.modules}
        for module, paths in self.uses.items():
            for path in paths:
                target = self.definition(path)
                # A module's name alone imports nothing; what is used through it is found in the text.
                if target is not None and target != module[: len(target)] and path != target:
                    edges[module].setdefault(target, set()).add(path[-1])
        return edges


def circles(edges):
    """Strongly connected components of more than one module (Tarjan)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(at):
        index[at] = low[at] = len(index)
        stack.append(at)
        on_stack.add(at)
        for to in edges[at]:
            if to not in index:
                visit(to)
                low[at] = min(low[at], low[to])
            elif to in on_stack:
                low[at] = min(low[at], index[to])
        if low[at] == index[at]:
            part = []
            while not part or part[-1] != at:
                part.append(stack.pop())
                on_stack.discard(part[-1])
            if len(part) > 1:
                found.append(sorted(part))

    for at in edges:
        if at not in index:
            visit(at)
    return found


def main():
    sys.setrecursionlimit(10_000)
    count = 0
    for name in CRATES:
        crate = Crate(pathlib.Path(name))
        edges = crate.edges()
        for circle in circles(edges):
            count += 1
            print(f"circle of {len(circle)} files:", file=sys.stderr)
            for module in circle:
                for to in circle:
                    if to in edges[module]:
                        items = ", ".join(sorted(edges[module][to]))
                        print(f"  {crate.modules[module]} imports {items} of {crate.modules[to]}", file=sys.stderr)
    print(f"{count} circles of imports")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
