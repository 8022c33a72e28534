//! Seeded mutation of valid files: case n depends only on n.

use engine::philox::philox4x32;
use std::ops::Range;

/// Random stream of one case.
#[derive(Debug)]
pub struct Dice {
    case: u64,
    drawn: u32,
}

impl Dice {
    /// Stream of case `case`.
    pub fn new(case: u64) -> Self {
        Self { case, drawn: 0 }
    }

    /// 64 random bits.
    pub fn draw(&mut self) -> u64 {
        self.drawn += 1;
        let [a, b, ..] = philox4x32([self.case as u32, (self.case >> 32) as u32, self.drawn, 0], [7, 11]);
        u64::from(a) << 32 | u64::from(b)
    }

    /// Random number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.draw() % n as u64) as usize }
    }

    /// True with probability 1 / `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Critical values for lengths and counts.
pub const NUMBERS: [u64; 14] = [0, 1, 2, 3, 8, 127, 255, 4096, 1 << 31, 1 << 32, 1 << 53, 1 << 61, 1 << 63, u64::MAX];

/// Changes raw bytes: flips, numbers, truncation, repetitions.
pub fn mutate_bytes(dice: &mut Dice, bytes: &mut Vec<u8>) {
    for _ in 0..1 + dice.below(4) {
        let at = dice.below(bytes.len());
        match dice.below(6) {
            0 => bytes.truncate(at),
            1 if !bytes.is_empty() => bytes[at] ^= 1 << dice.below(8),
            2 if !bytes.is_empty() => bytes[at] = *dice.pick(&[0, 1, 0x7F, 0x80, 0xFF, b'"', b'{', b'[', b'9']),
            3 => {
                let number = dice.pick(&NUMBERS).to_le_bytes();
                let end = bytes.len().min(at + 8);
                bytes[at..end].copy_from_slice(&number[..end - at]);
            }
            4 => {
                let end = bytes.len().min(at + 1 + dice.below(40));
                let part = bytes[at..end].to_vec();
                let to = dice.below(bytes.len());
                bytes.splice(to..to, part);
            }
            _ => {
                let end = bytes.len().min(at + 1 + dice.below(20));
                bytes.drain(at..end);
            }
        }
    }
}

/// Position of a number in `text`, starting at one of its digits.
fn some_number(dice: &mut Dice, text: &str) -> Option<Range<usize>> {
    let digits: Vec<usize> = text.char_indices().filter(|(_, c)| c.is_ascii_digit()).map(|(at, _)| at).collect();
    let at = *digits.get(dice.below(digits.len()))?;
    let end = text[at..].find(|c: char| !c.is_ascii_digit()).map_or(text.len(), |length| at + length);
    Some(at..end)
}

/// Changes the structure of JSON: numbers, strings, keys, nesting.
pub fn mutate_json(dice: &mut Dice, text: &mut String) {
    const STRINGS: &str = "F32 F16 BF16 I64 U8 F4 gelu relu bert albert  __metadata__ ../x \\u0000";
    let strings: Vec<&str> = STRINGS.split(' ').collect();
    for _ in 0..1 + dice.below(3) {
        let spots = |wanted: fn(char) -> bool| text.char_indices().filter(move |&(_, c)| wanted(c)).map(|(at, _)| at);
        match dice.below(4) {
            0 | 1 => {
                let Some(digits) = some_number(dice, text) else { continue };
                let number = *dice.pick(&NUMBERS);
                let with = match dice.below(8) {
                    0 => format!("-{number}"),
                    1 => format!("{number}.5"),
                    2 => "1e999".to_owned(),
                    3 => "null".to_owned(),
                    4 => format!("{}", text[digits.clone()].parse::<u64>().unwrap_or(0).wrapping_add(1)),
                    _ => number.to_string(),
                };
                text.replace_range(digits, &with);
            }
            2 => {
                let quotes: Vec<usize> = spots(|c| c == '"').collect();
                if quotes.len() < 2 {
                    continue;
                }
                let first = dice.below(quotes.len() / 2) * 2;
                text.replace_range(quotes[first] + 1..quotes[first + 1], dice.pick::<&str>(&strings));
            }
            _ => {
                let places: Vec<usize> = spots(|c| ",:{}[]".contains(c)).collect();
                let Some(&at) = places.get(dice.below(places.len())) else { continue };
                let with = match dice.below(5) {
                    0 => "[".repeat(1 + dice.below(300)),
                    1 => "{}".to_owned(),
                    2 => ",".to_owned(),
                    3 => "\"x\":".to_owned(),
                    _ => String::new(),
                };
                text.replace_range(at..=at, &with);
            }
        }
    }
}

/// Changes text of any format: numbers, separators, repetitions, special characters.
pub fn mutate_text(dice: &mut Dice, text: &mut String) {
    const PIECES: [&str; 24] = [
        "\"", "'", "\\", "\t", "\n", "\r\n", "\0", "\u{FEFF}", "\u{2028}", "\u{D7FF}", "{", "}", "[", "]", "(", ")",
        "=", ",", ":", "<", ">", "%", "#", "😀",
    ];
    for _ in 0..1 + dice.below(4) {
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let Some(&at) = places.get(dice.below(places.len())) else { return text.push_str(dice.pick::<&str>(&PIECES)) };
        let end = places[dice.below(places.len())].clamp(at, text.len().min(at + 60));
        let end = (end..=text.len()).find(|&end| text.is_char_boundary(end)).expect("the end is a boundary");
        match dice.below(6) {
            0 => text.insert_str(at, dice.pick::<&str>(&PIECES)),
            1 => {
                let part = dice.pick::<&str>(&PIECES).repeat(1 + dice.below(200));
                text.insert_str(at, &part);
            }
            2 => {
                let part = text[at..end].to_owned();
                let to = places[dice.below(places.len())];
                text.insert_str(to, &part);
            }
            3 => text.replace_range(at..end, ""),
            4 => text.truncate(at),
            _ => {
                let Some(digits) = some_number(dice, text) else { continue };
                let sign = if dice.one_in(8) { "-" } else { "" };
                text.replace_range(digits, &format!("{sign}{}", dice.pick(&NUMBERS)));
            }
        }
    }
}
