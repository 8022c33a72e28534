//! Files built to be expensive: every reader of untrusted bytes stays within `engine::io::limits`, and its time is linear in
//! the size of the file.
//!
//! Each case is built at two sizes; it may be accepted or rejected within the memory bound, and an error has one line. All
//! examples of a task's file are kept in memory.

use std::fmt::Display;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use albert::checkpoint::ModelFolder;
use albert::config::AlbertConfig;
use albert::data::{Dataset, Vocabulary};
use albert::tokenizer::{Cleaning, SpecialIds, Tokenizer, WordPiece};
use albert_tasks::files::{
    Example, GlueTask, Problem, Purpose, Reader, Split, TagColumns, TaskError, TextColumns, labels_of_tagged,
    labels_of_texts, read_choices, read_race_at, read_squad, read_tagged, read_texts,
};
use albert_tests::allocator::{Counting, live_and_peak, reset_peak};
use albert_tests::readers;
use engine::io::{Safetensors, limits, proto::write_varint};

#[global_allocator]
static ALLOCATOR: Counting = Counting;
/// The allocator counts all threads: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const SPECIAL: [&str; 5] = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"];

/// Reads the file of `make(n)` for a small and a large n; returns the error for the large one, if any.
fn check<T, E: Display>(
    what: &str,
    n: usize,
    make: impl Fn(usize) -> Vec<u8>,
    read: impl Fn(&[u8]) -> Result<T, E>,
) -> Option<String> {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let sizes = [n / 16, n].map(|n| {
        let bytes = make(n);
        reset_peak();
        let (before, _) = live_and_peak();
        let start = Instant::now();
        let result = read(&bytes);
        let (time, used) = (start.elapsed(), live_and_peak().1.saturating_sub(before));
        let error = result.err().map(|error| error.to_string());
        let shown: String = error.as_deref().unwrap_or("read").chars().take(160).collect();
        println!("{what}: {} bytes, {used} of memory, {time:.2?}: {shown}", bytes.len());
        let bound = limits::memory_for(bytes.len());
        assert!(used <= bound, "{what}: {used} bytes of memory for a file of {}", bytes.len());
        // For a loaded machine without optimization: 10 s per MiB is far from quadratic.
        let most = Duration::from_secs(10 + 10 * (bytes.len() as u64 >> 20));
        assert!(time < most, "{what}: {time:.2?} for {} bytes", bytes.len());
        assert!(!shown.contains('\n'), "{what}: {shown}");
        error
    });
    let [_, large] = sizes;
    large
}

/// `before`, `part` n times, `after`.
fn again(before: &str, part: &str, after: &str) -> impl Fn(usize) -> Vec<u8> {
    move |n| [before, &part.repeat(n), after].concat().into_bytes()
}

/// `before`, `part` of 0, 1, .. to n - 1, `after`.
fn each(before: &str, part: impl Fn(usize) -> String, after: &str) -> impl Fn(usize) -> Vec<u8> {
    move |n| format!("{before}{}{after}", (0..n).map(&part).collect::<String>()).into_bytes()
}

fn varints(numbers: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    numbers.iter().for_each(|&number| write_varint(&mut out, number));
    out
}

fn json(bytes: &[u8]) -> Result<Tokenizer, String> {
    let text = std::str::from_utf8(bytes).expect("text");
    Tokenizer::from_json(text, Path::new("t.json")).map_err(|error| error.to_string())
}

/// A `tokenizer.json` for a model.
fn foreign(model: &str) -> Vec<u8> {
    format!("{{\"version\": \"1.0\", \"added_tokens\": [], \"model\": {model}}}").into_bytes()
}

fn word_level(vocab: &str) -> String {
    format!("{{\"type\":\"WordLevel\",\"unk_token\":\"<unk>\",\"vocab\":{vocab}}}")
}

fn unigram(pieces: impl Iterator<Item = String>) -> String {
    let vocab: Vec<String> =
        SPECIAL.into_iter().map(str::to_owned).chain(pieces).map(|p| format!("[\"{p}\",-1]")).collect();
    format!("{{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[{}]}}", vocab.join(","))
}

fn vocab(pieces: impl Iterator<Item = String>) -> String {
    let all = SPECIAL.into_iter().map(str::to_owned).chain(pieces);
    let entries: Vec<String> = all.enumerate().map(|(id, piece)| format!("\"{piece}\":{id}")).collect();
    format!("{{{}}}", entries.join(","))
}

