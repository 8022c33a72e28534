"""Single kernels: `albert bench attention|gelu|layernorm|softmax|vocabulary` against PyTorch and ONNX Runtime, interleaved.

    python benches/cpu/kernels.py --albert target/release/albert --threads 1
    python benches/cpu/kernels.py --only gemm --precision bf16

A product is PyTorch's `linear`; ours packs the weight within the call, and before it. PyTorch's
`scaled_dot_product_attention` gets q, k and v as a model has them, views of one [B, S, 3H] product; its backward pass
is timed by itself. The vocabulary is its `linear` and `cross_entropy`, over rows that have a label. ONNX Runtime runs
its own fused operations (com.microsoft). PyTorch's GELU is the fused one. PyTorch runs with glibc keeping its memory:
results are new tensors, and page faults would be timed otherwise.
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import turns  # noqa: E402

ATTENTION = ["8x128", "8x512"]
VOCABULARY = ["153x30000", "614x30000"]
WIDTH = 128
PRODUCTS = ["1024x768x768", "1024x3072x768", "1024x768x3072"]
ROWS = ["512x768", "512x3072", "4096x768", "4096x3072"]
HEADS, HEAD_SIZE = 12, 64


def torch_product(precision, m, n, k):
    import torch

    torch.manual_seed(1)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[precision]
    x, weight = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
    return lambda: torch.nn.functional.linear(x, weight)


def torch_call(kernel, passes, first, second):
    import torch

    torch.manual_seed(1)
    forward = passes == "forward"
    if kernel == "attention":
        b, s, h = first, second, HEADS * HEAD_SIZE
        qkv = torch.rand(b, s, 3 * h) - 0.5
        heads = [part.view(b, s, HEADS, HEAD_SIZE).transpose(1, 2) for part in qkv.split(h, dim=-1)]
        if forward:
            return lambda: torch.nn.functional.scaled_dot_product_attention(*heads)
        heads = [part.detach().requires_grad_() for part in heads]
        out = torch.nn.functional.scaled_dot_product_attention(*heads)
        dout = torch.rand(b, s, HEADS, HEAD_SIZE).sub(0.5).transpose(1, 2)
        return lambda: torch.autograd.grad(out, heads, dout, retain_graph=True)
    if kernel == "vocabulary":
        hidden, weight, bias = (torch.rand(*shape) - 0.5 for shape in [(first, WIDTH), (second, WIDTH), (second,)])
        labels = torch.randint(second, (first,))
        inputs = [x.requires_grad_(not forward) for x in (hidden, weight, bias)]
        loss = lambda: torch.nn.functional.cross_entropy(torch.nn.functional.linear(*inputs), labels)
        if forward:
            return loss
        kept = loss()
        return lambda: torch.autograd.grad(kept, inputs, retain_graph=True)
    x, dy = torch.rand(first, second) - 0.5, torch.rand(first, second) - 0.5
    aten = torch.ops.aten
    if kernel == "gelu":
        if forward:
            return lambda: aten.gelu(x, approximate="tanh")
        return lambda: aten.gelu_backward(dy, x, approximate="tanh")
    if kernel == "softmax":
        y = torch.softmax(x, -1)
        if forward:
            return lambda: torch.softmax(x, -1)
        return lambda: aten._softmax_backward_data(dy, y, -1, torch.float32)
    gain, bias = torch.rand(second), torch.rand(second)
    if forward:
        return lambda: aten.native_layer_norm(x, [second], gain, bias, 1e-12)
    _, mean, rstd = aten.native_layer_norm(x, [second], gain, bias, 1e-12)
    return lambda: aten.native_layer_norm_backward(dy, x, [second], mean, rstd, gain, bias, [True] * 3)


def ort_call(kernel, first, second, threads):
    """One forward operation as an ONNX model; None if there is none."""
    import numpy
    import onnxruntime
    from onnx import TensorProto, helper

    shape = [first, second, HEADS * HEAD_SIZE] if kernel == "attention" else [first, second]
    if kernel == "attention":
        names, node = ["q", "k", "v"], helper.make_node(
            "MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=HEADS
        )
    elif kernel == "gelu":
        names, node = ["x"], helper.make_node("Gelu", ["x"], ["y"], approximate="tanh")
    elif kernel == "softmax":
        names, node = ["x"], helper.make_node("Softmax", ["x"], ["y"], axis=-1)
    else:
        names, node = ["x", "gain", "bias"], helper.make_node(
            "LayerNormalization", ["x", "gain", "bias"], ["y"], axis=-1, epsilon=1e-12
        )
    shapes = {name: [second] if name in ("gain", "bias") else shape for name in names}
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes.get(name, shape))
    graph = helper.make_graph([node], "kernel", [info(name) for name in names], [info("y")])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    generator = numpy.random.default_rng(1)
    feeds = {name: generator.random(shapes[name], numpy.float32) - numpy.float32(0.5) for name in names}
    # Bound once, so that no input is copied and the output is preallocated.
    binding, out = session.io_binding(), numpy.empty(shape, numpy.float32)
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("y", "cpu", 0, numpy.float32, out.shape, out.ctypes.data)

    def call(keep=(feeds, out)):
        session.run_with_iobinding(binding)

    return call


def worker(who, kernel, passes, shape, threads):
    sizes = [int(size) for size in shape.split("x")]
    threads = int(threads)
    if who == "ort":
        return turns.serve_best(ort_call(kernel, *sizes, threads), threads)
    import torch

    torch.set_num_threads(threads)
    if kernel == "gemm":
        return turns.serve_best(torch_product(passes, *sizes), threads)
    with torch.set_grad_enabled(passes == "backward"):
        turns.serve_best(torch_call(kernel, passes, *sizes), threads)


def process(name, *work):
    """A worker; the last word of `work` is the number of threads."""
    environment = {**turns.KEEP_MEMORY, "OMP_NUM_THREADS": work[-1], "MKL_NUM_THREADS": work[-1]}
    return turns.Process(name, [sys.executable, __file__, "--worker", *work], environment)


def product(options, shape):
    """Table row of a product with the weight packed within the call, and before it."""
    m, n, k = shape.split("x")
    threads = str(options.threads)
    sizes = ["--m", m, "--n", n, "--k", k, "--precision", options.precision]
    contenders = [
        turns.albert(options.albert, ["gemm", *sizes, "--threads", threads]),
        process("torch", "torch", "gemm", options.precision, shape, threads),
    ]
    ours, theirs = zip(*(results for results, _ in turns.rounds(contenders, options.rounds)))
    own = [turns.flatten(records[0]) for records in ours]
    packed = [next(p for p in records[0]["peers"] if p["name"] == "prepacked")["seconds"]["median"] for records in ours]
    median = turns.statistics.median
    share = lambda seconds, took: 100 * took["flops"] / seconds / 1e9 / took["peak_gflops"]
    within = median(share(took["seconds"], took) for took in own)
    before = median(share(seconds, took) for seconds, took in zip(packed, own))
    wall, processor = turns.compare(own, theirs)
    micros = 1e6 * median(took["seconds"] for took in own)
    print(
        f"| gemm {options.precision} {shape} | {micros:.1f} | {within:.1f} % of peak, packed before {before:.1f} % "
        f"| torch {wall:.2f} ({processor:.2f}) |",
        flush=True,
    )


def case(options, kernel, shape):
    """Table rows for all passes of a kernel at one shape."""
    first, second = shape.split("x")
    sizes = ["--batch", first, "--seq", second] if kernel == "attention" else ["--m", first, "--n", second]
    threads = str(options.threads)
    contenders = [turns.albert(options.albert, [kernel, *sizes, "--threads", threads])]
    others = [("torch", "forward"), ("ort", "forward"), ("torch", "backward")]
    for who, passes in others if kernel != "vocabulary" else others[::2]:
        contenders.append(process(f"{who} {passes}", who, kernel, passes, shape, threads))
    ours, *theirs = zip(*(results for results, _ in turns.rounds(contenders, options.rounds)))
    # The records of a round: forward, fused, backward.
    for passes in ("forward", "backward"):
        own = [turns.flatten(next(r for r in records if r["case"].startswith(passes))) for records in ours]
        median = lambda of: turns.statistics.median(map(of, own))
        if own[0]["copy_gbs"] is None:
            share = median(lambda took: 100 * took["flops"] / took["seconds"] / 1e9 / took["peak_gflops"])
            processor = median(lambda took: 100 * took["flops"] / took["processor_seconds"] / 1e9 / took["peak_gflops"])
            reached = f"{share:.1f} ({processor:.1f}) % of peak"
        else:
            share = median(lambda took: 100 * took["bytes"] / took["seconds"] / 1e9 / took["copy_gbs"])
            reached = f"{share:.1f} % of a copy"
        ratios = []
        for contender, result in zip(contenders[1:], theirs):
            who, its = contender.name.split()
            if its == passes:
                wall, processor = turns.compare(own, result)
                ratios.append(f"{who} {wall:.2f} ({processor:.2f})")
        micros = 1e6 * median(lambda took: took["seconds"])
        print(f"| {kernel} {passes} {shape} | {micros:.1f} | {reached} | {', '.join(ratios)} |", flush=True)


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--albert", default="target/release/albert", help="the program")
    parser.add_argument("--only", nargs="+", default=["attention", "gelu", "layernorm", "softmax", "vocabulary"])
    parser.add_argument("--shapes", nargs="+", help="MxNxK for gemm, BATCHxLENGTH for attention, ROWSxCOLUMNS (of logits for the vocabulary) for the others")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32", help="of gemm")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(f"{options.threads} thread(s), {options.rounds} rounds; in parentheses by CPU time")
    print("| kernel | us | of the limit | time over ours |\n|---|---|---|---|")
    for kernel in options.only:
        shapes = {"attention": ATTENTION, "gemm": PRODUCTS, "vocabulary": VOCABULARY}.get(kernel, ROWS)
        for shape in options.shapes or shapes:
            product(options, shape) if kernel == "gemm" else case(options, kernel, shape)


if __name__ == "__main__":
    main()
