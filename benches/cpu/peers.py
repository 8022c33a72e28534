"""Forward passes and training steps of ALBERT: `albert bench step` against PyTorch, ONNX Runtime and OpenVINO, interleaved.

    python -m pip install -r benches/cpu/requirements.txt
    python benches/cpu/peers.py --set forward                every cell on 1 and 2 threads; also:
    python benches/cpu/peers.py --set train|lengths|int8|bf16|bf16-train
    python benches/cpu/peers.py --set forward --cells base:8x128 runs/model:8x128 --threads 1 --peers ort --seconds 300

Nothing here is needed to build or test the project. Exported and quantized models are kept in OUT/models, and each round is stored
in OUT as soon as it is measured, so the same command continues after an interruption or after --seconds, and only prints complete
cells. If the program, the versions of the peers, the CPU, the model or the contenders change, a cell is measured anew in another
file.

Contenders are words joined by `+`:

    torch     Hugging Face's AlbertModel, or AlbertForPreTraining, as shipped: eager, scaled_dot_product_attention
    gelu      with hidden_act gelu_pytorch_tanh: the same function as one fused operation
    arena     glibc keeps its memory, so that no temporary is faulted in again
    masked    the MLM head at masked positions only
    compile   torch.compile, with constants folded in a forward pass; the whole loss in training (needs a C++ compiler; the peak RSS
              includes the compilation)
    ort       ONNX Runtime on the exported AlbertModel, all graph optimizations; `ort+gelu` exports the fused GELU
    fused     the graph goes through onnxruntime.transformers.optimizer first: attention as one operation
    int8      its dynamic quantization, one scale per weight; `channel`: one per output channel
    openvino  OpenVINO on the same exported graph as `ort`, in f32 unless another word follows
    bf16      torch: weights and activations in a forward pass, autocast in training; openvino: its precision hint
    albert    a variant of ours: `albert+dropout` with 0.1, `albert+f32`, `albert+full` (below)

A training step is zero_grad, forward with both losses, backward, fused AdamW, without dropout. FLOPs are counted the same for all:
products once, the MLM head at masked positions, no recomputation.

A cell is MODEL:BATCHxLENGTH, MODEL:length,length,.. or MODEL:realN: N sequences whose lengths are spread evenly over those of
--lengths-from. MODEL is a preset (base, large, tiny, quickstart, ..), a model folder or a config.json, as `albert info` reads it.
Peers pad to the longest and get a mask; tokens are those of the text. `albert+full` is ours on about as many tokens in sequences
that all have the length of the longest. Shorter sequences have fewer attention FLOPs per token, so both tokens per second and the
share of the peak are printed.

Each table states the load of other processes and the bandwidth of a copy, medians over the rounds. A cell is marked `*` as disturbed
if other processes used more than 5 % of the cores, the copy was 20 % slower than the fastest of the run, or half the interquartile
range of our times exceeds 10 %.

Forward passes in int8 or bf16 also print the deviation of the last hidden state from float64, with the same ids and weights for all:
those of the model folder, or random ones.
"""

import argparse
import hashlib
import importlib.metadata
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import turns  # noqa: E402