#[test]
fn tokenizer_json() {
    check("dense lists", 1 << 21, again("{\"a\":[", "[],", "0]}"), json);
    check("deep lists", 1 << 22, again("", "[", ""), json);
    check("deep objects", 1 << 22, again("", "{\"a\":", ""), json);
    check("one key again and again", 1 << 20, again("{", "\"a\":0,", "\"b\":0}"), json);
    check("a long string", 1 << 24, again("{\"a\":\"", "x", "\"}"), json);
    let short = |n| (0..n).map(|at| format!("{at:x}"));
    let long = |n| (0..n).map(|at| format!("{at:04x}{}", "y".repeat(1000)));
    check("Unigram of short pieces", 1 << 17, |n| foreign(&unigram(short(n))), json);
    check("Unigram of long pieces", 1 << 11, |n| foreign(&unigram(long(n))), json);
    check("WordLevel of short words", 1 << 17, |n| foreign(&word_level(&vocab(short(n)))), json);
    let ids = |n| format!("{{\"<pad>\":0,\"<unk>\":1,\"[CLS]\":2,\"[SEP]\":3,\"[MASK]\":{n}}}");
    check("an id of 2^31", 1 << 31, |n| foreign(&word_level(&ids(n))), json);
    let bpe = |n: usize| {
        let merges: Vec<String> = (16..n).map(|at| format!("\"{:x} {:x}\"", at / 16, at % 16)).collect();
        let (words, merges) = (vocab(short(n)), merges.join(","));
        foreign(&format!("{{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"vocab\":{words},\"merges\":[{merges}]}}"))
    };
    check("BPE of many merges", 1 << 16, bpe, json);
    let added = |n: usize| {
        let token = |at: usize| {
            format!(
                "{{\"id\":{},\"content\":\"<{at}>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\
                 \"normalized\":{},\"special\":{}}}",
                5 + at,
                at.is_multiple_of(2),
                at.is_multiple_of(3)
            )
        };
        let tokens: Vec<String> = (0..n).map(token).collect();
        let model = word_level(&vocab(std::iter::empty()));
        format!("{{\"version\":\"1.0\",\"added_tokens\":[{}],\"model\":{model}}}", tokens.join(",")).into_bytes()
    };
    check("many added tokens", 1 << 14, added, json);
}

#[test]
fn spiece_model() {
    let read = |bytes: &[u8]| Tokenizer::from_spiece(bytes, Cleaning::default(), Path::new("x.model"));
    let piece = |text: &str, kind: u8| {
        let inner = [&[0x0a, text.len() as u8], text.as_bytes(), &[0x15, 0, 0, 0x80, 0xbf, 0x18, kind]].concat();
        [&[0x0a, inner.len() as u8][..], &inner].concat()
    };
    let special = || SPECIAL.map(|text| piece(text, if text == "<unk>" { 2 } else { 3 })).concat();
    let pieces = |n, kind| [special(), (0..n).flat_map(|at| piece(&format!("{at:x}"), kind)).collect()].concat();
    check("short pieces", 1 << 17, |n| pieces(n, 1), read);
    check("symbols", 1 << 17, |n| pieces(n, 4), read);
    check("unknown fields", 1 << 20, |n| [special(), [0x50, 0].repeat(n)].concat(), read);
    check("empty pieces", 1 << 20, |n| [0x0a, 0].repeat(n), read);
    // Prefixes of one long number, each with a comma: the digit-comma rule splits each.
    let digits = |n: usize| {
        let text = |at: usize| format!("{},", "1".repeat(1 + at % 120));
        [special(), (0..n.min(120)).flat_map(|at| piece(&text(at), 1)).collect()].concat()
    };
    check("digits and commas", 120, digits, read);
    let normalizer = |n: usize| {
        let mut blob = (4 * n as u32).to_le_bytes().to_vec();
        blob.extend((0..n).flat_map(|at| ((at as u32 & 0xff) | 1 << 10).to_le_bytes()));
        blob.push(0);
        let field = [&[2 << 3 | 2], &varints(&[blob.len() as u64])[..], &blob].concat();
        [&special()[..], &[0x1a], &varints(&[field.len() as u64]), &field].concat()
    };
    check("a charsmap of one block", 1 << 18, normalizer, read);
}

