"""Holds `albert forward` against PyTorch and transformers, and makes the golden files of tests/tests/program/forward.rs.

    python3 -m venv venv && venv/bin/pip install -r tests/oracle/requirements.txt
    venv/bin/python tests/oracle/forward.py compare --albert target/release/albert [--released]
    venv/bin/python tests/oracle/forward.py golden tests/golden/forward

For every class and configuration models with random weights (biases and gains away from 0 and 1) are written, run by
transformers in f64 and in f32, and run by albert. The error of a tensor is its largest distance from f64 over all lines of
input and all draws of the weights: of a few numbers from a single run, the largest error says little. It may be twice that of PyTorch's f32, plus one ulp of its largest value (a loss: two ulp). Nothing here is needed to build or to
test the project.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

# It warns of every pass without its fused attention, which gives no probabilities.
transformers.logging.set_verbosity_error()

DRAWS = 8
# Of the released sizes, with gradients; one draw of the larger ones, without.
RELEASED_DRAWS = {"base": 10, "large": 10}

TINY = dict(vocab_size=48, embedding_size=8, hidden_size=16, num_hidden_layers=3, num_attention_heads=4,
            intermediate_size=24, max_position_embeddings=24, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0, hidden_act="gelu_new")
CONFIGS = {
    "tiny": {},
    "groups": dict(num_hidden_groups=3),
    "two_groups": dict(num_hidden_groups=2, num_hidden_layers=4),
    "inner": dict(inner_group_num=2, num_hidden_layers=2),
    "square": dict(embedding_size=16),
    "relu": dict(hidden_act="relu"),
    "erf": dict(hidden_act="gelu"),
    "heads_of_64": dict(hidden_size=128, num_attention_heads=2, intermediate_size=96),
    "heads_of_128": dict(hidden_size=128, num_attention_heads=1, intermediate_size=96),
}
BERT = {key: value for key, value in TINY.items() if key not in ("embedding_size", "classifier_dropout_prob")}
RELEASED = {
    "base": dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072),
    "large": dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
    "xlarge": dict(hidden_size=2048, num_hidden_layers=24, num_attention_heads=16, intermediate_size=8192),
    "xxlarge": dict(hidden_size=4096, num_hidden_layers=12, num_attention_heads=64, intermediate_size=16384),
}
CLASSES = ["Model", "ForPreTraining", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification",
           "ForQuestionAnswering", "ForMultipleChoice"]


def config_of(family, changes, labels=3):
    if family == "Albert":
        return transformers.AlbertConfig(**{**TINY, **changes}, num_labels=labels)
    return transformers.BertConfig(**{**BERT, **changes}, num_labels=labels)


def model_of(family, kind, config, seed=7):
    """A model with every parameter random, none at its initial 0 or 1."""
    if kind in ("ForPreTraining", "ForQuestionAnswering"):
        config.num_labels = 2
    torch.manual_seed(seed)
    model = getattr(transformers, family + kind)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0 if "LayerNorm.weight" in name or "layer_norm.weight" in name else 0.0, 0.1)
            else:
                parameter.normal_(0.0, min(0.2, 1.0 / parameter.shape[-1] ** 0.5))
    return model


def lines_of(kind, config, released=False, seed=7):
    """Padded, masked in the middle, one token, the longest."""
    rng = np.random.default_rng(seed)
    longest = config.max_position_embeddings
    out = []
    shapes = [(9, 9), (12, 7), (1, 1), (longest, longest)] if not released else [(33, 20), (1, 1), (longest, longest)]
    for i, (length, seen) in enumerate(shapes):
        mask = [1] * seen + [0] * (length - seen)
        if i == 1 and length > 4:
            mask[2], mask[seen] = 0, 1
        line = {
            "input_ids": rng.integers(1, config.vocab_size, length).tolist(),
            "attention_mask": mask,
            "token_type_ids": [0] * (length - length // 2) + [1] * (length // 2),
        }
        if kind == "ForMultipleChoice":
            choices = [rng.integers(1, config.vocab_size, length).tolist() for _ in range(3)]
            line = {"input_ids": choices, "attention_mask": [mask] * 3, "token_type_ids": [line["token_type_ids"]] * 3,
                    "labels": 1}
        elif kind in ("ForPreTraining", "ForMaskedLM"):
            labels = rng.integers(1, config.vocab_size, length)
            labels[rng.random(length) < 0.6] = -100
            labels[0] = 5
            line["labels"] = labels.tolist()
            if kind == "ForPreTraining":
                line["sentence_order_label"] = int(i % 2)
        elif kind == "ForSequenceClassification":
            line["labels"] = 0.75 if config.num_labels == 1 else int(i % config.num_labels)
        elif kind == "ForTokenClassification":
            labels = rng.integers(0, config.num_labels, length)
            labels[rng.random(length) < 0.2] = -100
            labels[0] = 1
            line["labels"] = labels.tolist()
        elif kind == "ForQuestionAnswering":
            line["start_positions"], line["end_positions"] = length // 2, length - 1
        out.append(line)
    return out


NAMES = {"ForPreTraining": {"prediction_logits": "prediction_logits", "sop_logits": "sop_logits",
                            "seq_relationship_logits": "sop_logits"},
         "ForMaskedLM": {"logits": "prediction_logits"},
         "ForQuestionAnswering": {"start_logits": "start_logits", "end_logits": "end_logits"},
         "Model": {"pooler_output": "pooled"}}


def expected(model, family, kind, lines, dtype):
    """The tensors of all lines, and the gradients of the sum of their losses."""
    model = model.to(dtype)
    model.zero_grad()
    tensors = {}
    for i, line in enumerate(lines):
        batch = {}
        for key, value in line.items():
            if key == "sentence_order_label" and family == "Bert":
                key = "next_sentence_label"
            value = torch.tensor(value)
            batch[key] = (value.to(dtype) if value.is_floating_point() else value)[None]
        output = model(**batch, output_hidden_states=True, output_attentions=True)
        for k, state in enumerate(output.hidden_states):
            tensors[f"{i}.hidden.{k}"] = state.squeeze(0)
        for k, attention in enumerate(output.attentions):
            tensors[f"{i}.attention.{k}"] = attention.squeeze(0)
        for theirs, ours in NAMES.get(kind, {"logits": "logits"}).items():
            if theirs in output:
                tensors[f"{i}.{ours}"] = output[theirs].squeeze(0)
        if kind == "Model":
            continue
        tensors[f"{i}.loss"] = output.loss
        output.loss.backward()
    if kind != "Model":
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                tensors[f"grad.{name}"] = parameter.grad
    return {name: tensor.detach().to(torch.float64).clone() for name, tensor in tensors.items()}


def pool(name):
    """The tensor without its line."""
    return name if name.startswith("grad.") else name.split(".", 1)[1]


def bounds(errors, largest):
    """For each tensor twice the error of PyTorch's f32, plus an ulp of the largest value."""
    out = {}
    for name, error in errors.items():
        out[name] = 2 * error + (2 if name == "loss" else 1) * float(np.spacing(np.float32(largest[name])))
        if name.startswith("grad.") and "key.bias" in name:
            # Exactly 0: a number added to all scores of a query changes nothing.
            out[name] = 1e-6 * largest[name.replace("key.bias", "query.bias")]
    return out


