"""Twenty steps of AdamW and of LAMB, to be followed by tests/tests/training_parity.rs. Not needed to build or to test.

    python3.11 -m venv venv && venv/bin/pip install -r requirements.txt
    venv/bin/python training.py ../golden/training

Writes a small AlbertForPreTraining as transformers saves it, four batches that take turns (`batches.json`), and for both
rules the losses of every step and the weights after the last (`adamw.safetensors`, `lamb.safetensors`; losses, rates and spreads in
`training.json`). The loss is transformers' own: MLM plus SOP, each a mean over the batch; dropout is off; gradients are
scaled to a global norm of at most 1.

AdamW is torch.optim.AdamW, with bias correction, run in f64 and in f32. LAMB is a transcription of the released optimizer
to NumPy in f64 (`lamb`), fed with PyTorch's gradients in f64, and once more with those in f32. Weights of the f64 runs are
kept; the distance of the f32 runs from them is kept beside them, as a measure of what rounding does.
"""

import json
import os
import re
import shutil
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

STEPS, BATCHES = 20, 4
CLIP = 1.0
BETA1, BETA2, EPSILON, DECAY = 0.9, 0.999, 1e-6, 0.01
PEAK = {"adamw": 4e-3, "lamb": 2e-2}
CONFIG = dict(vocab_size=64, embedding_size=16, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
              intermediate_size=64, max_position_embeddings=32, hidden_act="gelu_new", hidden_dropout_prob=0.0,
              attention_probs_dropout_prob=0.0)
# Neither decayed nor adapted. The usual list of two names would miss `full_layer_layer_norm.weight`.
EXCLUDED = re.compile("LayerNorm|layer_norm|bias")
MASK, CLS, SEP = 4, 2, 3


