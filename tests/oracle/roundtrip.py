"""What `albert pretrain` and `albert convert` write, loaded by transformers through its Auto classes. Not needed to build or
to test.

    venv/bin/python tests/oracle/roundtrip.py --albert target/release/albert

Runs with transformers 4.46.3 (requirements.txt) and 5.2.0 (requirements-5.txt). It trains a vocabulary and, for three steps
each, a model with a sentence objective and one without; it has transformers write a folder with a tokenizer for each class
of Albert and Bert, and converts it. For every folder that the program wrote:

- AutoConfig, AutoModel, the Auto class of its heads and AutoTokenizer load it, and no tensor is missing or left over;
- weights are those of the folder that it came from, bit for bit;
- ids of a few hundred varied lines are those of `albert tokenizer encode`;
- hidden states, pooled output, logits and losses in f64 are those of `albert forward`, within the bound of forward.py;
- converting it again, and by way of bf16, gives the same bytes of tensors.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import unicodedata

import torch
import transformers
from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "tokenizer")]

import forward  # noqa: E402
import spiece  # noqa: E402

TEXT = os.path.join(HERE, "../../cli/data/public_domain.txt")
GOLDEN = os.path.join(HERE, "../golden/tokenizer")
LINES, DRAWS = 600, 8
AUTO = {"Model": "AutoModel", "ForPreTraining": "AutoModelForPreTraining", "ForMaskedLM": "AutoModelForMaskedLM",
        "ForSequenceClassification": "AutoModelForSequenceClassification",
        "ForTokenClassification": "AutoModelForTokenClassification",
        "ForQuestionAnswering": "AutoModelForQuestionAnswering", "ForMultipleChoice": "AutoModelForMultipleChoice"}
RUN = ["model.embedding_size=16", "model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=2",
       "model.max_position_embeddings=64", "data.instances.max_sequence_length=64", "data.masking.max_predictions=10",
       "data.batch.max_tokens=512", "data.batch.max_sequences=8", "data.batch.sequences_per_step=8",
       "schedule.steps=3", "schedule.warmup_steps=1"]

transformers.logging.disable_progress_bar()
failures = []


def expect(ok, what):
    if not ok:
        failures.append(what)
        print("FAILED:", what)


def run(*arguments, given=None):
    told = subprocess.run(arguments, input=given, capture_output=True)
    if told.returncode != 0:
        sys.exit(f"{' '.join(arguments)}\n{told.stderr.decode()}")
    return told.stdout.decode()


def tensors(folder):
    """Name, shape, type and bytes of every tensor."""
    found = load_file(os.path.join(folder, "model.safetensors"))
    raw = lambda value: value.contiguous().view(torch.uint8).numpy().tobytes() if value.dim() else value.numpy().tobytes()
    return {name: (value.dtype, tuple(value.shape), raw(value)) for name, value in found.items()}


def is_known(line):
    """Lines on which our own tokenizer.json is known to differ in `tokenizers`; albert/src/tokenizer/file.rs says why."""
    marks = any(unicodedata.category(c).startswith("M") and not unicodedata.combining(c) for c in unicodedata.normalize("NFKD", line))
    return marks or any(piece in line for piece in ["[MASK]", "[CLS]", "[SEP]", "<unk>", "<pad>"])


def check_ids(albert, folder, own):
    lines = [line for line in spiece.varied_lines(TEXT, LINES) if not any(c in line for c in "\r\n")]
    told = run(albert, "tokenizer", "encode", "--tokenizer", folder, given="".join(line + "\n" for line in lines).encode())
    ours = [[int(id) for id in row.split()] for row in told.split("\n")[:len(lines)]]
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = [auto(line, add_special_tokens=False)["input_ids"] for line in lines]
    wrong = [line for line, a, b in zip(lines, ours, theirs) if a != b]
    unknown = [line for line in wrong if not (own and is_known(line))]
    expect(not unknown, f"{folder}: {len(unknown)} lines differ, such as {unknown[:3]}")
    specials = [auto.pad_token_id, auto.unk_token_id, auto.cls_token_id, auto.sep_token_id, auto.mask_token_id]
    expect(None not in specials, f"{folder}: special ids {specials}")
    pair = auto("a river", "the sea")
    expect(pair["input_ids"][0] == auto.cls_token_id and pair["input_ids"].count(auto.sep_token_id) == 2,
           f"{folder}: a pair is {pair['input_ids']}")
    if own:
        # transformers 5 leaves them out of its own folders of an ALBERT.
        expect(1 in pair["token_type_ids"], f"{folder}: segments of a pair are {pair['token_type_ids']}")
    return f"{len(lines) - len(wrong)} of {len(lines)} lines ({len(wrong)} known)" if wrong else f"{len(lines)} lines"


def check_outputs(albert, folder, family, kind):
    """Every output beside an f64 run, and PyTorch's f32 beside it, over all draws of the inputs."""
    model, told = getattr(transformers, AUTO[kind]).from_pretrained(folder, output_loading_info=True)
    expect(type(model).__name__ == family + kind, f"{folder}: {type(model).__name__}, not {family}{kind}")
    left = {key: names for key, names in told.items() if names}
    expect(not left, f"{folder}: {left}")
    base = transformers.AutoModel.from_pretrained(folder)
    model = forward.eager(model.eval())
    inputs = [line for seed in range(DRAWS) for line in forward.lines_of(kind, model.config, seed=seed)]
    path, out = os.path.join(folder, "lines.jsonl"), os.path.join(folder, "out.safetensors")
    with open(path, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in inputs)
    run(albert, "forward", "--model", folder, "--ids", path, "-o", out, "--layers", "--attention")
    got = load_file(out)
    os.remove(path), os.remove(out)
    # AutoModel has the same encoder, whatever the heads.
    line = forward.lines_of("Model", model.config)[0]
    batch = {key: torch.tensor([value]) for key, value in line.items()}
    with torch.no_grad():
        ours = getattr(model, model.base_model_prefix) if kind != "Model" else model
        same = torch.equal(forward.eager(base.eval())(**batch).last_hidden_state, ours(**batch).last_hidden_state)
    expect(same, f"{folder}: AutoModel's hidden state is not that of the whole model")
    plain, exact = (forward.expected(model, family, kind, inputs, dtype) for dtype in [torch.float32, torch.float64])
    errors, theirs, largest = {}, {}, {}
    for name, value in exact.items():
        if name.startswith("grad."):
            continue
        of = forward.pool(name)
        ours = got[name].double().reshape(value.shape)
        errors[of] = max(errors.get(of, 0.0), (ours - value).abs().max().item())
        theirs[of] = max(theirs.get(of, 0.0), (plain[name] - value).abs().max().item())
        largest[of] = max(largest.get(of, 0.0), value.abs().max().item())
    limits = forward.bounds(theirs, largest)
    for of, error in errors.items():
        expect(error <= limits[of], f"{folder}: {of} is off by {error:.2e}, allowed {limits[of]:.2e}")
    return max(error / limits[of] for of, error in errors.items())


