//! Rule-based sentence splitter.
//!
//! A sentence ends after a run of `.`, `!`, `?` or `…` and its closing quotes or brackets, if
//! 1. white space follows, and
//! 2. the next character, except opening quotes and brackets, is not a lower-case letter, and
//! 3. for a single `.`, the word before it is neither an abbreviation (`Mr.`, `e.g.`, `vol.`) nor a single letter other than
//!    `I` (an initial, `J. Austen`).
//!
//! The full-width marks `。`, `！`, `？` and `｡` and the marks `।`, `॥`, `።` and `။` always end a sentence; `؟`, `۔`, `։` and `;`
//! (U+037E) do so as `!` does. One pass, without allocation except for the word that is compared with the list. Limits: the
//! abbreviations are English; `etc.` and `Inc.` never end a sentence, because joining two sentences does less harm than
//! splitting one.

/// Words whose full stop does not end a sentence, lower-case, without that full stop.
const ABBREVIATIONS: &[&str] = &[
    "a.d", "a.m", "adm", "al", "approx", "apr", "art", "aug", "b.c", "bros", "ca", "capt", "cf", "ch", "chap", "co",
    "col", "corp", "cpl", "dec", "dept", "dr", "e.g", "ed", "eds", "esq", "est", "etc", "feb", "fig", "figs", "gen",
    "gov", "hon", "i.e", "ibid", "inc", "jan", "jr", "jul", "jun", "lieut", "lt", "ltd", "m.d", "maj", "mar", "messrs",
    "mme", "mr", "mrs", "ms", "mt", "no", "nos", "nov", "oct", "op", "p", "p.m", "ph.d", "pp", "prof", "pt", "rep",
    "rev", "sec", "sen", "sept", "sep", "ser", "sgt", "sr", "st", "u.k", "u.s", "univ", "ver", "viz", "vol", "vols",
    "vs",
];

/// Calls `sentence` with each sentence of `paragraph`, trimmed, in order; see the module for the rule.
pub(crate) fn split_sentences<'t>(paragraph: &'t str, mut sentence: impl FnMut(&'t str)) {
    let mut emit = |text: &'t str| {
        let text = text.trim();
        if !text.is_empty() {
            sentence(text);
        }
    };
    let mut start = 0;
    let mut chars = paragraph.char_indices().peekable();
    while let Some((at, mark)) = chars.next() {
        if !is_end_mark(mark) {
            continue;
        }
        let (mut end, mut marks, mut wide) = (at + mark.len_utf8(), 1, is_wide(mark));
        while let Some(&(next_at, next)) = chars.peek() {
            if is_end_mark(next) {
                marks += 1;
                wide |= is_wide(next);
            } else if !is_closing(next) {
                break;
            }
            end = next_at + next.len_utf8();
            chars.next();
        }
        let rest = &paragraph[end..];
        let after = rest.trim_start();
        let ends = wide
            || (after.len() < rest.len()
                && !after.trim_start_matches(is_opening).starts_with(char::is_lowercase)
                && !(mark == '.' && marks == 1 && is_abbreviation(&paragraph[start..at])));
        if ends {
            emit(&paragraph[start..end]);
            start = end;
        }
    }
    emit(&paragraph[start..]);
}

/// True if `text`, which a full stop follows, ends with an abbreviation or an initial.
fn is_abbreviation(text: &str) -> bool {
    let word = text.rsplit(char::is_whitespace).next().unwrap_or("").trim_start_matches(|c| is_opening(c) || c == '-');
    let mut chars = word.chars();
    if let (Some(letter), None) = (chars.next(), chars.next()) {
        return letter.is_alphabetic() && letter != 'I';
    }
    // Longer words cannot match; avoid the copy.
    word.len() <= 8 && ABBREVIATIONS.contains(&word.to_lowercase().as_str())
}

fn is_wide(c: char) -> bool {
    matches!(c, '。' | '！' | '？' | '｡' | '।' | '॥' | '።' | '။')
}

fn is_end_mark(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '…' | '؟' | '۔' | '։' | '\u{37e}') || is_wide(c)
}

fn is_closing(c: char) -> bool {
    matches!(c, '"' | '\'' | ')' | ']' | '}' | '”' | '’' | '»' | '」' | '』' | '）')
}

fn is_opening(c: char) -> bool {
    matches!(c, '"' | '\'' | '(' | '[' | '{' | '“' | '‘' | '«' | '¿' | '¡')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<&str> {
        let mut out = Vec::new();
        split_sentences(text, |s| out.push(s));
        out
    }

    #[test]
    fn ends_sentences_where_the_rule_says() {
        for (text, expected) in [
            ("", &[][..]),
            ("   ", &[]),
            ("No mark at all", &["No mark at all"]),
            ("One. Two! Three? Four", &["One.", "Two!", "Three?", "Four"]),
            ("Mr. Darcy met Dr. Grant. He bowed.", &["Mr. Darcy met Dr. Grant.", "He bowed."]),
            ("J. Austen wrote. So did I. You read.", &["J. Austen wrote.", "So did I.", "You read."]),
            ("“Stop!” she cried. “Why?” He ran.", &["“Stop!” she cried.", "“Why?”", "He ran."]),
            ("It cost 3.50 in all. 7 came.", &["It cost 3.50 in all.", "7 came."]),
            ("e.g. this, i.e. that. Done.", &["e.g. this, i.e. that.", "Done."]),
            ("Wait... what? Well... Yes.", &["Wait... what?", "Well...", "Yes."]),
            ("(He left.) (She stayed.)", &["(He left.)", "(She stayed.)"]),
            ("天气好。走吧！好", &["天气好。", "走吧！", "好"]),
            ("यह अच्छा है। चलो!राम॥", &["यह अच्छा है।", "चलो!राम॥"]),
            ("هل أنت هنا؟ نعم. یہ ہے۔ وہ", &["هل أنت هنا؟", "نعم.", "یہ ہے۔", "وہ"]),
            ("ሰላም። ደህና။ ｶﾞﾗｽ｡ｶﾗｽ", &["ሰላም።", "ደህና။", "ｶﾞﾗｽ｡", "ｶﾗｽ"]),
            ("Ո՞վ է։ Նա", &["Ո՞վ է։", "Նա"]),
            ("a.b.c is one word. Yes", &["a.b.c is one word.", "Yes"]),
        ] {
            assert_eq!(split(text), expected, "of {text:?}");
        }
    }

    #[test]
    fn loses_nothing_but_white_space() {
        let alphabet: Vec<char> = "aZ. !?…”“)(。 \t1é".chars().collect();
        let mut stream = engine::philox::Stream::new(3, [0; 3]);
        for case in 0..2000 {
            let len = stream.below(40);
            let text: String = (0..len).map(|_| alphabet[stream.below(alphabet.len() as u32) as usize]).collect();
            let solid = |s: &str| s.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            let pieces = split(&text);
            assert_eq!(solid(&pieces.concat()), solid(&text), "case {case}: {text:?} became {pieces:?}");
            assert!(pieces.iter().all(|p| !p.is_empty() && p.trim() == *p), "case {case}: {pieces:?}");
        }
    }
}
