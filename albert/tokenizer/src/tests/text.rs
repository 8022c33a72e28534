//! Cleaning, and arbitrary text as input of a tokenizer.

use super::*;

/// Words of random syllables, drawn with Zipf's frequencies: text with learnable structure.
pub(crate) fn sample_text(lines: usize, seed: u64) -> Vec<String> {
    let mut draw = Draw(seed);
    let onsets = ["b", "c", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "th", "st", "ch", "br"];
    let rests = ["a", "e", "i", "o", "an", "en", "in", "on", "ar", "er", "al", "ed", "ing", "ous", "y"];
    let mut syllable = || [onsets[draw.below(onsets.len())], rests[draw.below(rests.len())]].concat();
    let words: Vec<String> = (0..3000).map(|rank| (0..1 + rank % 4).map(|_| syllable()).collect()).collect();
    let mut word = || {
        // exp of a uniform number: rank r with probability ~ 1/r.
        let rank = (words.len() as f64).powf(draw.below(1 << 20) as f64 / f64::from(1 << 20));
        let plain = words[rank as usize - 1].clone();
        match draw.below(20) {
            0 => plain + ",",
            1 => format!("({plain})"),
            2 => format!("{},{:03},", draw.below(100), draw.below(1000)),
            3 => plain + "'s",
            _ => plain,
        }
    };
    (0..lines).map(|_| (0..12).map(|_| word()).collect::<Vec<_>>().join(" ") + ".").collect()
}

#[test]
fn cleaning_gives_the_released_results() {
    let cases = [
        ("  Hello,\tWorld \n", "hello, world"),
        ("naïve café Ångström ﬁne ½ ²", "naive cafe angstrom fine 1⁄2 2"),
        ("I was born in 92000, and this is falsé.", "i was born in 92000, and this is false."),
        ("ΟΔΟΣ ΣΑΣ Σ", "οδος σας σ"),
        ("İstanbul ẞ", "istanbul ß"),
        ("a\u{1}b\u{7f}c \u{0} d", "abc d"),
        ("a\u{200b}b\u{feff}c\u{2581}d\u{fffd}e\u{1c}f", "a b c d e f"),
        ("´ ¨a", "a"),
        ("한국어", "한국어"),
        ("\u{3000}ＡＢＣ\u{a0}１２３", "abc 123"),
        ("ก็ เกี", "ก็ เกี"),
        ("", ""),
    ];
    for (text, expected) in cases {
        let cleaned = Cleaning::default().clean(text);
        let expected: String = match text {
            // Decomposed by NFKD, and never composed.
            "한국어" => expected.nfkd().collect(),
            // U+0E47 has class 0 and is kept, like the vowel signs.
            _ => expected.into(),
        };
        assert_eq!(cleaned.text, expected, "text {text:?}");
    }
    let keep = Cleaning { lowercase: false, strip_accents: false, ..Cleaning::default() };
    assert_eq!(keep.clean(" Cafe\u{301}  É ﬁne ").text, "Café É fine");
    let lower = Cleaning { lowercase: true, strip_accents: false, ..Cleaning::default() };
    assert_eq!(lower.clean("CAFE\u{301} ΟΔΟΣ").text, "café οδος");
}

use unicode_normalization::UnicodeNormalization;

/// Random text: ASCII, letters with marks, other scripts, symbols, controls, unusual spaces, arbitrary code points.
fn random_text(draw: &mut Draw, len: usize) -> String {
    let ranges: [(u32, u32); 12] = [
        (0x20, 0x7f),
        (0x61, 0x7b),
        (0, 0x20),
        (0xa0, 0x250),
        (0x300, 0x370),
        (0x370, 0x400),
        (0x900, 0x980),
        (0x2000, 0x2070),
        (0x4e00, 0x4f00),
        (0xac00, 0xad00),
        (0x1f300, 0x1f650),
        (0, 0x110000),
    ];
    let mut one = || {
        let (from, to) = ranges[draw.below(ranges.len())];
        char::from_u32(from + draw.below((to - from) as usize) as u32).unwrap_or(' ')
    };
    (0..len).map(|_| one()).collect()
}

