"""The flags that the released vocabularies were trained with, for every script that trains one."""

SYMBOLS = ["(", ")", '"', "-", ".", "–", "£", "€"]

TRAINING = {
    "pad_id": 0,
    "unk_id": 1,
    "eos_id": -1,
    "bos_id": -1,
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
    "user_defined_symbols": SYMBOLS,
    "shuffle_input_sentence": True,
    "input_sentence_size": 10_000_000,
    "character_coverage": 0.99995,
    "model_type": "unigram",
    "minloglevel": 2,
}
