"""The work of `cuda_suite` in PyTorch: products by cuBLAS, attention by its fastest backends (cuDNN, FlashAttention), an
encoder of applications of one layer, eager and compiled. Appends a line of a Markdown table for each as it is measured.

    python3 benches/cuda/peers.py NAMES OURS.tsv TABLE.md

NAMES holds the names that `cuda_suite --list-speeds` prints; OURS.tsv is the journal of `cuda_suite --no-cases` on the same
machine, if there is one. Needs PyTorch 2.5 or later with CUDA; without it says SKIPPED, exit code 5. Medians of several turns,
everything in bf16, random elements and not zeros; inputs of products alternate, as in `cuda_suite`. What is compiled comes
last, because compilation takes a minute each.
"""

import datetime
import itertools
import os
import re
import statistics
import sys
import time

TURNS, TURN = 7, 0.02
# Bytes of inputs that alternate: several times the largest L2.
ALTERNATING = 256 << 20


def timed(torch, work):
    """Median seconds of `work`, repeated within a round."""

    def turn(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            work()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / times

    turn(3)
    times = max(1, min(200, int(TURN / turn(1)) + 1))
    return statistics.median(turn(times) for _ in range(TURNS))


def numbers(name):
    return [int(n) for n in re.findall(r"\d+", name)]


def product(torch, name):
    m, n, k = numbers(name)
    count = max(2, min(8, ALTERNATING // (2 * m * k)))
    inputs = itertools.cycle(
        [torch.rand(m, k, device="cuda", dtype=torch.bfloat16) - 0.5 for _ in range(count)]
    )
    w = torch.rand(n, k, device="cuda", dtype=torch.bfloat16) - 0.5
    return {"cuBLAS": timed(torch, lambda: torch.nn.functional.linear(next(inputs), w))}


def attention(torch, name):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    b, s, a, d = numbers(name)
    results = {}
    for backend, peer in [(SDPBackend.CUDNN_ATTENTION, "cuDNN"), (SDPBackend.FLASH_ATTENTION, "FlashAttention")]:
        q, k, v = (
            (torch.rand(b, a, s, d, device="cuda", dtype=torch.bfloat16) - 0.5).requires_grad_("backward" in name)
            for _ in range(3)
        )
        forward = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)
        try:
            with sdpa_kernel(backend):
                if "forward" in name:
                    results[peer] = timed(torch, forward)
                else:
                    out = forward()
                    gradient = torch.rand_like(out) - 0.5
                    results[peer] = timed(
                        torch, lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)
                    )
        except RuntimeError as error:
            print(f"SKIPPED: {peer} on {name}: {str(error).splitlines()[0]}")
    return results


def encoder(torch, name, compiled=False):
    b, s, a, d, f, layers = numbers(name)
    h = a * d

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(h, 3 * h), torch.nn.Linear(h, h)
            self.up, self.down = torch.nn.Linear(h, f), torch.nn.Linear(f, h)
            self.first, self.second = torch.nn.LayerNorm(h), torch.nn.LayerNorm(h)

        def forward(self, x):
            q, k, v = self.qkv(x).view(b, s, 3, a, d).permute(2, 0, 3, 1, 4)
            context = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            x = self.first(x + self.out(context.transpose(1, 2).reshape(b, s, h)))
            y = torch.nn.functional.gelu(self.up(x), approximate="tanh")
            return self.second(x + self.down(y))

    layer = Layer().cuda().bfloat16()
    run = torch.compile(layer) if compiled else layer
    x = (torch.rand(b, s, h, device="cuda", dtype=torch.bfloat16) - 0.5).requires_grad_()
    gradient = torch.rand_like(x) - 0.5

    def both_ways():
        y = x
        for _ in range(layers):
            y = run(y)
        y.backward(gradient)

    return {"PyTorch compiled" if compiled else "PyTorch": timed(torch, both_ways)}


def copy(torch):
    """Bytes per second of a copy on the device, read and written."""
    x = torch.rand(1 << 30, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.nbytes / timed(torch, lambda: y.copy_(x))


def read_ours(path):
    """Name to (seconds, FLOPs, bytes), from the journal; the last line of a name counts."""
    ours = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                _, _, name, *fields = line.rstrip("\n").split("\t")
                if fields and fields[0] == "measured":
                    ours[name] = (float(fields[1]), float(fields[4]), float(fields[5]))
    return ours


def row(name, ours, found):
    best = min(found.values(), default=None)
    listed = ", ".join(f"{peer} {value * 1e6:.1f}" for peer, value in found.items()) or "not measured"
    if name not in ours:
        return f"| {name} | not measured | - | - | {listed} | - |"
    seconds, flops, moved = ours[name]
    ratio = f"{best / seconds:.2f}" if best else "-"
    return (
        f"| {name} | {seconds * 1e6:.1f} | {flops / seconds / 1e12:.1f} | {moved / seconds / 1e12:.2f} "
        f"| {listed} | {ratio} |"
    )


def main():
    names, ours, table = sys.argv[1:]
    with open(names, encoding="utf-8") as file:
        names = file.read().splitlines()
    ours = read_ours(ours)
    try:
        import torch

        if not torch.cuda.is_available():
            raise ImportError("PyTorch finds no GPU")
    except ImportError as error:
        print(f"SKIPPED: peers are not measured: {error}")
        sys.exit(5)
    with open(table, "a", encoding="utf-8") as file:

        def write(text):
            print(text, flush=True)
            file.write(text + "\n")
            file.flush()

        write(
            f"{torch.cuda.get_device_name()}; {datetime.date.today()}; PyTorch {torch.__version__}; "
            f"a copy moves {copy(torch) / 1e12:.2f} TB/s.\n"
        )
        write("| work | ours, us | TFLOP/s | TB/s | peers, us | ours is faster by |\n|---|---|---|---|---|---|")
        kinds = {"gemm": product, "attention": attention, "encoder": encoder}
        work = [(name, kinds[name.split()[0]]) for name in names]
        compiled = [(name, lambda torch, name: encoder(torch, name, True)) for name in names if "encoder" in name]
        for name, peer in work + compiled:
            try:
                found = peer(torch, name)
            except Exception as error:  # what is not installed, or runs out of memory, must not hide the other figures
                found = {}
                print(f"SKIPPED: {name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            write(row(name, ours, found))


if __name__ == "__main__":
    main()
