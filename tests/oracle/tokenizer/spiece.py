"""Golden ids for SentencePiece models, tokenizer.json and vocab.txt. See README.md.

    spiece.py train  TEXT SIZE MODEL    train a spiece.model with the flags of the released vocabularies
    spiece.py golden MODEL TEXT FOLDER  write every golden file for MODEL; prose is taken from TEXT
    spiece.py variants TEXT FOLDER      the same for small models with SentencePiece's other options, a folder each
    spiece.py small  TEXT FOLDER        the small set that is checked in: model, ids and a BERT vocabulary
    spiece.py exported FOLDER TEXT IDS  what we wrote to FOLDER, by AutoTokenizer, against our ids of TEXT (a line each)
    spiece.py speed  MODEL TEXT         MB/s of SentencePiece on the first 5 MB of TEXT, one thread

Python 3.11, sentencepiece 0.2.1, transformers 4.46.3, tokenizers 0.20.3 (requirements-models.txt).
"""

import json
import os
import random
import sys
import time
import unicodedata

import sentencepiece
from released import TRAINING

MARK = "\u2581"


def preprocess(text, lower=True, keep_accents=False):
    """Google's preprocess_text."""
    text = " ".join(text.split())
    if not keep_accents:
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return text.lower() if lower else text


def google_ids(model, text, **how):
    """Google's pipeline with the digit-comma rule as it was meant.

    Ids are SentencePiece's own. Google looks texts of pieces up again, which differs only where a run of unknown
    characters happens to be the name of a control piece, as in `[MASK]` typed to a vocabulary without capitals.
    """
    ids = []
    for found in model.encode(preprocess(text, **how), out_type="immutable_proto").pieces:
        piece = found.piece
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            number = model.encode(piece[:-1].replace(MARK, ""), out_type=str)
            if piece[0] != MARK and number[0][0] == MARK:
                number = number[1:] if number[0] == MARK else [number[0][1:], *number[1:]]
            ids += [model.piece_to_id(part) for part in [*number, ","]]
        else:
            ids.append(found.id)
    return ids


def train(text, size, model):
    with open(text, encoding="utf-8") as file:
        lines = [preprocess(line) for line in file]
    with open(model + ".text", "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines if line)
    sentencepiece.SentencePieceTrainer.train(
        input=model + ".text",
        model_prefix=model.removesuffix(".model"),
        vocab_size=int(size),
        **TRAINING,
        num_threads=1,
    )
    os.remove(model + ".text")


FIXED = [
    "",
    " ",
    "   \t  ",
    "\n",
    "\u200b",
    "\u2581",
    "a\u2581b \u2581\u2581 c",
    "This is a test",
    "I was born in 92000, and this is falsé.",
    "Hello, my dog is cute",
    "The population was 1,234,567, in 2012/2013, wow!",
    "naïve café Ångström ﬁne ½ ²",
    "$5.00-£6 – €7 (ok).",
    "don't can't",
    "ALBERT: A Lite BERT",
    "日本 αβγ 😀",
    "  multiple   spaces\tand\nnewlines ",
    "The quick brown fox jumps over the lazy dog.",
    "[MASK] [CLS] <unk> <pad> [SEP]",
    "``quoted'' \"quoted\" “quoted” ‘quoted’ «quoted»",
    "ΟΔΥΣΣΕΥΣ aΣ AΣ. Σ ΑΣΑ İstanbul ẞ ǅ",
    "¨a ´ ¯ ﷺ ﷽ ㎏ ㍿ Ⅷ ① ② ⑩, ½, ٣, १२, 2², 5,",
    "각한글 한글 アイウ ｱｲｳ がぎ ﾞ",
    "a\u0301\u0327 e\u20dd n\u0488 कि की നി",
    "zero\u200bwidth\u200cjoin\u200der\u200e\u200f\ufeff\u2060word",
    "control\u0000\u0001\u0008\u000b\u000c\u001b\u001c\u001f\u007f\u0085\u008f\u009f.",
    "\u00a0nb\u00a0sp \u2003em \u3000wide \u2028ls \u2029ps \u1680og \u180emvs",
    "soft\u00adhyphen non\u2011breaking \u2012 \u2013 \u2014 \u2015 \u2212",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 ☺️ ☺",
    "\ufffd \ue000 \U000f0000 \U0010ffff \ufdd0 \uffff",
    "1,2,3,45,678, 9, 10,11 1,000,000.50, x1, x2010, 2010,x 7,,8",
    "fn main() { let x: Vec<u32> = (0..10).map(|i| i * 2).collect(); println!(\"{x:?}\"); }",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * c[i]; } // sum\t/* x */ #define F(x) ((x)*(x))",
    "https://example.com/a/b?c=d&e=f#g user@example.org C:\\dir\\file.txt ~/.bashrc --flag=value",
]