#[test]
fn cleaning_keeps_its_promises_on_any_text() {
    let mut draw = Draw(7);
    for round in 0..2000 {
        let len = draw.below(40);
        let text = random_text(&mut draw, len);
        for cleaning in Cleaning::all() {
            let Cleaning { lowercase, strip_accents, normalization } = cleaning;
            let cleaned = cleaning.clean(&text);
            let case = format!("round {round}, {cleaning:?}, text {text:?}, cleaned {:?}", cleaned.text);
            assert_eq!(cleaned.source.len(), cleaned.text.len(), "{case}");
            assert!(
                !cleaned.text.starts_with(' ') && !cleaned.text.ends_with(' ') && !cleaned.text.contains("  "),
                "{case}"
            );
            assert!(cleaned.text.chars().all(|c| c == ' ' || !cleaning.is_space(c) && !clean::is_dropped(c)), "{case}");
            let in_order = cleaned.source.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1);
            assert!(in_order, "{case}: {:?}", cleaned.source);
            for &(start, end) in &cleaned.source {
                assert!(text.get(start..end).is_some(), "{case}: {start}..{end} cuts a character");
            }
            // Encoding word by word and with offsets must agree.
            let mut words = String::new();
            cleaning.for_each_word(&text, &mut Vec::new(), |word| {
                words.push_str(std::str::from_utf8(word).expect("whole characters"));
            });
            assert_eq!(words.strip_prefix(' ').unwrap_or(""), cleaned.text, "{case}");
            if normalization != Normalization::Released {
                continue;
            }
            // The definition, applied step by step to the whole text.
            let normal: String = if strip_accents {
                let decomposed = text.nfkd();
                decomposed.filter(|&c| unicode_normalization::char::canonical_combining_class(c) == 0).collect()
            } else {
                text.nfkc().collect()
            };
            // Applied to the whole text, like `str.lower`: a word separator here may be case-ignorable.
            let normal = if lowercase { normal.to_lowercase() } else { normal };
            let keep = |word: &str| word.chars().filter(|&c| !clean::is_dropped(c)).collect::<String>();
            let words = normal.split(clean::is_space).map(keep);
            let expected: Vec<String> = words.filter(|word| !word.is_empty()).collect();
            assert_eq!(cleaned.text, expected.join(" "), "{case}");
        }
    }
}

/// Texts of many scripts: composed and decomposed, half-width, with joiners, vowel signs, points and modifiers.
pub(in crate::tests) const LANGUAGES: [&str; 30] = [
    "ガラスのカラスが、かがみとかかみを見た。",
    "ｶﾞﾗｽ ﾊﾟﾝ ＡＢＣ１２３ カ\u{3099}ラス は\u{309a}ん ヴ",
    "한국어 문장 값이 \u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af} ㄱㄴ",
    "Tiếng Việt: cá, cà, cả, cã, cạ; trường học năm ngoái",
    "tie\u{302}\u{301}ng Vie\u{323}\u{302}t vie\u{302}\u{323}t",
    "क्या कि की के को क्‍ष क\u{94d}\u{200c}ष ज़रा ज\u{93c}रा ऑफ़ \u{958}",
    "বাংলা দয়া দ্যা র\u{200d}্যাব করে করা কো ক\u{9c7}\u{9be}",
    "தமிழ் என்ன என்று கொ க\u{bc6}\u{bbe} ஸ்ரீ",
    "ภาษาไทย เก่า ก้าว น้ำ นํ้า ที่นี่",
    "العَرَبِيَّةُ مُدَرِّسٌ مدرس أن إن آن \u{fefb} \u{640}",
    "شَد\u{651}\u{64e} د\u{64e}\u{651} می\u{200c}خواهم کتاب\u{200c}ها",
    "שָׁלוֹם עֲלֵיכֶם שלום \u{fb2a}\u{200f} \u{5e9}\u{5bc}\u{5c1}",
    "İstanbul ISPARTA ıspanak Iğdır IŞIK i\u{307} I\u{307}",
    "Straße STRASSE ẞ Mädchen u\u{308}ber Weg weg",
    "L'été à Noël, œuvre ŒUVRE cœur, ça et là; e\u{301}te\u{301}",
    "ΟΔΟΣ Ὀδυσσεύς ΣΑΣ Σ Σ' ΑΣ' 'ΑΣΑ ΆΣ ΑΣ\u{301} άσ ᾳ Ϊ",
    "Ёлка ёлка его й Й и\u{306} Київ м'ята ЇЖАК",
    "ქართული ᲥᲐᲠᲗᲣᲚᲘ Հայերեն ԵՒ եւ",
    "መልካም ቀን። ᏣᎳᎩ ꭰ",
    "မြန်မာ ភាសាខ្មែរ ລາວ བོད་སྐད",
    "ಕನ್ನಡ ಆರ್\u{200c}ಬಿಐ മലയാളം ന്\u{200d} ශ්\u{200d}රී",
    "👩\u{200d}👩\u{200d}👧 👍🏽 ❤\u{fe0f} 1\u{fe0f}\u{20e3} 🇩🇪",
    "x² H₂O ½ ﬁne Ångström \u{212b} ① ㎏ ™ ﷺ",
    "zero\u{200b}width \u{feff}mark a\u{ad}b \u{202a}x\u{202c}y\u{61c}z\u{2068} tab\tend\u{1}e\u{1}\u{301}e\u{1}é",
    "´ ¨a \u{301}a  \u{3000}全角　空白",
    "ǅ Ǆ ǆ ŉ ΐ Ω K",
    "𝐀𝒷 ⒶⓑⓒＺ 𝛴Σ ΑⒶΣ",
    "a\u{301}\u{323}\u{302} q\u{307}\u{323} s\u{323}\u{307}",
    "ᾼ Ὰ\u{345} \u{1e9b}\u{323} ﬀ",
    "Ḍ\u{307} ⟨text⟩ “quotes” … — – -",
];

