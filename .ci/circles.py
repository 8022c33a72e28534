#!/usr/bin/env python3
"""Finds circles of imports between the source files of a crate.

    .ci/circles.py [FOLDER]     prints each circle with the lines that cause it. Exit code 1: there is a circle; 2: a planted
                                circle was missed, or a file cannot be read

A file imports another if a path in a `use`, in code or in a macro names an item that the other defines. Paths are resolved as
the compiler does: `crate`, `self`, `super`, child modules, modules that are imported or renamed, nested groups, globs, and
re-exports, which are followed to the definition. Methods are not paths and do not count. The following are not imports either:
a `mod` declaration, the name of a module alone, code under `cfg(test)`, and what a file takes from a module that contains it,
because a folder's `mod.rs` may define what its files share. All targets of the workspace are checked: libraries, programs,
tests, examples, benchmarks. Each run starts with the trees of PLANTED, whose circles it has to find.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

TOKEN = re.compile(r"""
    (?P<skip>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<literal>(?:br|cr|r)(?P<hashes>\#*)".*?"(?P=hashes)|[bc]?"(?:\\.|[^"\\])*"|b?'(?:\\(?:u\{\w+\}|x\w\w|.)|[^\\'\n])'|'\w+)
  | (?P<word>(?:r\#)?[A-Za-z_]\w*)
  | (?P<number>\d\w*)
  | (?P<mark>::|.)
""", re.X | re.S)
WORD = re.compile(r"[A-Za-z_]\w*$")
DEFINES = {"fn", "struct", "enum", "union", "trait", "type", "const", "static"}
ITEM = DEFINES | {"pub", "use", "mod", "impl", "unsafe", "async", "extern", "macro_rules"}
NOT_A_PATH = {"let", "mut", "ref", "fn", "struct", "enum", "trait", "type", "impl", "for", "in", "if", "match", "return", "dyn", "as", "where", "move"}
OPEN, CLOSE = set("([{"), set(")]}")


def tokens(text):
    """(token, line) of the text without comments."""
    found, line = [], 1
    for match in TOKEN.finditer(text):
        if match["skip"] is None:
            found.append((match[0].removeprefix("r#"), line))
        line += match[0].count("\n")
    return found


def end_of_item(code, at):
    """Index after the item, statement or field that starts at `at`."""
    depth, is_item = 0, code[at][0] in ITEM
    while at < len(code):
        word = code[at][0]
        depth += (word in OPEN) - (word in CLOSE)
        if depth < 0:
            return at
        at += 1
        if depth == 0 and (word in ";}" or word == "," and not is_item):
            break
    return at


def end_of_attribute(code, at):
    at = at + 1 + (code[at + 1][0] == "!")
    depth = 0
    while at < len(code):
        depth += (code[at][0] in OPEN) - (code[at][0] in CLOSE)
        at += 1
        if depth == 0:
            break
    return at


def without_tests(code):
    """The tokens without attributes other than `#[path = ..]`, and without the items under `cfg(test)`."""
    kept, at = [], 0
    while at < len(code):
        if code[at][0] != "#" or at + 1 == len(code) or code[at + 1][0] not in "![":
            kept.append(code[at])
            at += 1
            continue
        end = end_of_attribute(code, at)
        words = [word for word, _ in code[at:end]]
        if words[2] == "path":
            kept += code[at:end]
        at = end
        if words[2] == "cfg" and "test" in words and "not" not in words:
            while code[at][0] == "#":
                at = end_of_attribute(code, at)
            at = end_of_item(code, at)
    return kept


def leaves(words, prefix=()):
    """(path, name in scope) of each leaf of a `use` tree; the name of a glob is `*`."""
    path, alias, at = list(prefix), None, 0
    while at < len(words):
        if words[at] == "{":
            depth, start = 0, at + 1
            for end in range(at, len(words)):
                depth += (words[end] == "{") - (words[end] == "}")
                if depth == 0 or depth == 1 and words[end] == ",":
                    if words[start:end]:
                        yield from leaves(words[start:end], tuple(path))
                    start = end + 1
            return
        if words[at] == "as":
            alias, at = words[at + 1], at + 2
            continue
        if words[at] != "::" or not path and at == 0:
            path.append(words[at])
        at += 1
    if path[-1] == "self" and len(path) > 1:
        path.pop()
    yield tuple(path), alias or path[-1]


class Module:
    def __init__(self, path, file):
        self.path, self.file = path, file
        self.children, self.defined, self.names, self.globs, self.paths = {}, set(), {}, [], []


class Target:
    """Modules of one library, program, test, example or benchmark."""

    def __init__(self, root):
        self.homes = {}  # file -> path of its module
        self.root = Module((), root)
        self.modules = [self.root]
        self.read(self.root, root.parent)

    def read(self, module, folder):
        self.homes.setdefault(module.file, module.path)
        self.scan(module, without_tests(tokens(module.file.read_text())), folder)

    def child(self, parent, name, file=None):
        made = parent.children[name] = Module(parent.path + (name,), file or parent.file)
        self.modules.append(made)
        return made

    def scan(self, module, code, folder):
        scopes, at, given = [], 0, None  # (module, its folder) of each inline module, None for other braces
        current, home = module, folder
        while at < len(code):
            word, line = code[at]
            after = code[at + 1][0] if at + 1 < len(code) else ""
            if word == "#" and after == "[" and code[at + 2][0] == "path":
                given = code[at + 4][0].strip('"')
                at = end_of_attribute(code, at)
                continue
            if word == "mod" and WORD.match(after) and code[at + 2][0] in "{;":
                if code[at + 2][0] == "{":
                    scopes.append((current, home))
                    current, home = self.child(current, after), home / after
                else:
                    folder = module.file.parent if given else home
                    options = [folder / given] if given else [home / f"{after}.rs", home / after / "mod.rs"]
                    file = next((option for option in options if option.is_file()), None)
                    if file is None:
                        raise FileNotFoundError(f"{module.file}:{line}: no file of module {after}; expected {options[0]}")
                    self.read(self.child(current, after, file), file.parent if given or file.name == "mod.rs" else home / after)
                    given = None
                at += 3
            elif word == "use" and after not in "<":
                end = next(i for i in range(at, len(code)) if code[i][0] == ";")
                for path, name in leaves([word for word, _ in code[at + 1 : end]]):
                    current.paths.append((path, line))
                    if name == "*":
                        current.globs.append(path[:-1])
                    else:
                        current.names.setdefault(name, []).append(path)
                at = end + 1
            elif word == "macro_rules":
                current.defined.add(code[at + 2][0])
                at += 3
            elif word == "{":
                scopes.append(None)
                at += 1
            elif word == "}":
                scope = scopes.pop() if scopes else None
                current, home = scope or (current, home)
                at += 1
            elif WORD.match(word):
                if word in DEFINES and WORD.match(after) and (not scopes or scopes[-1]) and after not in DEFINES:
                    current.defined.add(code[at + 2][0] if after == "mut" else after)
                path, start = [word], at
                while at + 2 < len(code) and code[at + 1][0] == "::" and WORD.match(code[at + 2][0]):
                    path.append(code[at + 2][0])
                    at += 2
                before = code[start - 1][0] if start else ""
                if before == "::" and not (WORD.match(code[start - 2][0]) or code[start - 2][0] == ">"):
                    before, path = "", ["::", *path]
                if (before not in {"::", ".", "$"} or word == "crate") and (len(path) > 1 or word not in NOT_A_PATH):
                    current.paths.append((tuple(path), line))
                at += 1
            else:
                at += 1

    def lookup(self, module, name, as_module, seen):
        """What a name means in a module: a Module, (Module that defines it, name) or None."""
        if (module.path, name, as_module) in seen:
            return None
        seen = seen | {(module.path, name, as_module)}
        child = module.children.get(name)
        if child and as_module:
            return child
        if name in module.defined:
            return module, name
        for path in module.names.get(name, []):
            found = self.resolve(module, path, as_module, seen)
            if found:
                return found
        for path in module.globs:
            found = self.resolve(module, path, True, seen)
            found = self.lookup(found, name, as_module, seen) if isinstance(found, Module) else None
            if found:
                return found
        return child

    def resolve(self, module, path, as_module=False, seen=frozenset()):
        at, parts = module, list(path)
        if parts[0] in ("crate", "self", "super"):
            while parts and parts[0] in ("crate", "self", "super"):
                word = parts.pop(0)
                at = self.root if word == "crate" else self.parent(at) if word == "super" else at
        else:
            at = self.lookup(at, parts.pop(0), as_module or len(path) > 1, seen)
        while parts and isinstance(at, Module):
            name = parts.pop(0)
            if name == "*":
                break
            # An item that no definition shows, of a macro for example, is one of the module.
            at = self.lookup(at, name, as_module or bool(parts), seen) or (at, name)
        return at

    def parent(self, module):
        at = self.root
        for name in module.path[:-1]:
            at = at.children[name]
        return at

    def imports(self):
        """(importing module, imported module, file, line, name, imported file) of each import between neighbors."""
        for module in self.modules:
            for path, line in module.paths:
                found = self.resolve(module, path)
                if isinstance(found, Module):
                    if path[-1] != "*":
                        continue
                    found = found, "*"
                if found is None:
                    continue
                home, other = self.homes[module.file], self.homes[found[0].file]
                shared = next((n for n, pair in enumerate(zip(home, other)) if pair[0] != pair[1]), min(len(home), len(other)))
                if shared < min(len(home), len(other)):
                    yield home[: shared + 1], other[: shared + 1], module.file, line, found[1], found[0].file


def circles(edges):
    """Strongly connected components of more than one node; `edges` has the set of successors of each."""

    def reached(start):
        seen, open_ = set(), [start]
        while open_:
            for to in edges.get(open_.pop(), ()):
                if to not in seen:
                    seen.add(to)
                    open_.append(to)
        return seen

    reach = {node: reached(node) for node in edges}
    return {frozenset(other for other in edges if other in reach[node] and node in reach[other]) for node in edges if node in reach[node]}


def check(root):
    """Reports the circles of a target whose root file is `root`, one text each; and the number of its files."""
    target = Target(root)
    imports, edges = list(target.imports()), {}
    for one, other, *_ in imports:
        edges.setdefault(one, set()).add(other)
    reports = []
    for circle in circles(edges):
        lines = {
            f"  {file}:{line} imports {name} of {imported}"
            for one, other, file, line, name, imported in imports
            if one in circle and other in circle
        }
        reports.append(f"circle of {', '.join(sorted('::'.join(node) for node in circle))}:\n" + "\n".join(sorted(lines)))
    return reports, len(target.homes)


# Imports of a.rs that make a circle with b.rs, which is B.
B = "use crate::a::A; pub struct B; pub enum E { V } pub trait T {} pub fn f(_: A) {}"
PLANTED = [
    "use super::b::B;",
    "use super::b; fn g() { b::f() }",
    "use super::b as c; fn g() { c::f() }",
    "use super::b::B as C;",
    "use crate::b::{self}; fn g() { b::f() }",
    "use crate::{b::{self as c, E}};",
    "use crate::{x::Y, b::{E::{self, V}}};",
    "use crate::b::*;",
    "use super::b::E::*;",
    "use super::*; fn g(_: b::B) {}",
    "use crate as root; fn g() { root::b::f() }",
    "pub use super::b::B;",
    "pub(in crate) use super::b::f;",
    "fn g() { crate::b::f() }",
    "fn g() { super::b::f::<u8>() }",
    "fn g() { self::super::b::f() }",
    "fn g() { use super::b; b::f() }",
    "fn g() -> crate::b::B { todo!() }",
    "impl crate::b::T for A {}",
    "fn g() { <A as super::b::T>::h() }",
    "fn g(_: impl super::b::T + use<>) {}",
    "mod inner { use super::super::b::B; }",
    "mod inner { fn g() { super::super::b::f() } }",
    "macro_rules! m { () => { $crate::b::f() } }",
    'fn g() { println!("{}", crate::b::f()) }',
    "use super::r#b::B;",
    "use super:: /* b */ b // b\n :: B;",
    "#[cfg(not(test))] use super::b::B;",
    "#[cfg(test)] mod tests { const X: char = '{'; } use super::b::B;",
    "#[cfg(test)] fn t<A, B>(_: [u8; 2]) {} fn g() { crate::b::f() }",
]
LIB = "mod a; mod b;"
# Files with a circle.
PLANTED_TREES = [
    # Re-exported by the parent, under another name, in a glob, through a third file.
    {"lib.rs": LIB + "pub use b::B as C;", "a.rs": "pub struct A; use super::C;", "b.rs": B},
    {"lib.rs": LIB + "pub use b::*;", "a.rs": "pub struct A; use crate::B;", "b.rs": B},
    {"lib.rs": LIB + "use b::*;", "a.rs": "pub struct A; use super::*; fn g() -> B { B }", "b.rs": B},
    {"lib.rs": LIB + "mod c;", "a.rs": "pub struct A; use super::c::B;", "b.rs": B, "c.rs": "pub use crate::b::B;"},
    # Three files.
    {"lib.rs": LIB + "mod c;", "a.rs": "pub struct A; use super::c::C;", "b.rs": B, "c.rs": "pub struct C(crate::b::B);"},
    # Folders, with mod.rs and without, by files of the folder and from them.
    {"lib.rs": LIB, "a/mod.rs": "mod x; pub struct A;", "a/x.rs": "use super::super::b::B;", "b.rs": B},
    {"lib.rs": LIB, "a.rs": "mod x; pub struct A;", "a/x.rs": "fn g() { super::super::b::f() }", "b.rs": B},
    {"lib.rs": LIB, "a/mod.rs": "mod x; pub use x::A; use crate::b::y;", "a/x.rs": "pub struct A(super::y::Y);", "b/mod.rs": "pub mod y;",
     "b/y.rs": "pub struct Y(crate::a::A);"},
    {"lib.rs": "mod d;", "d/mod.rs": LIB, "d/a.rs": "pub struct A; use super::b; fn g() { b::f() }", "d/b.rs": B.replace("crate", "super")},
    {"lib.rs": "mod a; #[path = \"other.rs\"] mod b;", "a.rs": "pub struct A; use super::b::B;", "other.rs": B},
    {"lib.rs": "mod d { pub mod a; pub mod b; }", "d/a.rs": "pub struct A; use crate::d::b::B;", "d/b.rs": B.replace("a::", "d::a::")},
]
# Files without a circle.
CLEAN = [
    {"lib.rs": LIB + "pub struct P;", "a.rs": "pub struct A; use super::P;", "b.rs": B},
    {"lib.rs": LIB + "use a::A; pub fn p(_: A) {}", "a.rs": "pub struct A; fn g() { super::p(A) }", "b.rs": B},
    {"lib.rs": LIB, "a.rs": "pub struct A; // crate::b::f()\n/* crate::b::f() */ const C: &str = r#\"crate::b::f()\"#;", "b.rs": B},
    {"lib.rs": LIB, "a.rs": "pub struct A; #[cfg(test)] mod tests { use crate::b::B; } #[cfg(all(test, unix))] use crate::b::B;", "b.rs": B},
    {"lib.rs": LIB, "a.rs": "pub struct A; use super::b; mod x { pub mod b { pub fn f() {} } } fn g() { x::b::f() }", "b.rs": B},
    {"lib.rs": LIB, "a/mod.rs": "mod x; mod y; pub struct A;", "a/x.rs": "use super::A; use super::y::Y;", "a/y.rs": "pub struct Y(super::A);", "b.rs": B},
    {"lib.rs": LIB, "a.rs": "pub struct A; fn g() { std::b::f(); x.b::<u8>(); }", "b.rs": B},
]


def test_self():
    """Exits with code 2 if a planted circle is missed or one is reported without reason; returns the number of trees."""
    planted = [{"lib.rs": LIB, "a.rs": "pub struct A; " + line, "b.rs": B} for line in PLANTED] + PLANTED_TREES
    for is_circle, trees in ((True, planted), (False, CLEAN)):
        for tree in trees:
            with tempfile.TemporaryDirectory() as folder:
                for name, text in tree.items():
                    file = pathlib.Path(folder, name)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(text)
                reports, _ = check(pathlib.Path(folder, "lib.rs"))
            if len(reports) != is_circle:
                print(f"error: {len(reports)} circles found in {tree}, expected {int(is_circle)}", *reports, file=sys.stderr)
                sys.exit(2)
    return len(planted)


def main():
    planted = test_self()
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"]
    packages = json.loads(subprocess.run(command, cwd=(sys.argv[1:] or [None])[0], capture_output=True, check=True).stdout)["packages"]
    found, files = set(), 0
    for source in sorted({target["src_path"] for package in packages for target in package["targets"]}):
        reports, count = check(pathlib.Path(source))
        found.update(reports)
        files += count
    print("\n".join(sorted(found)), file=sys.stderr, end="\n" * bool(found))
    print(f"{planted} planted circles found; {len(found)} circles of imports in {files} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