def random_character(draw):
    while True:
        kind = draw.random()
        if kind < 0.25:
            c = draw.randrange(0x20, 0x7F)
        elif kind < 0.3:
            c = draw.randrange(0, 0x20)
        elif kind < 0.55:
            c = draw.randrange(0x80, 0x600)
        elif kind < 0.65:
            c = draw.choice([0x2000, 0x2010, 0x2020, 0x2060, 0x3000, 0xFE00, 0xFF00]) + draw.randrange(16)
        elif kind < 0.9:
            c = draw.randrange(0x600, 0x10000)
        else:
            c = draw.randrange(0x10000, 0x20000)
        if unicodedata.category(chr(c)) not in ("Cn", "Cs"):
            return chr(c)


def varied_lines(text, count, seed=1):
    """Lines of every kind, always the same ones."""
    draw = random.Random(seed)
    with open(text, encoding="utf-8") as file:
        prose = [line.rstrip("\n") for line in file if len(line) > 20]
    words = " ".join(draw.sample(prose, 300)).split()
    accents = "\u0300\u0301\u0302\u0303\u0308\u030a\u0327\u0328"
    identifiers = ["i", "index", "fooBar", "MAX_LEN", "self", "x2", "std::vec", "np.array", "__init__"]

    def number():
        return ",".join(str(draw.randrange(10 ** draw.randrange(1, 7))) for _ in range(draw.randrange(1, 5)))

    kinds = {
        "prose": lambda: draw.choice(prose),
        "words": lambda: " ".join(draw.choice(words) for _ in range(draw.randrange(1, 30))),
        "code": lambda: "    " * draw.randrange(3)
        + draw.choice(["if ({}) {{ {} }}", "{} = {};", "def {}(self, {}):", "{}[{}] += 1", "<a href=\"{}\">{}</a>"]).format(
            draw.choice(identifiers), draw.choice(identifiers)
        ),
        "digits": lambda: " ".join(draw.choice([number(), number() + ",", draw.choice(words)]) for _ in range(8)),
        "quotes": lambda: draw.choice(["“{}”", "``{}''", "'{}'", '"{}"', "«{}», ‘{}’"]).replace("{}", draw.choice(words)),
        "money": lambda: f"£{number()} – €{number()}-{number()} (${number()}).",
        "accents": lambda: "".join(
            c + draw.choice(accents) if c.isalpha() and draw.random() < 0.3 else c for c in draw.choice(prose)[:80]
        ),
        "composed": lambda: unicodedata.normalize(
            "NFC", "".join(c + draw.choice(accents) if c.isalpha() else c for c in draw.choice(prose)[:60])
        ),
        "cjk": lambda: "".join(chr(draw.choice([0x4E00, 0x3040, 0xAC00]) + draw.randrange(80)) for _ in range(draw.randrange(1, 30))),
        "emoji": lambda: draw.choice(words) + "".join(chr(0x1F600 + draw.randrange(64)) for _ in range(draw.randrange(1, 6))),
        "invisible": lambda: "".join(c + draw.choice(["", "", "\u200b", "\u200d", "\u00ad", "\x01", "\x7f"]) for c in draw.choice(prose)[:60]),
        "random": lambda: "".join(random_character(draw) for _ in range(draw.randrange(1, 60))),
        "spaces": lambda: " " * draw.randrange(8) + draw.choice(["", "\t", "x", "\u3000"]) + " " * draw.randrange(8),
        "upper": lambda: draw.choice(prose).upper(),
        "joined": lambda: "".join(draw.choice(words) for _ in range(draw.randrange(2, 12))),
    }
    names = list(kinds)
    return FIXED + [kinds[names[i % len(names)]]() for i in range(count - len(FIXED))]


def long_lines(text, seed=2):
    """100 kB in one line: prose, one word without spaces, random characters."""
    draw = random.Random(seed)
    with open(text, encoding="utf-8") as file:
        prose = file.read(150_000).replace("\n", " ")
    return [prose[:100_000], prose[:100_000].replace(" ", ""), "".join(random_character(draw) for _ in range(40_000))]


def write_lines(path, lines, ids_of):
    with open(path, "w", encoding="utf-8") as file:
        for line in lines:
            row = {"text": line, "ids": ids_of(line)}
            file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{path}: {len(lines)} lines")


def golden(model_path, text, folder):
    from transformers import AlbertTokenizerFast

    os.makedirs(folder, exist_ok=True)
    model = sentencepiece.SentencePieceProcessor(model_file=model_path)
    with open(model_path, "rb") as source, open(os.path.join(folder, "spiece.model"), "wb") as copy:
        copy.write(source.read())
    lines = varied_lines(text, 8000) + long_lines(text)
    write_lines(os.path.join(folder, "google.jsonl"), lines, lambda line: google_ids(model, line))
    cased = lambda line: google_ids(model, line, lower=False, keep_accents=True)
    write_lines(os.path.join(folder, "google_cased.jsonl"), lines, cased)
    fast = AlbertTokenizerFast(vocab_file=model_path)
    fast.backend_tokenizer.save(os.path.join(folder, "tokenizer.json"))
    encode = lambda line: fast(line, add_special_tokens=False)["input_ids"]
    write_lines(os.path.join(folder, "fast.jsonl"), lines, encode)


