"""Creates tests/golden/folders: a small BERT folder of sentence-transformers with random weights, and cases.jsonl, one change of a
folder a line with the vectors of sentence-transformers or the ids of transformers. `tests/tests/program/folders.rs` makes the same
changes.

    venv/bin/python tests/oracle/third_party.py tests/golden/folders      (transformers 5.2.0, sentence-transformers 6.2.0)

A case changes files: null removes one, {"": content} replaces it, {"/a/b": value} sets a key. Nothing here is needed to test.
"""

import copy
import json
import os
import shutil
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from sentence_transformers import SentenceTransformer

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.manual_seed(0)
torch.set_num_threads(1)
OUT = os.path.abspath(sys.argv[1])
BASE = os.path.join(OUT, "base")
WORDS = "the quick brown fox jumps over lazy dog river ran old mill hello world cafe open she was glad query passage cat".split()
LETTERS = "abcdefghilmnoprstuvwxy"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>"] + WORDS + list("aHWTbefnot.,Cq") + ["##" + c for c in LETTERS]
PIECES = list(dict.fromkeys(PIECES))
ROWS = (len(PIECES) // 8 + 1) * 8  # some rows for added words
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Hello World, the Café is OPEN",
    "a",
    "she was glad the old cat ran over the river " * 5,
    "a newtok in <ent> here NEWTOK newtoks",
]
PAIRS = [["the old mill", "she was glad"], ["a newtok", "hello <ent> world"]]


def write(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False))


