"""Forward passes and training steps of ALBERT: `albert bench step` against PyTorch, ONNX Runtime and OpenVINO, interleaved.

    python -m pip install -r benches/cpu/requirements.txt
    python benches/cpu/peers.py --set forward --out runs/peers         every cell on 1 and 2 threads; so too for the others:
    python benches/cpu/peers.py --set train|lengths|int8|bf16|bf16-train
    python benches/cpu/peers.py --set forward --cells base:8x128 --threads 1 --peers ort

Nothing here is needed to build or test the project. With --out each cell is stored as a file once it is measured and not measured
again for the same contenders, so an interrupted run can be continued. Contenders are words joined by `+`:

    torch     Hugging Face's AlbertModel, or AlbertForPreTraining, as shipped: eager, scaled_dot_product_attention
    gelu      with hidden_act gelu_pytorch_tanh: the same function as one fused operation
    arena     glibc keeps its memory, so that no temporary is faulted in again
    masked    the MLM head at masked positions only
    ort       ONNX Runtime on the exported AlbertModel, all graph optimizations; `ort+gelu` exports the fused GELU
    fused     the graph goes through onnxruntime.transformers.optimizer first: attention as one operation
    int8      its dynamic quantization, one scale per weight; `channel`: one per output channel
    openvino  OpenVINO on the same exported graph as `ort`, in f32 unless another word follows
    bf16      torch: weights and activations in a forward pass, autocast in training; openvino: its precision hint
    compile   torch.compile, with constants folded in a forward pass (needs a C++ compiler)
    albert    a variant of ours: `albert+dropout` with 0.1, `albert+f32`, `albert+full` (below)

A training step is zero_grad, forward with both losses, backward, fused AdamW; dropout 0, as in the v2 configurations. FLOPs
are counted the same for all: products once, the MLM head at masked positions, no recomputation.

A cell is SIZE:BATCHxLENGTH, SIZE:length,length,.. or SIZE:realN: N sequences whose lengths are spread evenly over those of
--lengths-from. Peers pad to the longest and get a mask; tokens are those of the text. `albert+full` is
ours on about as many tokens in sequences that all have the length of the longest. Shorter sequences have fewer attention FLOPs
per token, so both tokens per second and the share of the peak are printed.

Forward passes in int8 or bf16 also print the deviation of the last hidden state from float64: the same weights (--weights, a
Hugging Face folder; random by default) and the same ids for all.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import turns  # noqa: E402

SIZES = {
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
TORCH = ["torch", "torch+gelu", "torch+arena", "torch+gelu+arena"]
SETS = {
    "forward": {
        "mode": "forward",
        "cells": ["base:1x128", "base:8x128", "base:32x128", "base:1x512", "base:8x512", "large:8x128"],
        "peers": [*TORCH, "ort", "ort+fused"],
    },
    "train": {
        "mode": "train",
        "cells": ["base:8x128", "base:16x128", "base:32x128", "base:4x512", "large:8x128"],
        "peers": [*TORCH, "torch+gelu+arena+masked", "albert+dropout"],
    },
    "lengths": {"mode": "forward", "cells": ["base:real16"], "peers": ["albert+full", "torch+gelu+arena", "ort"]},
    "int8": {
        "mode": "forward",
        "cells": ["base:1x128", "base:8x128"],
        "peers": ["ort+int8", "ort+int8+channel", "ort+fused+int8", "openvino+int8", "ort", "albert+f32"],
        "dtype": "int8",
    },
    "bf16": {
        "mode": "forward",
        "cells": ["base:1x128", "base:8x128"],
        "peers": ["torch+gelu+arena+bf16", "torch+gelu+arena+bf16+compile", "openvino+bf16", "openvino", "albert+f32"],
        "dtype": "bf16",
    },
    "bf16-train": {
        "mode": "train",
        "cells": ["base:8x128"],
        "peers": ["torch+gelu+arena+bf16", "torch+gelu+arena+masked+bf16", "torch+gelu+arena", "albert+f32"],
        "dtype": "bf16",
    },
}


def configuration(size, fused_gelu):
    from transformers import AlbertConfig

    return AlbertConfig(
        vocab_size=30000,
        embedding_size=128,
        hidden_act="gelu_pytorch_tanh" if fused_gelu else "gelu_new",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **SIZES[size],
    )


def batch(lengths):
    """Random ids, padded to the longest; 15 % of each sequence is masked, spread evenly."""
    import torch

    generator = torch.Generator().manual_seed(1)
    longest = max(lengths)
    ids = torch.randint(5, 30000, (len(lengths), longest), generator=generator)
    mask = torch.zeros(len(lengths), longest, dtype=torch.long)
    labels = torch.full((len(lengths), longest), -100)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
        count = max(1, round(0.15 * length))
        for i in range(count):
            labels[row, i * length // count] = int(ids[row, i * length // count])
    # Sequences of one length need no mask; with one, PyTorch takes another path.
    return ids, labels, None if min(lengths) == longest else mask


def torch_worker(parts, mode, size, lengths, threads):
    import torch
    from transformers import AlbertForPreTraining, AlbertModel

    torch.set_num_threads(threads)
    turns.forget_peak()
    torch.manual_seed(1)
    config = configuration(size, "gelu" in parts)
    ids, labels, mask = batch(lengths)
    if mode == "forward":
        model = AlbertModel(config).eval()
        if "bf16" in parts:
            model = model.bfloat16()
        if "compile" in parts:
            import torch._inductor.config

            torch._inductor.config.freezing = True
            model = torch.compile(model)

        def call():
            with torch.inference_mode():
                model(input_ids=ids, attention_mask=mask)

        return turns.serve_best(call, threads)
    model = AlbertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01, fused=True)
    order = torch.arange(len(lengths)) % 2
    places = (labels.view(-1) != -100).nonzero().view(-1)
    targets = labels.view(-1)[places]

    def loss():
        if "masked" not in parts:
            return model(input_ids=ids, attention_mask=mask, labels=labels, sentence_order_label=order).loss
        out = model.albert(input_ids=ids, attention_mask=mask)
        hidden = out.last_hidden_state.view(-1, config.hidden_size)[places]
        entropy = torch.nn.functional.cross_entropy
        words = entropy(model.predictions(hidden), targets)
        return words + entropy(model.sop_classifier(out.pooler_output), order)

    def call():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in parts):
            total = loss()
        total.backward()
        optimizer.step()

    turns.serve_best(call, threads)


def agree(model, path):
    """Checks that the exported graph computes the same as PyTorch, for another batch and with padding."""
    import onnxruntime
    import torch

    ids, mask = torch.randint(5, 30000, (3, 40)), torch.ones(3, 40, dtype=torch.long)
    mask[1, 20:] = 0
    with torch.inference_mode():
        hidden, _ = model(ids, mask)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    theirs, _ = session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})
    error = abs(theirs - hidden.numpy())[mask.bool().numpy()].max()
    if error > 1e-3:
        sys.exit(f"{path}: the exported model differs from PyTorch by {error}")


def model_folder(options_weights, size, folder):
    """Hugging Face folder with the weights: the given one, or random ones."""
    if options_weights:
        return options_weights
    path = os.path.join(folder, f"{size}-weights")
    if not os.path.exists(path):
        import torch
        from transformers import AlbertModel

        torch.manual_seed(1)
        AlbertModel(configuration(size, False)).save_pretrained(path)
    return path


def unshare(path):
    """Moves the weights of a layer to their uses. The exporter passes shared ones through Identity, and the quantization skips
    every product whose weight is not a constant."""
    import onnx

    model = onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    source = {}
    for node in model.graph.node:
        if node.op_type == "Identity" and source.get(node.input[0], node.input[0]) in constants:
            source[node.output[0]] = source.get(node.input[0], node.input[0])
    kept = [node for node in model.graph.node if node.output[0] not in source]
    for node in kept:
        node.input[:] = [source.get(name, name) for name in node.input]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    onnx.save(model, path)


def export(size, parts, weights, folder):
    """Exports AlbertModel as ONNX, dynamic in batch and length; returns the file."""
    import torch
    from transformers import AlbertModel

    fused_gelu = "gelu" in parts
    path = os.path.join(folder, f"{size}{'-gelu' if fused_gelu else ''}.onnx")
    source = model_folder(weights, size, folder)
    act = {"hidden_act": "gelu_pytorch_tanh"} if fused_gelu else {}
    model = AlbertModel.from_pretrained(source, attn_implementation="eager", **act).eval()

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            out = self.model(input_ids=ids, attention_mask=mask)
            return out.last_hidden_state, out.pooler_output

    plain = Plain()
    if not os.path.exists(path):
        ids, mask = torch.randint(5, 30000, (2, 16)), torch.ones(2, 16, dtype=torch.long)
        axes = {name: {0: "batch", 1: "length"} for name in ("ids", "mask", "hidden")}
        torch.onnx.export(
            plain, (ids, mask), path, input_names=["ids", "mask"], output_names=["hidden", "pooled"],
            dynamic_axes={**axes, "pooled": {0: "batch"}}, opset_version=20 if fused_gelu else 17, dynamo=False,
        )
        unshare(path)
        agree(plain, path)
    if "fused" in parts:
        from onnxruntime.transformers.optimizer import optimize_model

        fused, config = path.replace(".onnx", "-fused.onnx"), model.config
        if not os.path.exists(fused):
            optimize_model(
                path, model_type="bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size, opt_level=0
            ).save_model_to_file(fused)
            agree(plain, fused)
        path = fused
    return quantize(path, "channel" in parts) if "int8" in parts else path


def quantize(path, per_channel):
    """Quantizes every product with a weight, checks it, returns the file."""
    quantized = path.replace(".onnx", "-int8-channel.onnx" if per_channel else "-int8.onnx")
    if os.path.exists(quantized):
        return quantized
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Otherwise the types of the optimizer's own operations are unknown.
    types = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(path, quantized, weight_type=QuantType.QInt8, per_channel=per_channel, extra_options=types)
    graph = onnx.load(quantized).graph
    constants = {tensor.name for tensor in graph.initializer}
    left = [node.name for node in graph.node if node.op_type in ("MatMul", "Gemm") and node.input[1] in constants]
    if left:
        sys.exit(f"{quantized}: {len(left)} products with weights are not quantized, first {left[0]}")
    return quantized


def ort_worker(path, lengths, threads):
    import onnxruntime

    turns.forget_peak()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = numbers(lengths)
    turns.serve_best(lambda: session.run(None, inputs), threads)


def openvino_model(path, parts, threads):
    """The graph, compiled."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = "bf16" if "bf16" in parts else "f32"
    core = openvino.Core()
    return core.compile_model(core.read_model(path), "CPU", settings)