TORCH = ["torch", "torch+gelu", "torch+arena", "torch+gelu+arena"]
TRAINED = ["torch+gelu+arena", "torch+gelu+arena+compile", "torch+gelu+arena+masked", "torch+gelu+arena+masked+compile"]
SETS = {
    "forward": {
        "mode": "forward",
        "cells": ["base:1x128", "base:8x128", "base:32x128", "base:1x512", "base:8x512", "large:8x128"],
        "peers": [*TORCH, "ort", "ort+fused"],
    },
    "train": {
        "mode": "train",
        "cells": ["base:8x128", "base:16x128", "base:32x128", "base:4x512", "large:8x128"],
        "peers": ["torch", *TRAINED, "albert+dropout"],
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
# Words that make a contender one of another kind in the summary.
KINDS = ["masked", "compile", "int8", "bf16", "f32", "dropout", "full"]
# Limits beyond which a cell counts as disturbed: load over cores, copy over the fastest, spread of our times.
LOAD, COPY, SPREAD = 0.05, 0.8, 0.1


def digest(*things):
    return hashlib.sha256(json.dumps(things).encode()).hexdigest()[:8]


def named(*words):
    """File name of `words`."""
    return re.sub(r"[^\w.+-]+", "-", "-".join(map(str, words)))[-80:].strip("-")


def model_of(options, name):
    """A preset, model folder or config.json: `config` is the arguments of Hugging Face's AlbertConfig, `folder` has the exported
    graphs, and `identity` changes with the configuration, the weights and the versions of the peers."""
    done = subprocess.run([options.albert, "info", name, "--json"], stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"--cells {name}: albert info cannot read this model")
    config = json.loads(done.stdout)["config"]
    if config.pop("sharing") != "all":
        sys.exit(f"--cells {name}: peers share one layer; expected a model with sharing `all`")
    config["hidden_act"] = {"gelu_tanh": "gelu_new", "gelu_erf": "gelu"}.get(config["hidden_act"], config["hidden_act"])
    config["hidden_dropout_prob"] = config["attention_probs_dropout_prob"] = 0.0
    files = [file.stat() for file in os.scandir(name) if file.is_file()] if os.path.isdir(name) else []
    versions = {package.name: package.version for package in importlib.metadata.distributions()}
    peers = ["numpy", "onnx", "onnxruntime", "openvino", "torch", "transformers"]
    identity = [config, sorted((file.st_size, file.st_mtime_ns) for file in files), [versions.get(peer) for peer in peers]]
    folder = os.path.join(options.out, "models", named(name, digest(identity)))
    os.makedirs(folder, exist_ok=True)
    return {"name": name, "config": config, "identity": identity, "folder": folder}


def weights_of(model):
    """Hugging Face folder with the weights: the model's own, or random ones."""
    if os.path.isdir(model["name"]):
        return model["name"]
    path = os.path.join(model["folder"], "weights")
    if not os.path.exists(path):
        import torch
        from transformers import AlbertConfig, AlbertModel

        torch.manual_seed(1)
        AlbertModel(AlbertConfig(**model["config"])).save_pretrained(path + ".part")
        os.replace(path + ".part", path)
    return path


def inputs(vocabulary, lengths):
    """Random ids and their mask, padded to the longest."""
    import numpy

    generator, longest = numpy.random.default_rng(1), max(lengths)
    ids = generator.integers(5, vocabulary, (len(lengths), longest))
    mask = (numpy.arange(longest) < numpy.array(lengths)[:, None]).astype(numpy.int64)
    return {"ids": ids, "mask": mask}


def activation(config, parts):
    """Name of the activation: the fused form of the tanh GELU with `gelu`."""
    act = config["hidden_act"]
    return "gelu_pytorch_tanh" if "gelu" in parts and act == "gelu_new" else act


def torch_worker(parts, mode, config, lengths, threads):
    import torch
    from transformers import AlbertConfig, AlbertForPreTraining, AlbertModel

    torch.set_num_threads(threads)
    turns.forget_peak()
    torch.manual_seed(1)
    ids, mask = map(torch.from_numpy, inputs(config["vocab_size"], lengths).values())
    # Sequences of one length need no mask; with one, PyTorch takes another path.
    mask = None if min(lengths) == max(lengths) else mask
    config = AlbertConfig(**{**config, "hidden_act": activation(config, parts)})
    compiled = torch.compile if "compile" in parts else lambda function: function
    if mode == "forward":
        import torch._inductor.config

        torch._inductor.config.freezing = True
        model = AlbertModel(config).eval()
        model = compiled(model.bfloat16() if "bf16" in parts else model)

        def call():
            with torch.inference_mode():
                model(input_ids=ids, attention_mask=mask)

        return turns.serve_best(call, threads)
    model = AlbertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01, fused=True)
    order = torch.arange(len(lengths)) % 2
    # 15 % of each sequence is masked, spread evenly.
    labels = torch.full_like(ids, -100)
    for row, length in enumerate(lengths):
        count = max(1, round(0.15 * length))
        masked = torch.arange(count) * length // count
        labels[row, masked] = ids[row, masked]
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

    loss = compiled(loss)

    def call():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in parts):
            total = loss()
        total.backward()
        optimizer.step()

    turns.serve_best(call, threads)