def eager(model):
    """Attention probabilities are given by the plain implementation alone."""
    model.config._attn_implementation = "eager"
    return model


# Our error over PyTorch's, and tensors of which PyTorch's is beyond the same bound drawn from ours.
ratios, beyond = [], []


def compare(albert, name, family, kind, config, released, worst):
    """Runs all draws; gives the number of tensors that are out of bounds or not there."""
    errors, theirs, largest, failures = {}, {}, {}, 0
    for seed in range(RELEASED_DRAWS.get(name.split("-")[0], 1) if released else DRAWS):
        model = eager(model_of(family, kind, config, seed))
        lines = lines_of(kind, config, released, seed)
        gradients = kind != "Model"
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            path, out = os.path.join(folder, "lines.jsonl"), os.path.join(folder, "out.safetensors")
            with open(path, "w") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
            arguments = [albert, "forward", "--model", folder, "--ids", path, "-o", out, "--layers"]
            arguments += ["--gradients"] if gradients else []
            arguments += [] if released else ["--attention"]
            told = subprocess.run(arguments, capture_output=True, text=True)
            if told.returncode != 0:
                print(f"{name} {family}{kind}: {told.stderr}")
                return 1
            got = load_file(out)
        plain = expected(model, family, kind, lines, torch.float32)
        exact = expected(model, family, kind, lines, torch.float64)
        for tensor, value in exact.items():
            if released and ".attention." in tensor:
                continue
            if tensor not in got:
                print(f"{name} {family}{kind}: {tensor} is missing")
                failures += 1
                continue
            of = pool(tensor)
            ours = got[tensor].to(torch.float64).reshape(value.shape)
            errors[of] = max(errors.get(of, 0.0), (ours - value).abs().max().item())
            theirs[of] = max(theirs.get(of, 0.0), (plain[tensor] - value).abs().max().item())
            largest[of] = max(largest.get(of, 0.0), value.abs().max().item())
    limits, turned = bounds(theirs, largest), bounds(errors, largest)
    for tensor, error in errors.items():
        limit = limits[tensor]
        ratios.append((error + 1e-30) / (theirs[tensor] + 1e-30))
        if "key.bias" not in tensor and theirs[tensor] > turned[tensor]:
            beyond.append(tensor)
        worst.append((error / limit if limit else float(error > 0), f"{name} {family}{kind} {tensor}"))
        if not error <= limit:
            print(f"{name} {family}{kind}: {tensor} is off by {error:.3e}, allowed {limit:.3e} (PyTorch {theirs[tensor]:.3e})")
            failures += 1
    return failures