#[test]
fn vocab_txt_and_config_json() {
    let read = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).expect("text");
        Tokenizer::from_wordpiece(text, WordPiece::default(), Path::new("vocab.txt"))
    };
    let special = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]";
    check("short words", 1 << 16, each(special, |at| format!("\n{at:x}"), ""), read);
    check("empty lines", 1 << 22, again("", "\n", ""), read);

    let config = |bytes: &[u8]| AlbertConfig::from_hf_json(std::str::from_utf8(bytes).expect("text"));
    check("a dense config", 1 << 21, again("{\"a\":[", "0,", "0]}"), config);
    check("a deep config", 1 << 22, again("", "[", ""), config);
    check("many keys", 1 << 18, each("{", |at| format!("\"{at:x}\":0,"), "\"z\":0}"), config);
}

/// Reads a file of `bytes` in a new folder; an error without the folder's name.
fn in_folder<T, E: Display>(name: &str, bytes: &[u8], read: impl FnOnce(&Path) -> Result<T, E>) -> Result<T, String> {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(name), bytes).expect("writable");
    let place = folder.path().display().to_string();
    read(folder.path()).map_err(|error| error.to_string().replace(&place, ""))
}

#[test]
fn safetensors() {
    let read = |bytes: &[u8]| {
        in_folder("m.safetensors", bytes, |folder| Safetensors::open(folder.join("m.safetensors")).map(drop))
    };
    let framed = |entries: String, data: usize| {
        let header = format!("{{{entries}}}");
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
    };
    let tensors = |n: usize, entry: &str| {
        let entries: Vec<String> = (0..n).map(|at| format!("\"{at:x}\":{entry}")).collect();
        entries.join(",")
    };
    let of = |bytes: usize| format!("{{\"dtype\":\"U8\",\"shape\":[{bytes}],\"data_offsets\":[0,{bytes}]}}");
    check("many empty tensors", 1 << 16, |n| framed(tensors(n, &of(0)), 0), read);
    check("tensors over each other", 1 << 16, |n| framed(tensors(n, &of(1)), 1), read);
    let rank = |n| format!("\"a\":{{\"dtype\":\"U8\",\"shape\":[{}0],\"data_offsets\":[0,0]}}", "0,".repeat(n));
    check("a shape of many dimensions", 1 << 20, |n| framed(rank(n), 0), read);
    check("deep nesting", 1 << 20, |n| framed(format!("\"a\":{}", "[".repeat(n)), 0), read);
    let metadata = |n| format!("\"__metadata__\":{{{}}}", tensors(n, "\"\""));
    check("much metadata", 1 << 17, |n| framed(metadata(n), 0), read);
}

#[test]
fn tensorflow_index() {
    let index = |entries: Vec<u8>| readers::tensorflow_index(&entries);
    let read = |bytes: &[u8]| {
        in_folder("model.ckpt.index", bytes, |folder| {
            let config = AlbertConfig::preset("tiny").expect("a preset").to_hf_json("AlbertModel");
            std::fs::write(folder.join("config.json"), config).expect("writable");
            ModelFolder::open(folder).map(drop)
        })
    };
    let header = || vec![0u8, 0, 2, 8, 1];
    // Keys that grow by a byte each: their total length is quadratic.
    let growing = |n: usize| {
        let entry = |at: usize| [varints(&[at as u64, 1, 4]), vec![b'a', 8, 1, 0x28, 0]].concat();
        index([header(), (0..n).flat_map(entry).collect()].concat())
    };
    check("growing keys", 1 << 14, growing, read);
    let tiny = |n: usize| {
        let entry = |at: usize| {
            [varints(&[0, 3, 0]), vec![b'a' + (at >> 12) as u8, (at >> 6 & 63) as u8, (at & 63) as u8]].concat()
        };
        index([header(), (0..n).flat_map(entry).collect()].concat())
    };
    check("many entries without a value", 1 << 16, tiny, read);
    check("restart points", 1 << 10, |n| index(vec![0xff; n]), read);
}

#[test]
fn dataset_json() {
    let specials = SpecialIds { pad: 0, unk: 1, cls: 2, sep: 3, mask: 4 };
    let vocabulary = Vocabulary::new(vec![true; 9], specials, b"").expect("a vocabulary");
    let read = |bytes: &[u8]| in_folder("dataset.json", bytes, |folder| Dataset::open(folder, &vocabulary).map(drop));
    check("a dense index", 1 << 20, again("{\"sources\":[", "{},", ""), read);
    check("a deep index", 1 << 20, again("", "{\"train\":", ""), read);
    check("many places", 1 << 20, again("{\"report\":{\"cut_places\":[", "\"\",", ""), read);
    check("nothing", 16, |_| Vec::new(), read);
}