VARIANTS = {
    "byte_fallback": {"byte_fallback": True, "vocab_size": 1000},
    "no_dummy_prefix": {"add_dummy_prefix": False},
    "keep_spaces": {"remove_extra_whitespaces": False},
    "suffix": {"treat_whitespace_as_suffix": True},
    "across_words": {"split_by_whitespace": False},
    "identity": {"normalization_rule_name": "identity"},
    "identity_keep_spaces": {
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
    },
    "case_folding": {"normalization_rule_name": "nmt_nfkc_cf"},
    "long_symbols": {"user_defined_symbols": ["(", ".", "<é>", "ab", "日本", "…x"]},
}


def variants(text, folder):
    with open(text, encoding="utf-8") as file:
        sentences = [line for line in map(preprocess, list(file)[:4000]) if line]
    lines = varied_lines(text, 2500) + long_lines(text)
    usual = {"vocab_size": 600, "pad_id": 0, "unk_id": 1, "eos_id": -1, "bos_id": -1, "model_type": "unigram"}
    usual |= {"control_symbols": ["[CLS]", "[SEP]", "[MASK]"], "minloglevel": 2, "character_coverage": 0.999}
    for name, options in VARIANTS.items():
        here = os.path.join(folder, name)
        os.makedirs(here, exist_ok=True)
        model_path = os.path.join(here, "spiece.model")
        with open(model_path, "wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences), model_writer=file, **(usual | options)
            )
        model = sentencepiece.SentencePieceProcessor(model_file=model_path)
        write_lines(os.path.join(here, "google.jsonl"), lines, lambda line: google_ids(model, line))
        cased = lambda line: google_ids(model, line, lower=False, keep_accents=True)
        write_lines(os.path.join(here, "google_cased.jsonl"), lines, cased)


def bert_vocabulary(text):
    """Special pieces, characters and frequent words and endings: enough for every path of WordPiece."""
    with open(text, encoding="utf-8") as file:
        words = [word for line in list(file)[:4000] for word in preprocess(line).split() if word.isalpha()]
    counts = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:150]
    letters = [chr(c) for c in range(0x21, 0x7F) if not chr(c).isupper()]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *"日本語é£€–", *(f"##{c}" for c in letters if c.isalnum())]
    pieces += ["##ing", "##ed", "##er", "##s2", "##ion", *(word for word in frequent if len(word) > 1)]
    return list(dict.fromkeys(pieces))


def small(text, folder):
    from transformers import BertTokenizerFast

    os.makedirs(folder, exist_ok=True)
    model_path = os.path.join(folder, "spiece.model")
    train(text, 1000, model_path)
    os.remove(model_path.removesuffix(".model") + ".vocab")
    model = sentencepiece.SentencePieceProcessor(model_file=model_path)
    lines = [line for line in varied_lines(text, 230) if len(line) < 180]
    write_lines(os.path.join(folder, "google.jsonl"), lines, lambda line: google_ids(model, line))
    vocab = os.path.join(folder, "vocab.txt")
    with open(vocab, "w", encoding="utf-8") as file:
        file.writelines(piece + "\n" for piece in bert_vocabulary(text))
    bert = BertTokenizerFast(vocab_file=vocab)
    lines = FIXED + ["x" * 100, "x" * 101, "testing THE worked 日本語 unionized s2s2"]
    write_lines(os.path.join(folder, "bert.jsonl"), lines, lambda line: bert(line, add_special_tokens=False)["input_ids"])


def exported(folder, text, ids_file):
    """A folder with tokenizer.json, config.json and tokenizer_config.json, and one with a spiece.model, if it is there."""
    from transformers import AutoTokenizer

    with open(text, encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")
    with open(ids_file, encoding="utf-8") as file:
        ours = [[int(id) for id in line.split()] for line in file.read().split("\n")]
    auto = AutoTokenizer.from_pretrained(folder)
    print(type(auto).__name__, len(auto))
    wrong = sum(auto(line, add_special_tokens=False)["input_ids"] != ids for line, ids in zip(lines, ours))
    print(f"AutoTokenizer: {wrong} of {len(lines)} lines differ")
    model_path = os.path.join(folder, "spiece.model")
    if os.path.exists(model_path):
        model = sentencepiece.SentencePieceProcessor(model_file=model_path)
        wrong_model = sum(google_ids(model, line) != ids for line, ids in zip(lines, ours))
        print(f"SentencePiece: {wrong_model} of {len(lines)} lines differ")
        wrong += wrong_model
    return min(wrong, 1)


def speed(model_path, text):
    model = sentencepiece.SentencePieceProcessor(model_file=model_path)
    with open(text, "rb") as file:
        data = file.read(5_000_000).decode("utf-8", "ignore")
    lines = [preprocess(line) for line in data.split("\n")]
    size = sum(len(line.encode()) for line in lines)
    best = min(timed(lambda: model.encode(lines, num_threads=1)) for _ in range(3))
    print(f"sentencepiece, text already preprocessed: {size / 1e6 / best:.1f} MB/s")


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    commands = {"train": train, "golden": golden, "variants": variants, "small": small, "exported": exported, "speed": speed}
    sys.exit(commands[sys.argv[1]](*sys.argv[2:]))
