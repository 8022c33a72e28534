//! Two steps of pre-training and an evaluation on the simulated GPU reproduce the bits of an H200.
//!
//! `golden/hopper` contains the driver calls of two runs, in f32 and bf16: `pretrain base` with two layers, H = 128, LAMB, 512
//! tokens a step, kernels for sm_90a. Data that is read back has the hashes of the H200, which ran these kernels on 2026-11-27.
//!
//! A recording is text with binary data in between; numbers are decimal, addresses and arguments hexadecimal.
//!
//! ```text
//! load ENTRY BYTES            a kernel; its PTX follows
//! allocate ADDRESS BYTES      free ADDRESS
//! upload ADDRESS BYTES        the bytes follow
//! fill ADDRESS BYTES VALUE    copy TO FROM BYTES
//! launch KERNEL GX GY GZ BX BY BZ SHARED ARGUMENT..
//!                             @ an address, l and u integers of 64 and 32 bits, f the bits of a float, m a tensor map
//! read ADDRESS BYTES HASH     FNV-1a of the bytes
//! ```

use flate2::read::GzDecoder;
use ptx::{
    Launch,
    sim::{Argument, Memory, Module, Options, TensorMap},
};
use std::{collections::BTreeMap, fs::File, io::Read, path::Path};

/// Counts of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Replayed {
    /// Number of launches.
    launches: usize,
    /// Number of bytes that were read back and equal those of the recording.
    bytes: usize,
}

/// FNV-1a hash of `bytes`.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

struct Replay<'a> {
    memory: Memory,
    kernels: Vec<(Module, &'a str)>,
    /// Local address and size of each allocation, by its address in the recording.
    places: BTreeMap<u64, (u64, u64)>,
}

impl Replay<'_> {
    /// Local address for one in the recording.
    fn place(&self, address: u64) -> u64 {
        let found = self.places.range(..=address).next_back();
        // Null, an unused argument, does not belong to an allocation.
        found
            .filter(|(start, (_, bytes))| address - *start <= *bytes)
            .map_or(address, |(start, (at, _))| at + address - start)
    }

    fn argument(&self, word: &str) -> Argument {
        let (kind, digits) = word.split_at(1);
        let number = || hexadecimal(digits);
        match kind {
            "@" => Argument::U64(self.place(number())),
            "l" => Argument::U64(number()),
            "u" => Argument::U32(number() as u32),
            "f" => Argument::F32(f32::from_bits(number() as u32)),
            _ => {
                let bytes: [u8; 128] = std::array::from_fn(|i| hexadecimal(&digits[2 * i..2 * i + 2]) as u8);
                let map = TensorMap::from_bytes(&bytes).expect("the bytes of a tensor map");
                Argument::TensorMap(TensorMap { address: self.place(map.address), ..map })
            }
        }
    }
}

fn hexadecimal(digits: &str) -> u64 {
    u64::from_str_radix(digits, 16).unwrap_or_else(|error| panic!("`{digits}`: {error}"))
}

fn number(digits: &str) -> usize {
    digits.parse().unwrap_or_else(|error| panic!("`{digits}`: {error}"))
}

/// Replays a recording.
fn replay(mut recording: &[u8]) -> Replayed {
    let options = Options { races: false, ..Options::default() };
    let mut replay = Replay { memory: Memory::new(), kernels: Vec::new(), places: BTreeMap::new() };
    let mut done = Replayed::default();
    while let Some(end) = recording.iter().position(|byte| *byte == b'\n') {
        let line = std::str::from_utf8(&recording[..end]).expect("a line of text");
        recording = &recording[end + 1..];
        let words: Vec<&str> = line.split(' ').collect();
        let mut follow = |count: usize| {
            let (bytes, rest) = recording.split_at(count);
            recording = rest;
            bytes
        };
        let at = |i: usize| hexadecimal(words[i]);
        match words[0] {
            "load" => {
                let text = std::str::from_utf8(follow(number(words[2]))).expect("PTX is text");
                replay.kernels.push((Module::parse(text).expect("PTX that the simulator knows"), words[1]));
            }
            "allocate" => {
                let bytes = number(words[2]);
                replay.places.insert(at(1), (replay.memory.allocate("tensor", bytes), bytes as u64));
            }
            "free" => replay.memory.free(replay.place(at(1))).expect("an allocation"),
            "upload" => {
                let bytes = follow(number(words[2]));
                replay.memory.copy_in(replay.place(at(1)), bytes).expect("within an allocation");
            }
            "fill" => {
                let bytes = vec![number(words[3]) as u8; number(words[2])];
                replay.memory.copy_in(replay.place(at(1)), &bytes).expect("within an allocation");
            }
            "copy" | "read" => {
                let is_read = words[0] == "read";
                let mut bytes = vec![0; number(words[if is_read { 2 } else { 3 }])];
                let source = replay.place(at(if is_read { 1 } else { 2 }));
                replay.memory.copy_out(&mut bytes, source).expect("written before");
                if is_read {
                    let launches = done.launches;
                    assert_eq!(format!("{:016x}", fnv(&bytes)), words[3], "`{line}` after {launches} launches");
                    done.bytes += bytes.len();
                } else {
                    replay.memory.copy_in(replay.place(at(1)), &bytes).expect("within an allocation");
                }
            }
            "launch" => {
                let [gx, gy, gz, bx, by, bz, shared]: [u32; 7] = std::array::from_fn(|i| number(words[2 + i]) as u32);
                let launch = Launch { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes: shared };
                let arguments: Vec<Argument> = words[9..].iter().map(|word| replay.argument(word)).collect();
                let (module, entry) = &replay.kernels[number(words[1])];
                let report = module.launch(entry, launch, &arguments, &mut replay.memory, &options);
                let report = report.unwrap_or_else(|error| panic!("{entry}, launch {}: {error}", done.launches));
                report.clean().unwrap_or_else(|finding| panic!("{entry}, launch {}: {finding}", done.launches));
                done.launches += 1;
            }
            other => panic!("`{other}` is not a call"),
        }
    }
    done
}

fn replays(name: &str, launches: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/hopper").join(name);
    let mut calls = Vec::new();
    GzDecoder::new(File::open(&path).unwrap()).read_to_end(&mut calls).unwrap();
    let done = replay(&calls);
    assert_eq!(done.launches, launches);
    assert!(done.bytes > 1_000_000, "the parameters are read: {done:?}");
}

#[test]
#[ignore = "two minutes; .ci/hopper.sh runs it"]
fn f32_gives_the_bits_of_an_h200() {
    replays("f32.calls.gz", 349);
}

#[test]
fn bf16_gives_the_bits_of_an_h200() {
    replays("bf16.calls.gz", 320);
}
