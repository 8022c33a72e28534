"""Checkpoints as other programs write them, and what they make of ours. Not needed to build or to test.

    python3.11 -m venv venv && venv/bin/pip install torch==2.15.0 transformers==4.46.3 safetensors==0.8.0 "numpy<2.3"
    venv/bin/python checkpoint.py make  ../golden/checkpoints     folders of tiny models, written by transformers
    venv/bin/python checkpoint.py check FOLDER..                  folders that were written here: does transformers
                                                                  find every tensor, none too many, with these values?

    python3.11 -m venv venv-tf && venv-tf/bin/pip install tensorflow-cpu==2.21.0
    venv-tf/bin/python checkpoint.py tensorflow ../golden/checkpoints   a checkpoint under the names of Google's ALBERT

Every value is made from the tensor's name and the element's place (`values`), so that a test needs no second file to
know what it must find.
"""

import json
import os
import shutil
import sys

import numpy as np

SHAPE = dict(vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
             max_position_embeddings=8, type_vocab_size=2)
CLASSES = ["Model", "ForPreTraining", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification",
           "ForQuestionAnswering", "ForMultipleChoice"]
LABELS = {"ForSequenceClassification": 3, "ForTokenClassification": 5}
# Variants of the plain folders: (folder, class, element type, size of a shard).
VARIANTS = [("albert-ForMaskedLM-bf16", "AlbertForMaskedLM", "bfloat16", "1GB"),
            ("bert-ForPreTraining-f16", "BertForPreTraining", "float16", "1GB"),
            ("bert-ForSequenceClassification-sharded", "BertForSequenceClassification", "float32", "3KB")]


def values(name, shape):
    """FNV-1a of the name, plus the place times a prime, as 24 bits of a number from -0.5 to 0.5: exact in f32."""
    state = 0x811C9DC5
    for byte in name.encode():
        state = (state ^ byte) * 0x01000193 % 2**32
    places = np.arange(int(np.prod(shape)), dtype=np.uint64)
    mixed = (places * 2654435761 + state) % 2**32
    return ((mixed >> 8).astype(np.float64) / 2**24 - 0.5).astype(np.float32).reshape(shape)


def config_of(family, klass):
    import transformers
    shape = dict(SHAPE, num_labels=LABELS.get(klass, 2))
    if family == "Albert":
        return transformers.AlbertConfig(**shape, embedding_size=4, num_hidden_groups=2, hidden_act="gelu_new")
    return transformers.BertConfig(**shape)


def build(family, klass):
    import torch
    import transformers
    model = getattr(transformers, family + klass)(config_of(family, klass))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(values(name, tuple(parameter.shape))))
    return model


def make(root):
    import torch
    plain = [(f"{family.lower()}-{klass}", family + klass, "float32", "1GB") for family in ["Albert", "Bert"]
             for klass in CLASSES]
    for folder, name, dtype, shard in plain + VARIANTS:
        family = "Albert" if name.startswith("Albert") else "Bert"
        model = build(family, name[len(family):]).to(getattr(torch, dtype))
        path = os.path.join(root, folder)
        shutil.rmtree(path, ignore_errors=True)
        model.save_pretrained(path, safe_serialization=True, max_shard_size=shard)
        # How to sample texts: nothing that an encoder has a use for.
        if os.path.exists(os.path.join(path, "generation_config.json")):
            os.remove(os.path.join(path, "generation_config.json"))
        print(folder, sum(os.path.getsize(os.path.join(path, file)) for file in os.listdir(path)), "bytes")


def check(folders):
    import torch
    import transformers
    failures = 0
    for folder in folders:
        with open(os.path.join(folder, "config.json")) as file:
            config = json.load(file)
        klass = getattr(transformers, config["architectures"][0])
        dtype = getattr(torch, config["torch_dtype"])
        model, info = klass.from_pretrained(folder, output_loading_info=True, torch_dtype=dtype)
        bad = {key: info[key] for key in ["missing_keys", "unexpected_keys", "mismatched_keys"] if info[key]}
        wrong = []
        for name, parameter in model.named_parameters():
            expected = torch.from_numpy(values(name, tuple(parameter.shape))).to(dtype)
            if not torch.equal(parameter.data, expected):
                wrong.append(name)
        failures += bool(bad or wrong)
        print(folder, klass.__name__, config["torch_dtype"], len(list(model.named_parameters())), "parameters:",
              bad or "no keys missing, none unexpected;", f"other values: {wrong}" if wrong else "all values equal")
    sys.exit(failures)