/// The normalizer steps of `tokenizer.json`, run by Hugging Face's library, produce our text for every form except the released one.
#[test]
fn hugging_face_cleans_alike() {
    let mut draw = Draw(13);
    let mut texts: Vec<String> = LANGUAGES.map(str::to_owned).into();
    let characters: Vec<char> = LANGUAGES.concat().chars().collect();
    for _ in 0..3000 {
        let len = draw.below(12);
        texts.push((0..len).map(|_| characters[draw.below(characters.len())]).collect());
    }
    for cleaning in Cleaning::all().filter(|cleaning| cleaning.normalization != Normalization::Released) {
        let file: serde_json::Value =
            serde_json::from_str(&toy_cleaned(&[("a", -1.0)], cleaning).to_json().unwrap()).unwrap();
        let theirs: tokenizers::NormalizerWrapper = serde_json::from_value(file["normalizer"].clone()).unwrap();
        for text in &texts {
            let mut expected = tokenizers::NormalizedString::from(text.as_str());
            tokenizers::Normalizer::normalize(&theirs, &mut expected).unwrap();
            assert_eq!(cleaning.clean(text).text, expected.get(), "{cleaning:?}: {text:?}");
        }
    }
}

#[test]
fn every_way_of_encoding_gives_the_same_ids_on_any_text() {
    let text = sample_text(300, 3);
    let config = TrainerConfig { vocab_size: 400, ..TrainerConfig::default() };
    let tokenizer = train(&text, &config, |_| {}).expect("enough text");
    let mut draw = Draw(11);
    let mut lines: Vec<String> = (0..2000)
        .map(|_| draw.below(60))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|len| random_text(&mut draw, len))
        .collect();
    lines.extend(text);
    // The same lines twice: the second time from the encoder's cache.
    lines.extend_from_within(..);
    let batch = tokenizer.encode_batch(&lines).unwrap();
    let mut encoder = Encoder::new(&tokenizer);
    assert_eq!(batch.len(), lines.len());
    for (line, ids) in lines.iter().zip(&batch) {
        assert_eq!(tokenizer.encode(line).unwrap(), *ids, "line {line:?}");
        assert_eq!(encoder.collect(line), *ids, "line {line:?}");
        let encoding = tokenizer.encode_with_offsets(line).unwrap();
        assert_eq!(encoding.ids, *ids, "line {line:?}");
        for &(start, end) in &encoding.offsets {
            assert!(line.get(start..end).is_some(), "line {line:?}: {start}..{end} cuts a character");
        }
        assert!(
            encoding.offsets.windows(2).all(|pair| pair[0].1 <= pair[1].1),
            "line {line:?}: {:?}",
            encoding.offsets
        );
        assert!(ids.iter().all(|&id| id == 1 || id > 4), "line {line:?} gave a control piece: {ids:?}");
        let cleaned = tokenizer.cleaning().expect("our own").clean(line).text;
        if !ids.contains(&1) {
            assert_eq!(tokenizer.decode(ids).unwrap(), cleaned);
        }
        assert_eq!(tokenizer.encode(&cleaned).unwrap(), *ids, "cleaning twice changed {line:?}");
    }
}

#[test]
fn a_word_of_a_megabyte_is_encoded() {
    let tokenizer = toy(&[("▁", -2.0), ("a", -3.0), ("ab", -4.0), ("b", -3.0)]);
    let word = "ab".repeat(1 << 19);
    let ids = tokenizer.encode(&word).unwrap();
    assert_eq!(ids.len(), 1 + (1 << 19));
    assert_eq!(tokenizer.decode(&ids).unwrap(), format!(" {word}")[1..]);
    assert_eq!(Encoder::new(&tokenizer).collect(&word), ids);
    assert_eq!(tokenizer.encode_with_offsets(&word).unwrap().offsets.last(), Some(&(word.len() - 2, word.len())));
    let unknown = "日".repeat(1 << 18);
    assert_eq!(texts(&tokenizer, &unknown), ["▁", "<unk>"]);
}