/// Approximate size of a file of examples: 64 times as much is well above the fixed 64 MiB.
const SIZE: usize = 4 << 20;

/// True if a file is read without an error; all its examples are kept in memory.
type Read = fn(&Path) -> Result<usize, TaskError>;

fn count<E: Example>(reader: Reader<E>) -> Result<usize, TaskError> {
    reader.read_all().map(|(examples, _)| examples.len())
}

fn texts(path: &Path) -> Result<usize, TaskError> {
    let labels = vec!["x".to_owned(), "y".to_owned()];
    count(read_texts(path, &TextColumns::default(), &Problem::Classes { labels }, Purpose::Training)?)
}

fn distinct_labels(path: &Path) -> Result<usize, TaskError> {
    let labels = labels_of_texts(path, &TextColumns::default())?;
    count(read_texts(path, &TextColumns::default(), &Problem::Classes { labels }, Purpose::Training)?)
}

fn tagged(path: &Path) -> Result<usize, TaskError> {
    let labels = labels_of_tagged(path, TagColumns::default())?;
    count(read_tagged(path, TagColumns::default(), &labels, Purpose::Training)?)
}

fn qqp(path: &Path) -> Result<usize, TaskError> {
    count(GlueTask::Qqp.read_file(path, Split::Train, Purpose::Training)?)
}

fn squad(path: &Path) -> Result<usize, TaskError> {
    count(read_squad(path, true, Purpose::Training)?)
}

fn race(path: &Path) -> Result<usize, TaskError> {
    count(read_race_at(path, Purpose::Training)?)
}

fn choices(path: &Path) -> Result<usize, TaskError> {
    count(read_choices(path, Purpose::Training)?)
}

/// Name, start, repeated part (with its number for @), end, reader, true if accepted.
type File<'a> = (&'a str, &'a str, &'a str, &'a str, Read, bool);

