use super::{ApplyArgs, Mask};
use crate::arguments::{Address, Arguments, Load, all};
use crate::program::{Name, Program};
use kernels::dropout::Dropout;
use ptx::sim::{self, Memory, Options};
use ptx::{Entry, Launch, Sm, Special, U32};

/// Each thread compares the bytes of its eight words of x together, and singly, and stores the bits of the kept ones in y.
fn compare(k: &Entry) {
    let params = ApplyArgs::declare(k, &all);
    let (words, kept, mask): (_, _, Mask) = (params.x.load(k), params.y.load(k), params.dropout.load(k));
    let thread = k.special(Special::TidX);
    let bytes = mask.bytes(k);
    let own = k.index(words, thread, 32u32);
    let words: [_; 8] = std::array::from_fn(|i| k.ld::<U32, 1>(own.at(4 * i as i32))[0]);
    let together = mask.whole_words(k).kept(k, words);
    let singly = k.variable("singly", 0u32);
    for (i, byte) in (0..8).flat_map(|i| (0..4).map(move |byte| (i, byte))) {
        let kept = k.setp(ptx::Compare::Ne, bytes.multiplier(k, words[i], byte), 0.0f32);
        k.when(kept, || k.xor_into(singly, singly, 1u32 << (8 * byte + i)));
    }
    k.st(k.index(kept, thread, 8u32).at(0), [together, singly]);
}

#[test]
fn both_comparisons_of_bytes_are_right_for_every_byte_and_threshold() {
    // Every byte in every place, its neighbors different from it.
    let threads = 32;
    let byte = |i: usize| ((i * 89 + i / 256 * 7) % 256) as u8;
    let bytes: Vec<u8> = (0..32 * threads).map(byte).collect();
    let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    let name = Name::new("dropout", &["u32", "sm80", "compare"]);
    let program = Program::emit(name.clone(), Sm::Sm80, threads as u32, 96, compare);
    let module = sim::Module::parse(&program.text).unwrap();
    let launch = Launch { grid: [1, 1, 1], block: [threads as u32, 1, 1], shared_bytes: 0 };
    for threshold in 0..256u32 {
        let dropout = Dropout { rate: threshold as f32 / 256.0, seed: 1, site: 2 };
        assert_eq!(dropout.threshold(), threshold);
        let mut memory = Memory::new();
        let [x, y] = [memory.allocate_from("words", &words), memory.allocate("kept", 8 * threads)];
        let arguments = ApplyArgs { x: Address(x), y: Address(y), dropout, rows: 1, columns: 1 };
        let arguments: Vec<sim::Argument> = arguments.pack().into_iter().map(Into::into).collect();
        let report = module.launch(&name.entry(), launch, &arguments, &mut memory, &Options::default()).unwrap();
        assert!(report.findings.is_empty(), "{report:?}");
        let found = memory.read::<u32>(y).unwrap();
        for (thread, (bits, bytes)) in found.as_chunks::<2>().0.iter().zip(bytes.chunks(32)).enumerate() {
            let kept = |i: usize| u32::from(u32::from(bytes[i]) >= threshold) << (i % 4 * 8 + i / 4);
            assert_eq!(*bits, [(0..32).map(kept).sum::<u32>(); 2], "threshold {threshold}, thread {thread}");
        }
    }
}
