"""Forward passes and training steps of ALBERT: `albert bench step` against PyTorch and ONNX Runtime, in turns.

    python -m pip install -r benches/cpu/requirements.txt
    python benches/cpu/peers.py --albert target/release/albert --mode forward --cells base:8x128 --threads 1

Nothing here is needed to build or test the project. Contenders, joined to a name by `+`:

    torch     Hugging Face's AlbertModel, or AlbertForPreTraining, as shipped: eager, scaled_dot_product_attention
    gelu      with hidden_act gelu_pytorch_tanh: the same function as one fused operation
    arena     glibc is told to keep its memory, so that no temporary is faulted in again
    masked    the MLM head at masked positions alone
    ort       ONNX Runtime on the exported AlbertModel, all graph optimisations; `ort+gelu` exports the fused GELU
    int8      its dynamic quantisation

A training step is zero_grad, forward with both losses, backward, fused AdamW; dropout 0, as in the v2 configurations. FLOPs
are counted the same for all: products once, the MLM head at masked positions, nothing that is computed again.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import turns  # noqa: E402

SIZES = {
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
FORWARD = ["torch", "torch+gelu", "torch+arena", "torch+gelu+arena", "ort"]
TRAIN = ["torch", "torch+gelu", "torch+arena", "torch+gelu+arena", "torch+gelu+arena+masked"]


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
    # Without a mask nothing is hidden; with one, PyTorch takes another way.
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

        def call():
            with torch.inference_mode():
                model(input_ids=ids, attention_mask=mask)

        return turns.serve(call, threads)
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
        loss().backward()
        optimizer.step()

    turns.serve(call, threads)


def agree(model, path):
    """The exported graph computes what PyTorch does, for another batch and with padding."""
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
        sys.exit(f"{path}: the exported model differs from PyTorch's by {error}")


def export(size, fused_gelu, int8, folder):
    """AlbertModel as ONNX, dynamic in batch and length."""
    import torch
    from transformers import AlbertModel

    path = os.path.join(folder, f"{size}{'-gelu' if fused_gelu else ''}.onnx")
    if not os.path.exists(path):
        torch.manual_seed(1)
        config = configuration(size, fused_gelu)
        config._attn_implementation = "eager"

        class Plain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = AlbertModel(config).eval()

            def forward(self, ids, mask):
                out = self.model(input_ids=ids, attention_mask=mask)
                return out.last_hidden_state, out.pooler_output

        ids, mask = torch.randint(5, 30000, (2, 16)), torch.ones(2, 16, dtype=torch.long)
        axes = {name: {0: "batch", 1: "length"} for name in ("ids", "mask", "hidden")}
        plain = Plain()
        torch.onnx.export(
            plain, (ids, mask), path, input_names=["ids", "mask"], output_names=["hidden", "pooled"],
            dynamic_axes={**axes, "pooled": {0: "batch"}}, opset_version=20 if fused_gelu else 17, dynamo=False,
        )
        agree(plain, path)
    if not int8:
        return path
    quantised = path.replace(".onnx", "-int8.onnx")
    if not os.path.exists(quantised):
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(path, quantised, weight_type=QuantType.QInt8)
    return quantised


def ort_worker(path, lengths, threads):
    import numpy
    import onnxruntime

    turns.forget_peak()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    generator, longest = numpy.random.default_rng(1), max(lengths)
    ids = generator.integers(5, 30000, (len(lengths), longest))
    mask = (numpy.arange(longest) < numpy.array(lengths)[:, None]).astype(numpy.int64)
    turns.serve(lambda: session.run(None, {"ids": ids, "mask": mask}), threads)


def worker(arguments):
    name, mode, size, lengths, threads, folder = arguments
    parts, lengths, threads = name.split("+"), [int(length) for length in lengths.split(",")], int(threads)
    if parts[0] == "ort":
        # A process of its own exports, so that its memory is not counted.
        ort_worker(folder, lengths, threads)
    else:
        torch_worker(parts, mode, size, lengths, threads)


def cell(options, text, folder):
    """All contenders at `base:8x128` or `base:31,32,500`."""
    size, shape = text.split(":")
    count, _, length = shape.partition("x")
    lengths = [int(length)] * int(count) if length else [int(part) for part in shape.split(",")]
    listed = ",".join(map(str, lengths))
    ours = ["step", "--config", size, "--lengths", listed, "--mode", options.mode, "--threads", str(options.threads)]
    contenders = [turns.albert(options.albert, [*ours, "--dtype", options.dtype])]
    for name in options.peers:
        parts = name.split("+")
        last = folder
        if parts[0] == "ort":
            last = turns.subprocess.run(
                [sys.executable, __file__, "--export", size, name, folder], check=True, capture_output=True, text=True
            ).stdout.splitlines()[-1]
        command = [sys.executable, __file__, "--worker", name, options.mode, size, listed, str(options.threads), last]
        threads = {"OMP_NUM_THREADS": str(options.threads), "MKL_NUM_THREADS": str(options.threads)}
        contenders.append(turns.Process(name, command, {**threads, **(turns.KEEP_MEMORY if "arena" in parts else {})}))
    results = turns.rounds(contenders, options.rounds)
    results[0] = [turns.flatten(records[0]) for records in results[0]]
    return [contender.name for contender in contenders], results


def table(title, names, results):
    ours = results[0]
    flops, tokens = ours[0]["flops"], ours[0]["tokens"]
    print(f"\n{title}: {len(ours)} rounds, {flops / 1e9:.1f} GFLOP, {tokens} useful tokens")
    print("| who | ms | tokens/s | GFLOP/s | % of peak | on processor | time over ours | on processor | peak RSS MiB | over ours |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    for name, result in zip(names, results):
        median = lambda key: statistics.median(took[key] for took in result)
        share = lambda key: statistics.median(
            100 * flops / took[key] / 1e9 / own["peak_gflops"] for took, own in zip(result, ours)
        )
        wall, processor = turns.compare(ours, result)
        rss, own = max(took["peak_rss_bytes"] for took in result), max(took["peak_rss_bytes"] for took in ours)
        seconds = median("seconds")
        print(
            f"| {name} | {1e3 * seconds:.1f} | {tokens / seconds:.0f} | {flops / seconds / 1e9:.1f} | {share('seconds'):.1f} "
            f"| {share('processor_seconds'):.1f} | {wall:.3f} | {processor:.3f} | {rss / 2**20:.0f} | {rss / own:.2f} |"
        )
        rows.append({"who": name, "seconds": seconds, "ratio": wall, "processor_ratio": processor, "peak_rss_bytes": rss})
    sys.stdout.flush()
    return rows


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(sys.argv[2:])
    if sys.argv[1:2] == ["--export"]:
        size, name, folder = sys.argv[2:]
        return print(export(size, "gelu" in name.split("+"), "int8" in name.split("+"), folder))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--albert", default="target/release/albert", help="the program")
    parser.add_argument("--mode", choices=["forward", "train"], default="forward")
    parser.add_argument("--cells", nargs="+", default=["base:8x128"], help="SIZE:BATCHxLENGTH or SIZE:length,length,..")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="f32", help="of ours")
    parser.add_argument("--peers", nargs="+", help=f"default: {' '.join(FORWARD)}; train: {' '.join(TRAIN)}")
    parser.add_argument("--json", help="also write everything to this file")
    options = parser.parse_args()
    options.peers = options.peers or (FORWARD if options.mode == "forward" else TRAIN)
    everything = []
    with tempfile.TemporaryDirectory() as folder:
        for text in options.cells:
            names, results = cell(options, text, folder)
            title = f"{options.mode} {text}, {options.dtype}, {options.threads} thread(s)"
            rows = table(title, names, results)
            everything.append({"title": title, "table": rows, "rounds": dict(zip(names, results))})
    if options.json:
        with open(options.json, "w") as file:
            json.dump(everything, file, indent=1)


if __name__ == "__main__":
    main()