fn check_examples(files: &[File<'_>]) {
    for &(name, before, part, after, read, is_read) in files {
        let n = SIZE / (part.len() + if part.contains('@') { 5 } else { 0 });
        let make = each(before, |at| part.replace('@', &at.to_string()), after);
        let error = check(name, n, make, |bytes| in_folder(name, bytes, |folder| read(&folder.join(name))));
        assert_eq!(error.is_none(), is_read, "{name}: {error:?}");
        let length = error.map_or(0, |error| error.len());
        assert!(length < 2000, "{name}: a message of {length} bytes");
    }
}

#[test]
fn tables_of_examples() {
    const QQP: &str = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n";
    check_examples(&[
        ("columns.tsv", "text\tlabel", "\t@", "\na\tx\n", texts, false),
        ("same-columns.tsv", "text\tlabel", "\t", "\n", texts, false),
        ("rows.tsv", "text\tlabel\n", "a\tx\n", "", texts, true),
        ("wide-row.tsv", "text\tlabel\n", "\t", "\n", texts, false),
        ("line.tsv", "text\tlabel\n", "a", "\tx\n", texts, true),
        ("label.tsv", "text\tlabel\na\t", "y", "\n", texts, false),
        ("nul.tsv", "text\tlabel\n\0", "\0", "\tx\n", texts, true),
        ("labels.tsv", "text\tlabel\n", "a\t@\n", "", distinct_labels, true),
        ("ids.tsv", "id\ttext\tlabel\n", "@\ta\tx\n", "", texts, true),
        ("columns.csv", "text,label", ",@", "\na,x\n", texts, false),
        ("same-columns.csv", "text,label", ",", "\n", texts, false),
        ("wide-row.csv", "text,label\n", ",", "\n", texts, false),
        ("quote.csv", "text,label\na,x\n\"", "b,x\n", "", texts, false),
        ("quotes.csv", "text,label\n\"", "\"\"", "\",x\n", texts, true),
        ("array.jsonl", "{\"text\":\"a\",\"label\":\"x\",\"o\":[0", ",0", "]}", texts, true),
        ("keys.jsonl", "{\"text\":\"a\",\"label\":\"x\"", ",\"@\":0", "}", texts, true),
        ("objects.jsonl", "{\"text\":\"a\",\"label\":\"x\",\"o\":[{}", ",{}", "]}", texts, true),
        ("deep.jsonl", "{\"text\":\"a\",\"label\":\"x\",\"o\":", "[", "", texts, false),
        ("deep-text.jsonl", "{\"label\":\"x\",\"text\":", "[", "", texts, false),
        ("wide-text.jsonl", "{\"label\":\"x\",\"text\":[0", ",0", "]}", texts, false),
        ("deep-keys.jsonl", "", "{\"a\":", "", texts, false),
        ("rows.jsonl", "", "{\"text\":\"a\",\"label\":\"x\"}\n", "", texts, true),
        ("fields.conll", "", "a ", "\n", tagged, true),
        ("words.conll", "", "a O\n", "", tagged, true),
        ("sentences.conll", "", "a O\n\n", "", tagged, true),
        ("blank.conll", "", "\n", "", tagged, false),
        ("tags.conll", "", "a @\n", "", tagged, true),
        ("blank.tsv", QQP, "\n", "", qqp, false),
        ("tabs.tsv", QQP, "\t", "\n", qqp, false),
        ("rows.tsv", QQP, "1\t\t\ta\tb\t1\n", "", qqp, false),
    ]);
}

#[test]
fn documents_of_examples() {
    let long = "i".repeat(1 << 20);
    let open = "{\"data\":[{\"paragraphs\":[{\"context\":\"a\",\"qas\":[";
    let one = "{\"id\":-1,\"question\":\"\",\"answers\":[]}";
    let answers = format!("{{\"id\":\"{long}\",\"question\":\"q\",\"answers\":[{{\"text\":\"a\",\"answer_start\":0}}");
    let passage = |rest: &str| format!("{{\"article\":\"a\",\"id\":\"{rest}");
    let options = format!("{long}\",\"answers\":[\"A\"],\"options\":[[\"a\",\"b\",\"c\",\"d\"]],\"questions\":[\"\"");
    let choice = "{\"question\":\"\",\"options\":[\"\",\"\"],\"answer\":0}";
    let paragraph = ",{\"context\":\"\",\"qas\":[]}";
    let end = "]}]}]}";
    check_examples(&[
        (
            "elsewhere.json",
            &format!("{open}{answers}"),
            ",{\"text\":\"b\",\"answer_start\":9}",
            "]}]}]}]}",
            squad,
            true,
        ),
        ("questions.json", &format!("{open}{one}"), &format!(",{}", one.replace("-1", "@")), end, squad, true),
        ("one-id.json", &format!("{open}{one}"), &format!(",{one}"), end, squad, false),
        ("deep-id.json", &format!("{open}{{\"id\":"), "[", end, squad, false),
        ("wide-id.json", &format!("{open}{{\"id\":[0"), ",0", "]]}]}]}", squad, false),
        (
            "paragraphs.json",
            &format!("{{\"data\":[{{\"paragraphs\":[{}", &paragraph[1..]),
            paragraph,
            "]}]}",
            squad,
            false,
        ),
        ("articles.json", "{\"data\":[{\"paragraphs\":[]}", ",{\"paragraphs\":[]}", "]}", squad, false),
        ("before.json", "{\"a\":[0", ",0", "],\"data\":[]}", squad, false),
        ("deep-before.json", "{\"a\":", "[", "", squad, false),
        ("deep.json", "{\"data\":", "[", "", squad, false),
        ("key.json", "{\"", "k", "\":0}", squad, false),
        ("id.txt", &passage(&options), ",\"\"", "]}", race, false),
        (
            "questions.txt",
            &passage("i\",\"answers\":[],\"options\":[],\"questions\":[\"\""),
            ",\"\"",
            "]}",
            race,
            false,
        ),
        ("options.txt", &passage("i\",\"answers\":[],\"questions\":[],\"options\":[[]"), ",[]", "]}", race, false),
        ("answer.jsonl", "{\"question\":\"q\",\"options\":[\"a\",\"b\"],\"answer\":[0", ",0", "]}", choices, false),
        ("options.jsonl", "{\"question\":\"q\",\"answer\":0,\"options\":[\"\"", ",\"\"", "]}", choices, true),
        ("rows.jsonl", "", &format!("{choice}\n"), "", choices, true),
        ("array.json", &format!("[{choice}"), &format!(",{choice}"), "]", choices, true),
    ]);
}