def check_again(albert, folder, name):
    """Written again in f32 nothing changes; once rounded to bf16 or f16 nothing changes either."""
    to = lambda more: f"{folder}-{more}"
    convert = lambda source, more, dtype: run(albert, "convert", "--from", source, "--to", to(more), "--dtype", dtype)
    convert(folder, "again", "f32")
    expect(tensors(folder) == tensors(to("again")), f"{name}: not the same tensors again")
    for dtype in ["bf16", "f16"]:
        convert(folder, dtype, dtype)
        convert(to(dtype), f"{dtype}-f32", "f32")
        convert(to(f"{dtype}-f32"), f"{dtype}-f32-{dtype}", dtype)
        expect(tensors(to(dtype)) == tensors(to(f"{dtype}-f32-{dtype}")), f"{name}: not the same {dtype} by way of f32")
        # In half the width transformers finds the same numbers.
        half, full = (transformers.AutoModel.from_pretrained(to(more), torch_dtype="auto") for more in [dtype, f"{dtype}-f32"])
        stored = tensors(to(dtype))
        expect(str(half.dtype) == {"bf16": "torch.bfloat16", "f16": "torch.float16"}[dtype], f"{name}: {half.dtype}")
        for (key, a), (_, b) in zip(half.named_parameters(), full.named_parameters()):
            # A class without a pooler gets a fresh one.
            is_fresh = not any(stored_name.endswith(key) for stored_name in stored)
            expect(torch.equal(a.float(), b) or is_fresh, f"{name}: {key} in {dtype}")


