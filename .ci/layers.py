#!/usr/bin/env python3
"""Checks that crates depend only on those below them, and that unsafe code occurs only in the listed places.

    .ci/layers.py            prints each violation; exit code 1 if there is one
"""

import json
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
from circles import Target, tokens

# Package: packages of the workspace, and third-party crates that a lower layer wraps, on which its code may depend.
LAYERS = {
    "albert-num": {},
    "ptx": {"albert-num"},
    "albert-kernels": {"albert-num"},
    "albert-kernels-cuda": {"albert-kernels", "ptx"},
    "albert-kernels-proof": {"albert-kernels", "albert-kernels-cuda", "ptx"},
    "bounded-input": {},
    "albert-engine": {"albert-kernels", "albert-kernels-cuda", "ptx", "bounded-input", "cudarc", "memmap2"},
    "albert-tokenizer": {"bounded-input"},
    "albert-model": {"albert-engine", "albert-tokenizer"},
    "albert-tasks": {"albert-model", "albert-engine"},
    "albert-measure": {"albert-model", "albert-engine", "albert-kernels"},
    "albert-program": {
        "albert-measure", "albert-model", "albert-tasks", "albert-engine", "albert-kernels", "albert-kernels-cuda", "albert-kernels-proof",
        "ptx",
    },
}
WRAPPED = {"cudarc", "memmap2"}
ABOVE = {"albert-benches", "albert-learn", "albert-tests"}  # any
# `albert kernels` is the only command that imports kernels; `albert bench` does so through cli/measure.
PROGRAM, ITS_KERNELS = "cli/src/main.rs", "cli/src/commands/kernels/"

UNSAFE = re.compile(
    r"kernels/src/(pool|simd|tiles|gemm|int8|attention|layernorm|activation|softmax|cross_entropy|embedding|dropout|reduce|optimizer"
    r"|elementwise|rows)/|engine/src/(memory|device)/|engine/src/communicator/(library|mpi|nccl|start)\.rs"
    r"|engine/src/io/mmap\.rs|kernels/(examples|tests/team)/|kernels/proof/tests/guard_pages|cli/measure/src/peers/|benches/|tests/"
)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    run = lambda *command: subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    packages = json.loads(run("cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"))["packages"]
    wrong = []
    for package in packages:
        name = package["name"]
        if name in ABOVE:
            continue
        if name not in LAYERS:
            wrong.append(f"{name}: not in the table of .ci/layers.py; add it with the packages on which it may depend")
            continue
        needs = {needed["name"] for needed in package["dependencies"] if needed["kind"] != "dev"}
        forbidden = needs & (LAYERS.keys() | ABOVE | WRAPPED) - set(LAYERS[name])
        wrong += [f"{name} must not depend on {needed}" for needed in sorted(forbidden)]

    program = Target(root / PROGRAM)
    for module in program.modules:
        file = str(module.file.relative_to(root))
        named = module.paths + [(path, 0) for paths in module.names.values() for path in paths]
        for path, line in named:
            crate = path[path[0] == "::"]
            if crate in ("kernels", "kernels_cuda", "ptx") and (len(path) > 1 or line == 0) and not file.startswith(ITS_KERNELS):
                if program.resolve(module, path[:2]) is None:
                    wrong.append(f"{file}{f':{line}' * bool(line)}: only {ITS_KERNELS} may import {crate}")

    files = [name for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.rs").split("\n") if name]
    for name in files:
        if not UNSAFE.match(name) and (root / name).exists():
            lines = [line for token, line in tokens((root / name).read_text()) if token == "unsafe"]
            wrong += [f"{name}:{line}: unsafe code outside the places listed in .ci/layers.py" for line in lines]
    print("\n".join(sorted(set(wrong))), file=sys.stderr, end="\n" * bool(wrong))
    print(f"{len(packages)} packages, {len(files)} files: {len(set(wrong))} violations")
    return 1 if wrong or not files else 0


if __name__ == "__main__":
    sys.exit(main())