def graph_of(model, parts):
    """File of the graph of a contender."""
    words = [word for word in ("gelu", "fused", "int8", "channel") if word in parts]
    return os.path.join(model["folder"], "-".join(["model", *words]) + ".onnx")


def export(model, parts):
    """Exports AlbertModel as ONNX, dynamic in batch and length; fuses and quantizes it as `parts` say. Every step is checked, and
    its file kept."""
    path = graph_of(model, parts)
    part = path.replace(".onnx", ".part.onnx")
    if os.path.exists(path):
        return path
    if "int8" in parts:
        quantize(export(model, [word for word in parts if word not in ("int8", "channel")]), part, "channel" in parts)
    elif "fused" in parts:
        from onnxruntime.transformers.optimizer import optimize_model

        sizes = {"num_heads": model["config"]["num_attention_heads"], "hidden_size": model["config"]["hidden_size"]}
        source = export(model, [word for word in parts if word != "fused"])
        optimize_model(source, model_type="bert", opt_level=0, **sizes).save_model_to_file(part)
        agree(plain(model, parts), part, model["config"]["vocab_size"])
    else:
        import torch

        ids, mask = torch.randint(5, model["config"]["vocab_size"], (2, 16)), torch.ones(2, 16, dtype=torch.long)
        axes = {name: {0: "batch", 1: "length"} for name in ("ids", "mask", "hidden")}
        torch.onnx.export(
            plain(model, parts), (ids, mask), part, input_names=["ids", "mask"], output_names=["hidden", "pooled"],
            dynamic_axes={**axes, "pooled": {0: "batch"}}, opset_version=20 if "gelu" in parts else 17, dynamo=False,
        )
        unshare(part)
        agree(plain(model, parts), part, model["config"]["vocab_size"])
    os.replace(part, path)
    return path


def plain(model, parts):
    """AlbertModel with positional arguments and results."""
    import torch
    from transformers import AlbertModel

    act = activation(model["config"], parts)
    theirs = AlbertModel.from_pretrained(weights_of(model), attn_implementation="eager", hidden_act=act).eval()

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = theirs

        def forward(self, ids, mask):
            out = self.model(input_ids=ids, attention_mask=mask)
            return out.last_hidden_state, out.pooler_output

    return Plain()


def agree(model, path, vocabulary):
    """Checks that the exported graph computes the same as PyTorch, for another batch and with padding."""
    import onnxruntime
    import torch

    ids, mask = torch.randint(5, vocabulary, (3, 40)), torch.ones(3, 40, dtype=torch.long)
    mask[1, 20:] = 0
    with torch.inference_mode():
        hidden, _ = model(ids, mask)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    theirs, _ = session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})
    error = abs(theirs - hidden.numpy())[mask.bool().numpy()].max()
    if error > 1e-3:
        sys.exit(f"{path}: the exported model differs from PyTorch by {error}")


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


def quantize(path, quantized, per_channel):
    """Quantizes every product with a weight, and checks it."""
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