def tokenizer_of(family, folder):
    """A tokenizer of the family with the small golden vocabulary, as transformers writes it."""
    if family == "Albert":
        made = transformers.AlbertTokenizerFast.from_pretrained(GOLDEN)
    else:
        made = transformers.BertTokenizerFast.from_pretrained(GOLDEN)
    made.save_pretrained(folder)
    return len(made)


def converted(albert, root):
    """A folder of each class, by transformers, and then by us."""
    for family in ["Albert", "Bert"]:
        for kind in forward.CLASSES:
            name = family + kind
            source, target = os.path.join(root, name), os.path.join(root, f"{name}-ours")
            pieces = tokenizer_of(family, source)
            changes = dict(vocab_size=pieces, hidden_act="gelu_new" if family == "Albert" else "gelu")
            if family == "Albert":
                changes["num_hidden_groups"] = 1 + len(kind) % 3
            model = forward.model_of(family, kind, forward.config_of(family, changes))
            model.save_pretrained(source)
            run(albert, "convert", "--from", source, "--to", target)
            ids = check_ids(albert, target, own=False)
            ratio = check_outputs(albert, target, family, kind)
            again = getattr(transformers, AUTO[kind]).from_pretrained(target)
            theirs, found = model.state_dict(), again.state_dict()
            expect(theirs.keys() == found.keys(), f"{name}: {theirs.keys() ^ found.keys()}")
            for key in theirs:
                expect(torch.equal(found[key], theirs[key]), f"{name}: {key} has other values")
            check_again(albert, target, name)
            files = " ".join(sorted(os.listdir(target)))
            print(f"{name}: ids {ids}; worst output {ratio:.2f} of its bound; {files}")


def pretrained(albert, root):
    """Two runs of three steps, with and without a sentence objective."""
    tokenizer = os.path.join(root, "tokenizer.json")
    run(albert, "tokenizer", "train", TEXT, "--vocab-size", "2000", "-o", tokenizer)
    data = os.path.join(root, "data")
    run(albert, "data", "build", TEXT, "--tokenizer", tokenizer, "-o", data)
    for objective, kind in [("sop", "ForPreTraining"), ("none", "ForMaskedLM")]:
        folder = os.path.join(root, f"run-{objective}")
        run(albert, "pretrain", "tiny", f"data.instances.objective={objective}", *RUN, "--data", data, "--tokenizer", tokenizer,
            "-o", folder)
        for place in [folder, os.path.join(folder, "last")]:
            ids = check_ids(albert, place, own=True)
            ratio = check_outputs(albert, place, "Albert", kind)
        check_again(albert, folder, objective)
        # Our own converter takes the tokenizer along.
        check_ids(albert, f"{folder}-again", own=True)
        print(f"pretrain, objective {objective}: ids {ids}; worst output {ratio:.2f} of its bound; "
              f"{' '.join(sorted(os.listdir(os.path.join(folder, 'last'))))}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--albert", default="target/release/albert")
    albert = os.path.abspath(parser.parse_args().albert)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory() as root:
        pretrained(albert, root)
        converted(albert, root)
    print(f"{len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