def cases(released):
    if released:
        # v1 and v2 differ in the activation alone: the files of v1 say "gelu", by which Hugging Face means erf.
        for name, changes in RELEASED.items():
            changes = dict(vocab_size=30000, embedding_size=128, max_position_embeddings=512, **changes)
            for version, activation in [("v1", "gelu"), ("v2", "gelu_new")]:
                config = config_of("Albert", dict(changes, hidden_act=activation))
                yield f"{name}-{version}", "Albert", "ForPreTraining" if name in RELEASED_DRAWS else "Model", config
        return
    for name, changes in CONFIGS.items():
        for kind in CLASSES if name == "tiny" else ["ForPreTraining"]:
            yield name, "Albert", kind, config_of("Albert", changes)
    yield "regression", "Albert", "ForSequenceClassification", config_of("Albert", {}, labels=1)
    for kind in CLASSES:
        yield "tiny", "Bert", kind, config_of("Bert", {})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["compare", "golden"])
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--albert", default="target/release/albert")
    parser.add_argument("--released", action="store_true", help="the released sizes, xxlarge included (20 GB of memory)")
    parser.add_argument("--only", help="one configuration, by its name")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    failures, worst = 0, []
    for name, family, kind, config in cases(arguments.released):
        if arguments.only not in (None, name):
            continue
        if arguments.what == "golden":
            if name.startswith("heads_of"):
                continue  # Too large to be checked in.
            golden(arguments.folder, name, family, kind, config)
            continue
        failures += compare(arguments.albert, name, family, kind, config, arguments.released, worst)
    if arguments.what == "compare":
        for ratio, tensor in sorted(worst, reverse=True)[:5]:
            print(f"{ratio:.2f} of the bound: {tensor}")
        print(f"{len(worst)} tensors, {failures} failures; the other way round {len(beyond)}; "
              f"median of our error over PyTorch's {np.median(ratios):.2f}")
    sys.exit(failures > 0)


def golden(root, name, family, kind, config):
    """The model, its lines, and what they give, as small as can be."""
    folder = os.path.join(root, f"{name}-{family}{kind}".lower())
    model = eager(model_of(family, kind, config))
    model.save_pretrained(folder)
    lines = lines_of(kind, config)
    with open(os.path.join(folder, "lines.jsonl"), "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    plain = expected(model, family, kind, lines, torch.float32)
    exact = expected(model, family, kind, lines, torch.float64)
    # One line of hidden states is enough for a file that is checked in; gradients are of all lines.
    keep = {k: v for k, v in exact.items() if k.startswith(("1.", "grad.")) or k.endswith("loss")}
    if name != "tiny":
        # Attention and word embeddings are the largest, and the same code for all.
        keep = {k: v for k, v in keep.items() if ".attention." not in k or k.startswith("grad.")}
    errors, largest = {}, {}
    for tensor, value in exact.items():
        of = pool(tensor)
        errors[of] = max(errors.get(of, 0.0), (plain[tensor] - value).abs().max().item())
        largest[of] = max(largest.get(of, 0.0), value.abs().max().item())
    limits = {tensor: repr(limit) for tensor, limit in bounds(errors, largest).items()}
    # What PyTorch rounds to f32 is off by at most half an ulp, which is in the bound.
    rounded = {k: v.to(torch.float32).contiguous() for k, v in keep.items()}
    save_file(rounded, os.path.join(folder, "expected.safetensors"), metadata=limits)


if __name__ == "__main__":
    main()