def ort_worker(path, batch, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    turns.serve_best(lambda: session.run(None, batch), threads)


def openvino_model(path, parts, threads):
    """The graph, compiled."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = "bf16" if "bf16" in parts else "f32"
    core = openvino.Core()
    return core.compile_model(core.read_model(path), "CPU", settings)


def openvino_worker(path, parts, batch, threads):
    request = openvino_model(path, parts, threads).create_infer_request()
    turns.serve_best(lambda: request.infer(batch), threads)


def worker(name, mode, config, lengths, threads, graph):
    parts = name.split("+")
    if parts[0] == "torch":
        return torch_worker(parts, mode, config, lengths, threads)
    turns.forget_peak()
    batch = inputs(config["vocab_size"], lengths)
    return ort_worker(graph, batch, threads) if parts[0] == "ort" else openvino_worker(graph, parts, batch, threads)


def last_hidden(path):
    """Last hidden state of every line that `albert forward` wrote to `path`."""
    from safetensors.numpy import load_file

    lines = {}
    for name, values in load_file(path).items():
        line, kind, *layer = name.split(".")
        if kind == "hidden":
            lines.setdefault(int(line), {})[int(layer[0])] = values
    return [hidden[max(hidden)].reshape(-1, hidden[max(hidden)].shape[-1]) for _, hidden in sorted(lines.items())]


def errors(albert, dtype, names, model, lengths):
    """Deviation of the last hidden state from float64, as (who, largest, root mean square, that of the hidden state): same
    weights, same ids; peers get the timed batch, because scales of int8 depend on it."""
    import numpy
    import onnxruntime
    import torch
    from transformers import AlbertModel

    batch, source = inputs(model["config"]["vocab_size"], lengths), weights_of(model)
    ids, mask = map(torch.from_numpy, batch.values())
    with torch.inference_mode():
        exact = AlbertModel.from_pretrained(source).double().eval()
        expected = exact(input_ids=ids, attention_mask=mask).last_hidden_state.numpy()
    of_text = lambda hidden: numpy.concatenate([hidden[row][:length] for row, length in enumerate(lengths)]).astype("f8")
    expected, got = of_text(expected), {}
    lines, out = (os.path.join(model["folder"], name) for name in ("ids.jsonl", "hidden.safetensors"))
    with open(lines, "w") as file:
        for row, length in zip(ids.tolist(), lengths):
            file.write(json.dumps({"input_ids": row[:length]}) + "\n")
    for precision in (dtype, "f32"):
        command = [albert, "forward", "--model", source, "--ids", lines, "--output", out, "--precision", precision]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        got[f"albert {precision}"] = of_text(last_hidden(out))
    for name in names:
        parts = name.split("+")
        if parts[0] == "ort":
            session = onnxruntime.InferenceSession(graph_of(model, parts), providers=["CPUExecutionProvider"])
            got[name] = of_text(session.run(["hidden"], batch)[0])
        elif parts[0] == "openvino":
            peer = openvino_model(graph_of(model, parts), parts, 1)
            got[name] = of_text(peer(batch)[peer.output("hidden")])
        elif parts[0] == "torch" and "compile" not in parts:
            with torch.inference_mode():
                peer = AlbertModel.from_pretrained(source, hidden_act=activation(model["config"], parts)).eval()
                peer = peer.bfloat16() if "bf16" in parts else peer.float()
                got[name] = of_text(peer(input_ids=ids, attention_mask=mask).last_hidden_state.float().numpy())
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


def ours(options, model, lengths, parts, threads):
    """`albert bench step`, or a variant of it."""
    if "full" in parts:
        longest = max(lengths)
        lengths = [longest] * max(1, round(sum(lengths) / longest))
    dtype = "f32" if "f32" in parts else options.dtype
    command = ["step", "--config", model["name"], "--lengths", ",".join(map(str, lengths)), "--mode", options.mode]
    command += ["--threads", str(threads), "--precision", dtype]
    if options.mode == "train":
        command += ["--dropout", "0.1" if "dropout" in parts else "0"]
    process = turns.albert(options.albert, command)
    process.name = "+".join(parts)
    return process


def contenders_of(options, model, lengths, threads):
    """Processes of all contenders."""
    processes = [ours(options, model, lengths, ["albert"], threads)]
    for name in options.peers:
        parts = name.split("+")
        if parts[0] == "albert":
            processes.append(ours(options, model, lengths, parts, threads))
            continue
        graph = graph_of(model, parts)
        if parts[0] != "torch" and not os.path.exists(graph):
            # In another process, so that no contender counts the memory.
            in_own_process("export", model, parts)
        work = [name, options.mode, model["config"], lengths, threads, graph]
        limits = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        environment = {**limits, **(turns.KEEP_MEMORY if "arena" in parts else {})}
        processes.append(turns.Process(name, [sys.executable, __file__, "--worker", json.dumps(work)], environment))
    return processes


def measure(options, model, lengths, threads, about):
    """Cell with its stored rounds and those that --seconds leaves time for."""
    path = os.path.join(options.out, named(about["cell"], digest(about)) + ".json")
    cell = {"about": about, "rounds": []}
    if os.path.exists(path):
        with open(path) as file:
            cell = json.load(file)
    missing = options.rounds - len(cell["rounds"])
    if missing > 0 and time.monotonic() < options.deadline:
        names = ["albert", *options.peers]
        for results, machine in turns.rounds(contenders_of(options, model, lengths, threads), missing):
            results = [turns.flatten(result[0]) if isinstance(result, list) else result for result in results]
            cell["rounds"].append({"machine": machine, "took": dict(zip(names, results))})
            store(path, cell)
            if time.monotonic() + machine["seconds"] > options.deadline:
                break
    is_complete = len(cell["rounds"]) >= options.rounds
    if is_complete and "errors" not in cell and options.mode == "forward" and options.dtype != "f32":
        cell["errors"] = in_own_process("errors", options.albert, options.dtype, options.peers, model, lengths)
        store(path, cell)
    return cell


def store(path, cell):
    with open(path + ".part", "w") as file:
        json.dump(cell, file)
    os.replace(path + ".part", path)


def half_range(values):
    """Half the interquartile range over the median."""
    if len(values) < 2:
        return 0.0
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return (third - first) / 2 / median


def rows_of(rounds):
    """Table row of each contender. The ratio is our tokens per second over theirs, formed within a round; for the same work that is
    their time over ours."""
    own, rows = [took["albert"] for took in rounds], []
    median = lambda values: statistics.median(list(values))
    for name in rounds[0]:
        result = [took[name] for took in rounds]
        # `albert+full` has its own work, all others that of `albert`.
        work = result if "tokens" in result[0] else own
        flops, tokens, row = work[0]["flops"], work[0]["tokens"], {"who": name}
        for key in ("seconds", "processor_seconds"):
            pairs = list(zip(result, own))
            share = median(flops / a[key] / 1e9 / b["peak_gflops"] for a, b in pairs)
            ratio = median((b["tokens"] / b[key]) / (tokens / a[key]) for a, b in pairs)
            row[key] = {"median": median(a[key] for a in result), "share": share, "ratio": ratio}
        row["flops"], row["tokens"], row["spread"] = flops, tokens, half_range([a["seconds"] for a in result])
        row["rss"] = max(a["peak_rss_bytes"] for a in result)
        rows.append(row)
    return rows


def state_of(rounds, rows, fastest):
    """State of the machine during a cell as a sentence, and the signs that something disturbed it."""
    load, copy = (statistics.median(took["machine"][key] for took in rounds) for key in ("load", "copy_gbs"))
    cores, spread = len(os.sched_getaffinity(0)), rows[0]["spread"]
    signs = []
    if load > LOAD * cores:
        signs.append(f"other processes used {load:.2f} of {cores} cores")
    if copy < COPY * fastest:
        signs.append(f"the copy reached {copy:.1f} of {fastest:.1f} GB/s")
    if spread > SPREAD:
        signs.append(f"our times vary by ±{100 * spread:.0f} %")
    return f"load of other processes {load:.2f} cores, copy {copy:.1f} GB/s", signs


def table(title, rows, state, signs):
    own = rows[0]
    print(f"\n{title}: {own['flops'] / 1e9:.1f} GFLOP, {own['tokens']} tokens; {state}; in parentheses by CPU time")
    if signs:
        print(f"* disturbed: {', '.join(signs)}; measure again on an idle machine")
    print("| who | ms | tokens/s | GFLOP/s | % of peak | our tokens/s over theirs | peak RSS MiB | over ours |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        wall, processor, seconds = row["seconds"], row["processor_seconds"], row["seconds"]["median"]
        print(
            f"| {row['who']} | {1e3 * seconds:.1f} ±{100 * row['spread']:.1f} % | {row['tokens'] / seconds:.0f} "
            f"| {row['flops'] / seconds / 1e9:.1f} | {100 * wall['share']:.1f} ({100 * processor['share']:.1f}) "
            f"| {wall['ratio']:.3f} ({processor['ratio']:.3f}) | {row['rss'] / 2**20:.0f} | {row['rss'] / own['rss']:.2f} |"
        )
    sys.stdout.flush()


def kind_of(name):
    first, *parts = name.split("+")
    return "+".join([first, *(part for part in KINDS if part in parts)])


def summary(everything):
    """One line per cell: ours over the fastest of each kind, and the geometric means."""
    kinds = list(dict.fromkeys(kind_of(row["who"]) for _, rows in everything for row in rows[1:]))
    print("\nOur tokens/s over the fastest of each kind (by CPU time); * marks disturbed cells")
    print(f"| cell | % of peak | {' | '.join(kinds)} | our RSS over their smallest |\n|{'---|' * (len(kinds) + 3)}")
    ratios = {kind: [] for kind in kinds}
    for title, rows in everything:
        peak = f"{100 * rows[0]['seconds']['share']:.1f} ({100 * rows[0]['processor_seconds']['share']:.1f})"
        cells = []
        for kind in kinds:
            found = [row for row in rows[1:] if kind_of(row["who"]) == kind]
            if found:
                both = [min(row[key]["ratio"] for row in found) for key in ("seconds", "processor_seconds")]
                ratios[kind].append(both)
            cells.append("{:.3f} ({:.3f})".format(*both) if found else "-")
        theirs = [row["rss"] for row in rows if not row["who"].startswith("albert")]
        memory = f"{rows[0]['rss'] / min(theirs):.2f}" if theirs else "-"
        print(f"| {title} | {peak} | {' | '.join(cells)} | {memory} |")
    for what, of in [("geometric mean", statistics.geometric_mean), ("smallest", min)]:
        cells = ["{:.3f} ({:.3f})".format(*map(of, zip(*ratios[kind]))) for kind in kinds]
        print(f"| {what} | | {' | '.join(cells)} | |")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--albert", default="target/release/albert", help="the program")
    parser.add_argument("--set", choices=SETS, default="forward", help="default mode, cells, dtype and peers")
    parser.add_argument("--mode", choices=["forward", "train"])
    parser.add_argument("--cells", nargs="+", help="MODEL:BATCHxLENGTH, MODEL:length,length,.. or MODEL:realN")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of a cell, stored ones included")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no round that would end after so many seconds")
    parser.add_argument("--dtype", help="dtype of ours: f32, bf16 or int8")
    parser.add_argument("--peers", nargs="*")
    default = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lengths.txt")
    parser.add_argument("--lengths-from", default=default, help="file with one length per line, for MODEL:realN")
    parser.add_argument("--out", default="runs/peers", help="folder of rounds and exported models [default: runs/peers]")
    options = parser.parse_args()
    for name, value in {"dtype": "f32", **SETS[options.set]}.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.deadline = time.monotonic() + options.seconds
    return options


def machine_and_program(albert):
    """Name of the CPU, and a digest of the program."""
    with open("/proc/cpuinfo") as file:
        processor = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "")
    with open(albert, "rb") as file:
        return {"processor": processor, "program": hashlib.file_digest(file, "sha256").hexdigest()}


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(*json.loads(sys.argv[2]))
    if sys.argv[1:2] == ["--call"]:
        functions = {"export": export, "errors": errors}
        return print(json.dumps(functions[sys.argv[2]](*json.loads(sys.argv[3]))))
    options, everything, fastest, is_complete = arguments(), [], 0.0, True
    machine = machine_and_program(options.albert)
    for text in options.cells:
        name, _, shape = text.rpartition(":")
        model, lengths = model_of(options, name), lengths_of(shape, options.lengths_from)
        most = model["config"]["max_position_embeddings"]
        if max(lengths) > most:
            sys.exit(f"--cells {text}: sequence of {max(lengths)} tokens; `{name}` has {most} positions")
        for threads in options.threads:
            title = f"{options.mode} {text}, {options.dtype}, {threads} thread{'s' if threads > 1 else ''}"
            about = {"cell": title, "lengths": lengths, "peers": options.peers, "model": model["identity"], **machine}
            cell = measure(options, model, lengths, threads, about)
            rounds = cell["rounds"]
            is_complete &= len(rounds) >= options.rounds
            if not rounds:
                continue
            rows = rows_of([took["took"] for took in rounds])
            fastest = max(fastest, *(took["machine"]["copy_gbs"] for took in rounds))
            table(f"{title}, {len(rounds)} rounds", rows, *state_of(rounds, rows, fastest))
            if "errors" in cell:
                error_table(cell["errors"])
            everything.append((title, rows, rounds))
    if everything:
        is_disturbed = lambda rounds, rows: bool(state_of(rounds, rows, fastest)[1])
        summary([(title + " *" * is_disturbed(rounds, rows), rows) for title, rows, rounds in everything])
    if not is_complete:
        print(f"\nstopped after --seconds {options.seconds:g}; the same command continues")


if __name__ == "__main__":
    main()