def base():
    shutil.rmtree(OUT, ignore_errors=True)
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, max_position_embeddings=48,
        vocab_size=ROWS, initializer_range=0.4, type_vocab_size=2,
    )
    transformers.BertModel(config).save_pretrained(BASE)
    write(f"{BASE}/vocab.txt", "\n".join(PIECES) + "\n")
    class_of = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 48}
    write(f"{BASE}/tokenizer_config.json", class_of)
    transformers.AutoTokenizer.from_pretrained(BASE).save_pretrained(f"{OUT}/fast")
    shutil.move(f"{OUT}/fast/tokenizer.json", f"{BASE}/tokenizer.json")
    shutil.rmtree(f"{OUT}/fast")
    # transformers 5 rebuilds the pipeline of BERT's classes; this one obeys the file.
    write(f"{BASE}/tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 48, "pad_token": "[PAD]", "unk_token": "[UNK]",
        "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    })
    os.remove(f"{BASE}/vocab.txt")
    kind = "sentence_transformers.models."
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    write(f"{BASE}/modules.json", [
        {"idx": at, "name": str(at), "path": path, "type": kind + name} for at, (path, name) in enumerate(modules)
    ])
    write(f"{BASE}/1_Pooling/config.json", {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True})


def changed(folder, files):
    for name, change in files.items():
        path = os.path.join(folder, name)
        if change is None:
            os.remove(path)
        elif "" in change:
            write(path, change[""])
        else:
            content = json.load(open(path, encoding="utf-8"))
            for pointer, value in change.items():
                *parents, last = pointer[1:].split("/")
                at = content
                for key in parents:
                    at = at[key]
                at[last] = value
            write(path, content)


def cases():
    st, pooling, sentence = "config_sentence_transformers.json", "1_Pooling/config.json", "sentence_bert_config.json"
    fast, config, map_ = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
    vocab = {fast: None, "vocab.txt": {"": "\n".join(PIECES) + "\n"}}
    slow = {**vocab, config: {"": {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 48}}}
    prompts = {"query": "query: ", "passage": "passage: the old "}
    first = len(PIECES)
    token = lambda text, **k: {"content": text, "lstrip": False, "rstrip": False, "single_word": False, "normalized": True,
                               "special": False, **k}
    module = lambda path, name: {"idx": 0, "name": name, "path": path, "type": "sentence_transformers.models." + name}
    special = lambda text, segment=0: {"SpecialToken": {"id": text, "type_id": segment}}
    part = lambda name, segment=0: {"Sequence": {"id": name, "type_id": segment}}
    ids = {text: {"id": text, "ids": [PIECES.index(text)], "tokens": [text]} for text in ("[CLS]", "[SEP]", "<s>", "</s>")}
    template = lambda single, pair: {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": ids}
    xlmr = template([special("<s>"), part("A"), special("</s>")],
                    [special("<s>"), part("A"), special("</s>"), special("</s>"), part("B"), special("</s>")])
    bert = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    roberta = {"type": "RobertaProcessing", "sep": ["</s>", 6], "cls": ["<s>", 5], "trim_offsets": True,
               "add_prefix_space": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    norm = {"type": "Sequence", "normalizers": [
        {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "NFKD"}, {"type": "StripAccents"},
        {"type": "Replace", "pattern": {"String": "cafe"}, "content": "mill"}, {"type": "Lowercase"}]}
    split = {"type": "Sequence", "pretokenizers": [
        {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"},
        {"type": "Digits", "individual_digits": True}]}
    modes = ["cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    yield "control", {}
    yield "prompt", {st: {"": {"prompts": prompts, "default_prompt_name": "query"}}}
    yield "prompt_longer", {st: {"": {"prompts": prompts, "default_prompt_name": "passage"}}}
    yield "prompts_without_default", {st: {"": {"prompts": prompts, "default_prompt_name": None}}}
    yield "prompt_default_of_library", {st: {"": {"prompts": {}, "default_prompt_name": "query"}}}
    for mode in ["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]:
        yield f"without_prompt_{mode}", {
            st: {"": {"prompts": prompts, "default_prompt_name": "passage"}},
            pooling: {"": {"embedding_dimension": 16, "pooling_mode": mode, "include_prompt": False}}}
        yield f"pooling_{mode}", {pooling: {"": {"embedding_dimension": 16, "pooling_mode": mode}}}
    for mode in modes:
        yield f"pooling_mode_{mode}", {pooling: {"": {"word_embedding_dimension": 16, f"pooling_mode_{mode}": True}}}
    yield "pooling_all", {pooling: {"": {"word_embedding_dimension": 16, **{f"pooling_mode_{m}": True for m in modes}}}}
    yield "pooling_none", {pooling: {"": {"word_embedding_dimension": 16, **{f"pooling_mode_{m}": False for m in modes}}}}
    yield "pooling_list", {pooling: {"": {"embedding_dimension": 16, "pooling_mode": ["mean", "cls"]}}}
    yield "truncate_dim", {st: {"": {"prompts": {}, "truncate_dim": 5}}}
    yield "truncate_dim_wide", {st: {"": {"prompts": {}, "truncate_dim": 500}}}
    normal = [module("", "Transformer"), module("1_Pooling", "Pooling"), module("2_Normalize", "Normalize")]
    yield "normalize", {"modules.json": {"": normal}}
    yield "normalize_truncate_dim", {"modules.json": {"": normal}, st: {"": {"truncate_dim": 5}}}
    yield "max_seq_length", {sentence: {"": {"max_seq_length": 12}}}
    yield "max_seq_length_null", {sentence: {"": {"max_seq_length": None}}, config: {"/model_max_length": 14}}
    yield "max_seq_length_over_model_max_length", {sentence: {"": {"max_seq_length": 20}}, config: {"/model_max_length": 14}}
    yield "sentence_albert_config", {"sentence_albert_config.json": {"": {"max_seq_length": 9}}}
    yield "model_max_length", {config: {"/model_max_length": 10}}
    yield "model_max_length_huge", {config: {"/model_max_length": 1e30}}
    yield "truncation_left", {config: {"/truncation_side": "left", "/model_max_length": 10}}
    cut = {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    yield "truncation_of_pipeline", {fast: {"/truncation": cut}, config: {"/model_max_length": 11}}
    yield "truncation_right_over_pipeline", {fast: {"/truncation": cut},
                                             config: {"/model_max_length": 11, "/truncation_side": "right"}}
    pad = {"strategy": {"Fixed": 30}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
           "pad_token": "[PAD]"}
    yield "padding_of_pipeline", {fast: {"/padding": pad}}
    cased = {"/normalizer/lowercase": False}
    yield "cased", {fast: cased}
    yield "cased_lowercased_first", {fast: cased, sentence: {"": {"max_seq_length": 48, "do_lower_case": True}}}
    yield "class_does_not_override", {fast: cased, config: {"/do_lower_case": True, "/strip_accents": True}}
    yield "bert_class_overrides", {fast: cased, config: {"/tokenizer_class": "BertTokenizer", "/do_lower_case": True}}
    yield "bert_class_keeps_accents", {config: {"/tokenizer_class": "BertTokenizer", "/do_lower_case": True,
                                                "/strip_accents": False}}
    yield "vocab_txt", slow
    yield "vocab_txt_cased", {**vocab, config: {"": {"tokenizer_class": "BertTokenizer", "do_lower_case": False}}}
    yield "vocab_txt_chinese", {**vocab, config: {"": {"tokenizer_class": "BertTokenizer", "do_lower_case": True,
                                                       "tokenize_chinese_chars": False}}}
    yield "vocab_txt_repeated", {**slow, "vocab.txt": {"": "\n".join(PIECES + ["river", "cat"]) + "\n"}}
    yield "class_of_config_json", {**vocab, config: {"": {"do_lower_case": True}},
                                   "config.json": {"/tokenizer_class": "BertTokenizer"}}
    yield "added_tokens_json", {**slow, "added_tokens.json": {"": {"newtok": first, "<ent>": first + 1}}}
    yield "added_tokens_json_special", {**slow, "added_tokens.json": {"": {"newtok": first, "<ent>": first + 1}},
                                        config: {"": {**slow[config][""], "additional_special_tokens": ["newtok"]}}}
    yield "extra_special_tokens", {**slow, config: {"": {**slow[config][""], "extra_special_tokens": ["<ent>"]}}}
    yield "decoder", {**slow, config: {"": {**slow[config][""], "added_tokens_decoder": {
        str(first): token("newtok", single_word=True), str(first + 1): token("<ent>", lstrip=True, rstrip=True)}}}}
    yield "decoder_special", {config: {"/added_tokens_decoder": {
        str(first): token("newtok", special=True, normalized=False), str(first + 1): token("<ent>")}}}
    mask = token("[MASK]", special=True, normalized=False, lstrip=True)
    yield "decoder_overrides", {config: {"/added_tokens_decoder": {"4": mask, str(first): token("newtok")}}}
    yield "decoder_over_added_tokens_json", {config: {"/added_tokens_decoder": {str(first): token("<ent>")}},
                                             "added_tokens.json": {"": {"newtok": first}}}
    yield "added_tokens_json_beside_pipeline", {"added_tokens.json": {"": {"newtok": first, "<ent>": first + 1}}}
    yield "special_tokens_map", {**slow, map_: {"": {"cls_token": "<s>", "sep_token": {"content": "</s>"},
                                                     "pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}}}
    yield "special_tokens_of_config", {**slow, config: {"": {**slow[config][""], "cls_token": "<s>", "sep_token": "</s>"}}}
    yield "special_tokens_map_over_config", {
        **slow, config: {"": {**slow[config][""], "cls_token": "[SEP]"}}, map_: {"": {"cls_token": "<s>"}}}
    yield "post_processor_none", {fast: {"/post_processor": None}}
    yield "post_processor_xlmr", {fast: {"/post_processor": xlmr}}
    yield "post_processor_bert", {fast: {"/post_processor": bert}}
    yield "post_processor_roberta", {fast: {"/post_processor": roberta}}
    yield "post_processor_byte_level", {fast: {"/post_processor": byte_level}}
    yield "post_processor_sequence", {fast: {"/post_processor": {"type": "Sequence", "processors": [byte_level, xlmr]}}}
    yield "post_processor_no_sep", {fast: {"/post_processor": template([special("[CLS]"), part("A")], [
        special("[CLS]"), part("A"), part("B", 1)])}}
    yield "no_segments", {config: {"/model_input_names": ["input_ids", "attention_mask"]}}
    yield "normalizer_sequence", {fast: {"/normalizer": norm}}
    yield "normalizer_none", {fast: {"/normalizer": None}}
    yield "pre_tokenizer_sequence", {fast: {"/pre_tokenizer": split}}
    yield "unk_token", {fast: {"/model/unk_token": "[MASK]"}}
    yield "max_input_chars_per_word", {fast: {"/model/max_input_chars_per_word": 4}}
    yield "continuing_subword_prefix", {fast: {"/model/continuing_subword_prefix": "x"}}
    model = {"type": "WordLevel", "vocab": {piece: at for at, piece in enumerate(PIECES)}, "unk_token": "[UNK]"}
    yield "word_level", {fast: {"/model": model}}
    for name in ["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python", "relu"]:
        yield f"hidden_act_{name}", {"config.json": {"/hidden_act": name}}
    yield "layer_norm_eps", {"config.json": {"/layer_norm_eps": 0.5}}
    yield "num_attention_heads", {"config.json": {"/num_attention_heads": 2}}
    yield "num_hidden_layers", {"config.json": {"/num_hidden_layers": 1}}


def main():
    base()
    lines = []
    for name, files in cases():
        with tempfile.TemporaryDirectory() as folder:
            folder = shutil.copytree(BASE, os.path.join(folder, "model"))
            changed(folder, copy.deepcopy(files))
            model = SentenceTransformer(folder, device="cpu")
            vectors = [[round(float(x), 6) for x in model.encode([text])[0]] for text in TEXTS if text]
            line = {"case": name, "files": files, "vectors": vectors}
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            line["pairs"] = []
            for first, second in PAIRS:
                pair = tokenizer(first, second)
                line["pairs"].append([pair["input_ids"], pair.get("token_type_ids", [0] * len(pair["input_ids"]))])
            lines.append(line)
    with open(f"{OUT}/cases.jsonl", "w", encoding="utf-8") as file:
        file.write(json.dumps({"texts": TEXTS, "pairs": PAIRS}, ensure_ascii=False) + "\n")
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    print(len(lines), "cases")


if __name__ == "__main__":
    main()