def google_tensors():
    """Google's names -> (the name in an AlbertForPreTraining of transformers, shape in TensorFlow, is it transposed?)."""
    v, e, h, f = SHAPE["vocab_size"], 4, SHAPE["hidden_size"], SHAPE["intermediate_size"]
    out = {}

    def dense(theirs, ours, inputs, outputs):
        out[f"{theirs}/kernel"] = (f"{ours}.weight", (inputs, outputs), True)
        out[f"{theirs}/bias"] = (f"{ours}.bias", (outputs,), False)

    def norm(theirs, ours, width):
        out[f"{theirs}/gamma"] = (f"{ours}.weight", (width,), False)
        out[f"{theirs}/beta"] = (f"{ours}.bias", (width,), False)

    for kind, rows in [("word", v), ("token_type", 2), ("position", SHAPE["max_position_embeddings"])]:
        name = f"{kind}_embeddings"
        out[f"bert/embeddings/{name}"] = (f"albert.embeddings.{name}.weight", (rows, e), False)
    norm("bert/embeddings/LayerNorm", "albert.embeddings.LayerNorm", e)
    dense("bert/encoder/embedding_hidden_mapping_in", "albert.encoder.embedding_hidden_mapping_in", e, h)
    for group in range(2):
        theirs = f"bert/encoder/transformer/group_{group}/inner_group_0"
        ours = f"albert.encoder.albert_layer_groups.{group}.albert_layers.0"
        for part in ["query", "key", "value"]:
            dense(f"{theirs}/attention_1/self/{part}", f"{ours}.attention.{part}", h, h)
        dense(f"{theirs}/attention_1/output/dense", f"{ours}.attention.dense", h, h)
        norm(f"{theirs}/LayerNorm", f"{ours}.attention.LayerNorm", h)
        dense(f"{theirs}/ffn_1/intermediate/dense", f"{ours}.ffn", h, f)
        dense(f"{theirs}/ffn_1/intermediate/output/dense", f"{ours}.ffn_output", f, h)
        norm(f"{theirs}/LayerNorm_1", f"{ours}.full_layer_layer_norm", h)
    dense("bert/pooler/dense", "albert.pooler", h, h)
    dense("cls/predictions/transform/dense", "predictions.dense", h, e)
    norm("cls/predictions/transform/LayerNorm", "predictions.LayerNorm", e)
    out["cls/predictions/output_bias"] = ("predictions.bias", (v,), False)
    out["cls/seq_relationship/output_weights"] = ("sop_classifier.classifier.weight", (2, h), False)
    out["cls/seq_relationship/output_bias"] = ("sop_classifier.classifier.bias", (2,), False)
    return out


def tensorflow(root):
    import tensorflow.compat.v1 as tf
    tf.disable_eager_execution()
    path = os.path.join(root, "google-albert")
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    for theirs, (ours, shape, transposed) in google_tensors().items():
        value = values(ours, shape[::-1] if transposed else shape)
        tf.get_variable(theirs, initializer=np.ascontiguousarray(value.T if transposed else value))
        for slot in ["adam_m", "adam_v"]:
            tf.get_variable(f"{theirs}/{slot}", shape=shape, initializer=tf.zeros_initializer())
    tf.train.get_or_create_global_step()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, os.path.join(path, "model.ckpt-best"), write_meta_graph=False)
    config = dict(SHAPE, embedding_size=4, num_hidden_groups=2, inner_group_num=1, hidden_act="gelu",
                  hidden_dropout_prob=0, attention_probs_dropout_prob=0, initializer_range=0.02, net_structure_type=0,
                  gap_size=0, num_memory_blocks=0, down_scale_factor=1)
    with open(os.path.join(path, "albert_config.json"), "w") as file:
        json.dump(config, file, indent=2)
    os.remove(os.path.join(path, "checkpoint"))
    print({file: os.path.getsize(os.path.join(path, file)) for file in sorted(os.listdir(path))})


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "check":
        check(rest)
    else:
        {"make": make, "tensorflow": tensorflow}[command](*rest)