def openvino_worker(path, parts, lengths, threads):
    turns.forget_peak()
    model = openvino_model(path, parts, threads)
    request, inputs = model.create_infer_request(), numbers(lengths)
    turns.serve_best(lambda: request.infer(inputs), threads)


def numbers(lengths):
    """Random ids and their mask, padded to the longest."""
    import numpy

    generator, longest = numpy.random.default_rng(1), max(lengths)
    ids = generator.integers(5, 30000, (len(lengths), longest))
    mask = (numpy.arange(longest) < numpy.array(lengths)[:, None]).astype(numpy.int64)
    return {"ids": ids, "mask": mask}


def last_hidden(path):
    """Last hidden state of every line that `albert forward` wrote to `path`."""
    from safetensors.numpy import load_file

    lines = {}
    for name, values in load_file(path).items():
        line, kind, *layer = name.split(".")
        if kind == "hidden":
            lines.setdefault(int(line), {})[int(layer[0])] = values
    return [hidden[max(hidden)].reshape(-1, hidden[max(hidden)].shape[-1]) for _, hidden in sorted(lines.items())]


def errors(albert, size, dtype, names, lengths, weights, folder):
    """Deviation of the last hidden state from float64, as (who, largest, root mean square, that of the hidden state): same
    weights, same ids; the others get the timed batch, because scales of int8 depend on it."""
    import numpy
    import onnxruntime
    import torch
    from transformers import AlbertModel

    ids, _, mask = batch(lengths)
    mask = torch.ones_like(ids) if mask is None else mask
    source = model_folder(weights, size, folder)
    with torch.inference_mode():
        model = AlbertModel.from_pretrained(source).double().eval()
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state.numpy()
    of_text = lambda hidden: numpy.concatenate([hidden[row][:length] for row, length in enumerate(lengths)]).astype("f8")
    expected, got = of_text(expected), {}
    lines, out = os.path.join(folder, "ids.jsonl"), os.path.join(folder, "hidden.safetensors")
    with open(lines, "w") as file:
        for row, length in zip(ids.tolist(), lengths):
            file.write(json.dumps({"input_ids": row[:length]}) + "\n")
    for dtype in (dtype, "f32"):
        command = [albert, "forward", "--model", source, "--ids", lines, "--output", out, "--precision", dtype]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        got[f"albert {dtype}"] = of_text(last_hidden(out))
    for name in names:
        parts = name.split("+")
        inputs = {"ids": ids.numpy(), "mask": mask.numpy()}
        if parts[0] == "ort":
            session = onnxruntime.InferenceSession(export(size, parts, weights, folder), providers=["CPUExecutionProvider"])
            got[name] = of_text(session.run(["hidden"], inputs)[0])
        elif parts[0] == "openvino":
            model = openvino_model(export(size, parts, weights, folder), parts, 1)
            got[name] = of_text(model(inputs)[model.output("hidden")])
        elif parts[0] == "torch" and "compile" not in parts:
            with torch.inference_mode():
                act = {"hidden_act": "gelu_pytorch_tanh"} if "gelu" in parts else {}
                model = AlbertModel.from_pretrained(source, **act).eval()
                model = model.bfloat16() if "bf16" in parts else model.float()
                got[name] = of_text(model(input_ids=ids, attention_mask=mask).last_hidden_state.float().numpy())
    root = lambda values: math.sqrt((values**2).mean())
    return [
        {"who": who, "largest": float(abs(hidden - expected).max()), "rms": root(hidden - expected), "of": root(expected)}
        for who, hidden in got.items()
    ]


