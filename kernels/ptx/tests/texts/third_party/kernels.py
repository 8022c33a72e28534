"""Kernels in Triton whose PTX the simulator has to run. `python kernels.py` writes them beside this file; no GPU needed.

Everything is as plain as Triton's own tutorials would have it, so that the PTX is what people get.
"""

import re

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A · B with masks; A [M, K], B [K, N], C [M, N] bf16."""
    pm, pn = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :], mask=(rm[:, None] < M) & ((k + rk)[None, :] < K), other=0.0)
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :], mask=((k + rk)[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def gemm_tma(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A · B by tensor maps."""
    pm, pn = tl.program_id(0), tl.program_id(1)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = a.load([pm * BM, k])
        y = b.load([k, pn * BN])
        acc = tl.dot(x, y, acc)
    c.store([pm * BM, pn * BN], acc.to(tl.bfloat16))


@triton.jit
def attention(q, k, v, o, S, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Softmax(scale · Q · Kᵀ) · V of one head a program in y; all [heads, S, D] bf16. Keys beyond S are masked."""
    pm, head = tl.program_id(0), tl.program_id(1)
    base = head * S * D
    rm, rd = pm * BM + tl.arange(0, BM), tl.arange(0, D)
    x = tl.load(q + base + rm[:, None] * D + rd[None, :], mask=rm[:, None] < S, other=0.0)
    acc = tl.zeros((BM, D), dtype=tl.float32)
    most = tl.full((BM,), -1e30, dtype=tl.float32)
    total = tl.zeros((BM,), dtype=tl.float32)
    for start in range(0, S, BN):
        rn = start + tl.arange(0, BN)
        y = tl.load(k + base + rn[None, :] * D + rd[:, None], mask=rn[None, :] < S, other=0.0)
        s = tl.dot(x, y) * (scale * 1.4426950408889634)
        s = tl.where(rn[None, :] < S, s, -1e30)
        now = tl.maximum(most, tl.max(s, 1))
        p = tl.exp2(s - now[:, None])
        shrink = tl.exp2(most - now)
        total = total * shrink + tl.sum(p, 1)
        z = tl.load(v + base + rn[:, None] * D + rd[None, :], mask=rn[:, None] < S, other=0.0)
        acc = tl.dot(p.to(tl.bfloat16), z, acc * shrink[:, None])
        most = now
    tl.store(o + base + rm[:, None] * D + rd[None, :], (acc / total[:, None]).to(tl.bfloat16), mask=rm[:, None] < S)


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    """A row a program, f32."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * columns + at, e / tl.sum(e, 0), mask=at < columns)


@triton.jit
def layer_norm(x, gain, bias, y, columns, eps, BLOCK: tl.constexpr):
    """A row a program, bf16 in and out, f32 within."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, 0) / columns
    off = tl.where(inside, values - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(off * off, 0) / columns + eps)
    g = tl.load(gain + at, mask=inside, other=0.0)
    b = tl.load(bias + at, mask=inside, other=0.0)
    tl.store(y + row * columns + at, (off * rstd * g + b).to(tl.bfloat16), mask=inside)


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    """Adds all of x to out by one atomic addition a program."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0.0)
    tl.atomic_add(out, tl.sum(values, 0))


@triton.jit
def transpose(x, y, rows, columns, BLOCK: tl.constexpr):
    """y [columns, rows] = x [rows, columns]ᵀ, f32."""
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(x + r[:, None] * columns + c[None, :], mask=(r[:, None] < rows) & (c[None, :] < columns))
    tl.store(y + c[:, None] * rows + r[None, :], tl.trans(tile), mask=(c[:, None] < columns) & (r[None, :] < rows))


BF16, F32 = "*bf16", "*fp32"
TILE = {"BM": 64, "BN": 64, "BK": 32}
WGMMA = {"BM": 128, "BN": 128, "BK": 64}
PRODUCT = {"a": BF16, "b": BF16, "c": BF16, "M": "i32", "N": "i32", "K": "i32"}
HEADS = {"q": BF16, "k": BF16, "v": BF16, "o": BF16, "S": "i32", "scale": "fp32"}
NORM = {"x": BF16, "gain": F32, "bias": F32, "y": BF16, "columns": "i32", "eps": "fp32"}
MAPS = {
    "a": "tensordesc<bf16[128,64]>",
    "b": "tensordesc<bf16[64,128]>",
    "c": "tensordesc<bf16[128,128]>",
    "M": "i32",
    "N": "i32",
    "K": "i32",
}
# name of the file, kernel, architecture, types of arguments, constants, warps, stages, arguments that are multiples of 16
KERNELS = [
    ("gemm_sm80", gemm, 80, PRODUCT, TILE, 4, 3, range(6)),
    ("gemm_sm90a", gemm, 90, PRODUCT, {"BM": 64, "BN": 64, "BK": 32}, 4, 3, range(6)),
    ("gemm_tma_sm90a", gemm_tma, 90, MAPS, WGMMA, 4, 3, ()),
    ("attention_sm80", attention, 80, HEADS, {"D": 64, "BM": 64, "BN": 32}, 4, 2, range(4)),
    ("attention_sm90a", attention, 90, HEADS, {"D": 64, "BM": 64, "BN": 64}, 4, 2, range(4)),
    ("softmax_sm80", softmax, 80, {"x": F32, "y": F32, "columns": "i32"}, {"BLOCK": 1024}, 4, 1, range(2)),
    ("layer_norm_sm80", layer_norm, 80, NORM, {"BLOCK": 1024}, 4, 1, range(4)),
    ("layer_norm_sm90a", layer_norm, 90, NORM, {"BLOCK": 1024}, 8, 1, range(4)),
    ("total_sm80", total, 80, {"x": F32, "out": F32, "n": "i32"}, {"BLOCK": 1024}, 4, 1, range(2)),
    ("transpose_sm80", transpose, 80, {"x": F32, "y": F32, "rows": "i32", "columns": "i32"}, {"BLOCK": 32}, 4, 1, range(2)),
]

if __name__ == "__main__":
    for name, kernel, arch, types, constants, warps, stages, aligned in KERNELS:
        signature = types | {constant: "constexpr" for constant in constants}
        attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
        source = ASTSource(kernel, signature, constants, attributes)
        options = {"num_warps": warps, "num_stages": stages}
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        # Debug sections are not run, and paths of a machine do not belong here.
        text = re.split(r"\n\s*\.section", compiled.asm["ptx"])[0]
        text = re.sub(r'(\.file\s+\d+) "[^"]*/([^"/]+)"', r'\1 "\2"', text).rstrip() + "\n"
        text = f"// Written by Triton {triton.__version__} from kernels.py; shared memory: {compiled.metadata.shared} bytes.\n" + text
        with open(f"{name}.ptx", "w") as file:
            file.write(text)
        print(f"{name}: {len(text)} bytes, {32 * warps} threads, {compiled.metadata.shared} bytes of shared memory")