def first_model():
    """Every parameter random, none at its initial 0 or 1."""
    torch.manual_seed(11)
    model = transformers.AlbertForPreTraining(transformers.AlbertConfig(**CONFIG)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                gain = name.endswith(("LayerNorm.weight", "layer_norm.weight"))
                parameter.normal_(1.0 if gain else 0.0, 0.1)
            else:
                parameter.normal_(0.0, 1.0 / parameter.shape[-1] ** 0.5)
    return model


def batches():
    """Ragged sequences in which a piece follows from the one before, their two segments in order or swapped."""
    rng = np.random.default_rng(5)
    out = []
    for _ in range(BATCHES):
        batch = []
        for _ in range(6):
            first, second = int(rng.integers(3, 14)), int(rng.integers(3, 14))
            run = [int(rng.integers(5, 64))]
            while len(run) < first + second:
                run.append(5 + (7 * run[-1] + int(rng.integers(0, 3))) % 59)
            a, b = run[:first], run[first:]
            swapped = int(rng.integers(0, 2))
            if swapped:
                a, b = b, a
            ids = [CLS, *a, SEP, *b, SEP]
            segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
            text = [i for i in range(len(ids)) if ids[i] > 4]
            masked = sorted(int(i) for i in rng.choice(text, max(1, len(text) // 5), replace=False))
            labels = [ids[i] for i in masked]
            for i in masked:
                ids[i] = MASK
            batch.append({"ids": ids, "segments": segments, "masked": masked, "labels": labels, "swapped": swapped})
        out.append(batch)
    return out


def padded(batch):
    longest = max(len(sequence["ids"]) for sequence in batch)
    pad = lambda values, value: values + [value] * (longest - len(values))
    labels = []
    for sequence in batch:
        row = [-100] * longest
        for at, label in zip(sequence["masked"], sequence["labels"]):
            row[at] = label
        labels.append(row)
    return {
        "input_ids": torch.tensor([pad(sequence["ids"], 0) for sequence in batch]),
        "token_type_ids": torch.tensor([pad(sequence["segments"], 0) for sequence in batch]),
        "attention_mask": torch.tensor([pad([1] * len(sequence["ids"]), 0) for sequence in batch]),
        "labels": torch.tensor(labels),
        "sentence_order_label": torch.tensor([sequence["swapped"] for sequence in batch]),
    }


def rates(peak):
    """Four steps of warm-up, then down to nothing; each as f32, in which a step is taken."""
    return [float(np.float32(peak * min((step + 1) / 4, (STEPS - step) / (STEPS - 3)))) for step in range(STEPS)]


def gradients(model, batch):
    """The loss, and gradients at most 1 long in all."""
    model.zero_grad()
    loss = model(**padded(batch)).loss
    loss.backward()
    norm = sum(p.grad.double().square().sum() for p in model.parameters()).sqrt().item()
    for parameter in model.parameters():
        parameter.grad *= min(1.0, CLIP / norm)
    return loss.item(), norm


def adamw(model, data, schedule):
    decayed = [p for name, p in model.named_parameters() if not EXCLUDED.search(name)]
    others = [p for name, p in model.named_parameters() if EXCLUDED.search(name)]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(BETA1, BETA2), eps=EPSILON)
    record = []
    for step, rate in enumerate(schedule):
        batch = data[step % BATCHES]
        record.append(gradients(model, batch))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    return record


def lamb(model, data, schedule):
    """The optimizer as released, in NumPy and f64; PyTorch gives the gradients in the model's type."""
    weights = {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}
    m = {name: np.zeros_like(w) for name, w in weights.items()}
    v = {name: np.zeros_like(w) for name, w in weights.items()}
    record = []
    for step, rate in enumerate(schedule):
        batch = data[step % BATCHES]
        record.append(gradients(model, batch))
        for name, parameter in model.named_parameters():
            w, g = weights[name], parameter.grad.double().numpy()
            m[name] = BETA1 * m[name] + (1 - BETA1) * g
            v[name] = BETA2 * v[name] + (1 - BETA2) * g**2
            u = m[name] / (np.sqrt(v[name]) + EPSILON)
            ratio = 1.0
            if not EXCLUDED.search(name):
                u = u + DECAY * w
                w_norm, u_norm = np.linalg.norm(w), np.linalg.norm(u)
                if w_norm > 0 and u_norm > 0:
                    ratio = w_norm / u_norm
            weights[name] = w - ratio * rate * u
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(weights[name]))
    return record


def main(root):
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, numpy {np.__version__}")
    shutil.rmtree(root, ignore_errors=True)
    start = first_model()
    start.save_pretrained(root)
    data = batches()
    with open(os.path.join(root, "batches.json"), "w") as file:
        json.dump(data, file, separators=(",", ":"))
        file.write("\n")
    out = {}
    for name, run in [("adamw", adamw), ("lamb", lamb)]:
        schedule = rates(PEAK[name])
        ends, records = {}, {}
        for dtype in [torch.float64, torch.float32]:
            model = first_model().to(dtype)
            records[dtype] = run(model, data, schedule)
            ends[dtype] = {key: p.detach().double() for key, p in model.named_parameters()}
        exact, rough = ends[torch.float64], ends[torch.float32]
        spread = {key: (rough[key] - exact[key]).abs().max().item() for key in exact}
        moved = {key: (exact[key] - p.detach().double()).abs().max().item() for key, p in start.named_parameters()}
        losses, losses_f32 = ([loss for loss, _ in records[dtype]] for dtype in [torch.float64, torch.float32])
        out[name] = {"rates": schedule, "losses": losses, "losses_f32": losses_f32,
                     "norms": [norm for _, norm in records[torch.float64]], "spread": spread, "moved": moved}
        save_file({key: value.float().contiguous() for key, value in exact.items()},
                  os.path.join(root, f"{name}.safetensors"))
        worst = max(abs(a - b) / b for a, b in zip(losses_f32, losses))
        print(f"{name}: losses {losses[0]:.4f} to {losses[-1]:.4f}, f32 within {worst:.1e}; weights of f32 within "
              f"{max(spread[key] / moved[key] for key in spread if 'key.bias' not in key):.1e} of their way")
    with open(os.path.join(root, "training.json"), "w") as file:
        json.dump(out, file, indent=1)
        file.write("\n")
    print(sum(os.path.getsize(os.path.join(root, file)) for file in os.listdir(root)), "bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
