"""The work of `cuda_suite` in PyTorch: products by cuBLAS, attention by its fastest backend (cuDNN, FlashAttention), an
encoder of twelve applications of one layer, eager and compiled. Prints a table of both, and writes it as Markdown.

    python3 benches/cuda/peers.py OURS.json TABLE.md

OURS.json is what `cuda_suite --json` wrote on the same machine, minutes before. Needs PyTorch 2.5 or later with CUDA; without it
says SKIPPED and writes our figures alone. Medians of several turns, everything in bf16, random numbers and not zeros.
"""

import datetime
import json
import re
import statistics
import sys
import time

TURNS, TURN = 7, 0.02


def timed(torch, work):
    """Median seconds of `work`, repeated within a turn."""

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
    x = torch.rand(m, k, device="cuda", dtype=torch.bfloat16) - 0.5
    w = torch.rand(n, k, device="cuda", dtype=torch.bfloat16) - 0.5
    return {"cuBLAS": timed(torch, lambda: torch.nn.functional.linear(x, w))}


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


def encoder(torch, name):
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

    results = {}
    for peer in ["PyTorch eager", "PyTorch compiled"]:
        layer = Layer().cuda().bfloat16()
        run = torch.compile(layer) if "compiled" in peer else layer
        x = (torch.rand(b, s, h, device="cuda", dtype=torch.bfloat16) - 0.5).requires_grad_()
        gradient = torch.rand_like(x) - 0.5

        def both_ways():
            y = x
            for _ in range(layers):
                y = run(y)
            y.backward(gradient)

        try:
            results[peer] = timed(torch, both_ways)
        except Exception as error:  # a compiler that is not installed must not hide the other figures
            print(f"SKIPPED: {peer} on {name}: {str(error).splitlines()[0]}")
    return results


def peers(torch, name):
    kinds = {"gemm": product, "attention": attention, "encoder": encoder}
    return kinds[name.split()[0]](torch, name)


def main():
    ours, table = sys.argv[1:]
    with open(ours, encoding="utf-8") as file:
        ours = json.load(file)
    try:
        import torch

        if not torch.cuda.is_available():
            raise ImportError("PyTorch finds no GPU")
    except ImportError as error:
        torch = None
        print(f"SKIPPED: peers are not measured: {error}")
    lines = [
        f"{ours['gpu']}; {datetime.date.today()}; PyTorch {torch.__version__ if torch else 'not there'}; "
        f"{ours['failures']} cases failed.",
        "",
        "| work | ours, us | TFLOP/s | TB/s | peers, us | ours is faster by |",
        "|---|---|---|---|---|---|",
    ]
    for row in ours["rows"]:
        found = peers(torch, row["name"]) if torch else {}
        best = min(found.values(), default=None)
        seconds = row["seconds"]
        listed = ", ".join(f"{peer} {value * 1e6:.1f}" for peer, value in found.items()) or "not measured"
        ratio = f"{best / seconds:.2f}" if best else "-"
        lines.append(
            f"| {row['name']} | {seconds * 1e6:.1f} | {row['flops'] / seconds / 1e12:.1f} "
            f"| {row['bytes'] / seconds / 1e12:.2f} | {listed} | {ratio} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    with open(table, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