def error_table(rows):
    print("\nThe last hidden state against float64:")
    print("| who | largest error | root mean square | of the hidden state's own |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row['who']} | {row['largest']:.2e} | {row['rms']:.2e} | {100 * row['rms'] / row['of']:.4f} % |")


def worker(arguments):
    name, mode, size, lengths, threads, folder = arguments
    parts, lengths, threads = name.split("+"), [int(length) for length in lengths.split(",")], int(threads)
    # Exported in another process, so that its memory is not counted.
    if parts[0] == "ort":
        ort_worker(folder, lengths, threads)
    elif parts[0] == "openvino":
        openvino_worker(folder, parts, lengths, threads)
    else:
        torch_worker(parts, mode, size, lengths, threads)


def in_own_process(function, *arguments):
    """Runs `function` of this file in another process and returns its result."""
    command = [sys.executable, __file__, "--call", function, json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def lengths_of(shape, path):
    """Lengths of `8x128`, `31,32,500` or `real16`."""
    if shape.startswith("real"):
        with open(path) as file:
            known = sorted(int(line) for line in file if line.strip() and not line.startswith("#"))
        count = int(shape.removeprefix("real"))
        return [known[(2 * i + 1) * len(known) // (2 * count)] for i in range(count)]
    count, _, length = shape.partition("x")
    return [int(length)] * int(count) if length else [int(part) for part in shape.split(",")]


def ours(options, size, lengths, parts, threads):
    """`albert bench step`, or a variant of it."""
    if "full" in parts:
        longest = max(lengths)
        lengths = [longest] * max(1, round(sum(lengths) / longest))
    dtype = "f32" if "f32" in parts else options.dtype
    command = ["step", "--config", size, "--lengths", ",".join(map(str, lengths)), "--mode", options.mode]
    command += ["--threads", str(threads), "--precision", dtype, *(["--dropout", "0.1"] if "dropout" in parts else [])]
    process = turns.albert(options.albert, command)
    process.name = "+".join(parts)
    return process


def cell(options, size, lengths, threads, folder):
    """Rounds of all contenders by name, and the errors for int8."""
    listed, contenders = ",".join(map(str, lengths)), [ours(options, size, lengths, ["albert"], threads)]
    for name in options.peers:
        parts = name.split("+")
        if parts[0] == "albert":
            contenders.append(ours(options, size, lengths, parts, threads))
            continue
        last = folder
        if parts[0] in ("ort", "openvino"):
            last = in_own_process("export", size, parts, options.weights, folder)
        command = [sys.executable, __file__, "--worker", name, options.mode, size, listed, str(threads), last]
        limits = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        contenders.append(turns.Process(name, command, {**limits, **(turns.KEEP_MEMORY if "arena" in parts else {})}))
    results = turns.rounds(contenders, options.rounds)
    took = {}
    for contender, result in zip(contenders, results):
        is_ours = contender.name.startswith("albert")
        took[contender.name] = [turns.flatten(records[0]) for records in result] if is_ours else result
    measured = {"rounds": took}
    if options.mode == "forward" and options.dtype != "f32":
        arguments = [options.albert, size, options.dtype, options.peers, lengths, options.weights, folder]
        measured["errors"] = in_own_process("errors", *arguments)
    return measured


def rows_of(took):
    """Table row of each contender. The ratio is our tokens per second over theirs, formed within a round; for the same work that is
    their time over ours."""
    own, rows = took["albert"], []
    median = lambda values: statistics.median(list(values))
    for name, result in took.items():
        # `albert+full` has its own work, all others that of `albert`.
        work = result if "tokens" in result[0] else own
        flops, tokens, row = work[0]["flops"], work[0]["tokens"], {"who": name}
        for key in ("seconds", "processor_seconds"):
            rounds = list(zip(result, own))
            share = median(flops / a[key] / 1e9 / b["peak_gflops"] for a, b in rounds)
            ratio = median((b["tokens"] / b[key]) / (tokens / a[key]) for a, b in rounds)
            row[key] = {"median": median(a[key] for a in result), "share": share, "ratio": ratio}
        row["flops"], row["tokens"] = flops, tokens
        row["rss"] = max(a["peak_rss_bytes"] for a in result)
        rows.append(row)
    return rows


def table(title, rows):
    own = rows[0]
    print(f"\n{title}: {own['flops'] / 1e9:.1f} GFLOP, {own['tokens']} tokens; in parentheses by CPU time")
    print("| who | ms | tokens/s | GFLOP/s | % of peak | our tokens/s over theirs | peak RSS MiB | over ours |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        wall, processor, seconds = row["seconds"], row["processor_seconds"], row["seconds"]["median"]
        print(
            f"| {row['who']} | {1e3 * seconds:.1f} | {row['tokens'] / seconds:.0f} | {row['flops'] / seconds / 1e9:.1f} "
            f"| {100 * wall['share']:.1f} ({100 * processor['share']:.1f}) | {wall['ratio']:.3f} ({processor['ratio']:.3f}) "
            f"| {row['rss'] / 2**20:.0f} | {row['rss'] / own['rss']:.2f} |"
        )
    sys.stdout.flush()


GROUPS = {
    "best torch": lambda parts: parts[0] == "torch" and not {"masked", "bf16"} & set(parts),
    "best torch bf16": lambda parts: parts[0] == "torch" and "bf16" in parts and "masked" not in parts,
    "best torch, masked": lambda parts: "masked" in parts,
    "best ort": lambda parts: parts[0] == "ort" and "int8" not in parts,
    "best ort int8": lambda parts: parts[0] == "ort" and "int8" in parts,
    "openvino": lambda parts: parts == ["openvino"],
    "openvino bf16": lambda parts: parts == ["openvino", "bf16"],
    "openvino int8": lambda parts: parts == ["openvino", "int8"],
    "ours, dropout 0.1": lambda parts: "dropout" in parts,
    "ours, full length": lambda parts: "full" in parts,
    "ours, f32": lambda parts: parts == ["albert", "f32"],
}


def summary(everything):
    """One line per cell: ours over the fastest of each group, and the geometric means."""
    groups = [
        group for group, belongs in GROUPS.items()
        if any(belongs(row["who"].split("+")) for _, rows in everything for row in rows)
    ]
    print("\nOur tokens/s over the fastest of each group (by CPU time)")
    print(f"| cell | % of peak | {' | '.join(groups)} | our RSS over their smallest |\n|{'---|' * (len(groups) + 3)}")
    ratios = {group: [] for group in groups}
    for title, rows in everything:
        peak = f"{100 * rows[0]['seconds']['share']:.1f} ({100 * rows[0]['processor_seconds']['share']:.1f})"
        cells = []
        for group in groups:
            found = [row for row in rows[1:] if GROUPS[group](row["who"].split("+"))]
            if found:
                both = [min(row[key]["ratio"] for row in found) for key in ("seconds", "processor_seconds")]
                ratios[group].append(both)
            cells.append("{:.3f} ({:.3f})".format(*both) if found else "-")
        theirs = [row["rss"] for row in rows if not row["who"].startswith("albert")]
        memory = f"{rows[0]['rss'] / min(theirs):.2f}" if theirs else "-"
        print(f"| {title} | {peak} | {' | '.join(cells)} | {memory} |")
    for what, of in [("geometric mean", statistics.geometric_mean), ("smallest", min)]:
        cells = ["{:.3f} ({:.3f})".format(*map(of, zip(*ratios[group]))) for group in groups]
        print(f"| {what} | | {' | '.join(cells)} | |")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--albert", default="target/release/albert", help="the program")
    parser.add_argument("--set", choices=SETS, default="forward", help="default mode, cells, dtype and peers")
    parser.add_argument("--mode", choices=["forward", "train"])
    parser.add_argument("--cells", nargs="+", help="SIZE:BATCHxLENGTH, SIZE:length,length,.. or SIZE:realN")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", help="dtype of ours: f32, bf16 or int8")
    parser.add_argument("--peers", nargs="+")
    default = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lengths.txt")
    parser.add_argument("--lengths-from", default=default, help="file with one length per line, for SIZE:realN")
    parser.add_argument("--weights", help="Hugging Face folder for the errors of int8 and bf16")
    parser.add_argument("--out", help="folder of results, one file per cell; existing cells are not measured again")
    options = parser.parse_args()
    for name, value in {"dtype": "f32", **SETS[options.set]}.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def kept(path, names, lengths):
    """Result of an earlier run with the same contenders and lengths, if any."""
    if not path or not os.path.exists(path):
        return None
    with open(path) as file:
        measured = json.load(file)
    return measured if list(measured["rounds"]) == names and measured["lengths"] == lengths else None


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(sys.argv[2:])
    if sys.argv[1:2] == ["--call"]:
        return print(json.dumps({"export": export, "errors": errors}[sys.argv[2]](*json.loads(sys.argv[3]))))
    options, everything = arguments(), []
    with tempfile.TemporaryDirectory() as folder:
        for text in options.cells:
            size, shape = text.split(":")
            lengths = lengths_of(shape, options.lengths_from)
            for threads in options.threads:
                title = f"{options.mode} {text}, {options.dtype}, {threads} thread{'s' if threads > 1 else ''}"
                name = f"{options.mode}-{text.replace(':', '-')}-{options.dtype}-{threads}.json"
                path = options.out and os.path.join(options.out, name)
                measured = kept(path, ["albert", *options.peers], lengths)
                is_new = measured is None
                if is_new:
                    measured = {"lengths": lengths, **cell(options, size, lengths, threads, folder)}
                if path and is_new:
                    os.makedirs(options.out, exist_ok=True)
                    with open(path + ".part", "w") as file:
                        json.dump(measured, file)
                    os.replace(path + ".part", path)
                rows = rows_of(measured["rounds"])
                table(f"{title}, {len(measured['rounds']['albert'])} rounds", rows)
                if "errors" in measured:
                    error_table(measured["errors"])
                everything.append((title, rows))
    summary(everything)


if __name__ == "__main__":
    main()
