//! Properties of the PTX of every row of the table of operations: names, targets, and the listings and hashes in
//! `kernels/proof/listings`.

use kernels_cuda::program::Program;
use kernels_proof::OPERATIONS;
use kernels_proof::operation::Operation;
use ptx::Sm;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};
use twox_hash::XxHash64;

/// Programs whose listings are kept as text, for reading.
const READABLE: [&str; 5] = [
    "elementwise-f32bf16-sm80-256x8-cast",
    "softmax.forward-bf16-sm80-1x256",
    "gemm.nt-bf16-sm80-64x64x32x4",
    "gemm.nt-bf16-sm90a-128x128x64x5",
    "attention.forward-f32-sm80-4x32x64",
];

/// Maximum length of a readable listing, so that its changes can be reviewed.
const MAX_BYTES: usize = 30_000;

/// Name of the file with a line for each program: XXH64 of its listing, and its name.
const HASHES: &str = "hashes.txt";

fn programs() -> Vec<Program> {
    let of = |operation: &Operation| Sm::ALL.into_iter().flat_map(operation.ptx).collect::<Vec<_>>();
    OPERATIONS.iter().flat_map(of).collect()
}

/// Name and text of each file in `kernels/proof/listings`.
fn wanted() -> BTreeMap<String, String> {
    let (mut files, mut hashes) = (BTreeMap::new(), String::new());
    for program in programs() {
        let name = program.name.to_string();
        let listing = program.listing();
        writeln!(hashes, "{:016x} {name}", XxHash64::oneshot(0, listing.as_bytes())).expect("a string");
        if READABLE.contains(&name.as_str()) {
            files.insert(format!("{name}.ptx"), listing);
        }
    }
    files.insert(HASHES.to_owned(), hashes);
    files
}

#[test]
fn listings_and_hashes_are_those_of_the_emitted_programs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("listings");
    let wanted = wanted();
    assert_eq!(wanted.len(), READABLE.len() + 1, "a program of `READABLE` does not exist: {:?}", wanted.keys());
    let files = |folder: &Path| -> BTreeSet<String> {
        let files = fs::read_dir(folder).expect("kernels/proof/listings can be listed");
        files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned()).collect()
    };
    if std::env::var_os("ALBERT_BLESS").is_some_and(|value| value == "1") {
        for name in files(&folder) {
            fs::remove_file(folder.join(name)).expect("an old listing can be removed");
        }
        for (name, text) in &wanted {
            fs::write(folder.join(name), text).expect("a listing can be written");
        }
    }
    let mut differences: Vec<String> = Vec::new();
    for (name, text) in &wanted {
        let found = fs::read_to_string(folder.join(name)).unwrap_or_default().replace("\r\n", "\n");
        differences.extend(first_difference(name, &found, text));
        if name != HASHES && text.len() > MAX_BYTES {
            differences.push(format!("{name} has {} bytes; a listing has at most {MAX_BYTES}", text.len()));
        }
    }
    let unknown = files(&folder).into_iter().filter(|name| !wanted.contains_key(name));
    differences.extend(unknown.map(|name| format!("kernels/proof/listings/{name} belongs to no program")));
    assert!(
        differences.is_empty(),
        "{}\nif the change is intended: ALBERT_BLESS=1 cargo test -p albert-kernels-proof --test programs",
        differences.join("\n")
    );
}

/// First line in which the file and the emitted text differ.
fn first_difference(name: &str, found: &str, listing: &str) -> Option<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (found.lines().collect(), listing.lines().collect());
    let at = (0..old.len().max(new.len())).find(|&at| old.get(at) != new.get(at));
    let show = |lines: &[&str], at: usize| lines.get(at).map_or("the end", |line| line.trim()).to_string();
    let difference = match at {
        Some(at) => format!(":{}: `{}`, emitted `{}`", at + 1, show(&old, at), show(&new, at)),
        None => " differs in its line ends".to_string(),
    };
    (found != listing).then(|| format!("kernels/proof/listings/{name}{difference}"))
}

#[test]
fn programs_have_different_names_and_name_their_target() {
    let mut seen = BTreeSet::new();
    for operation in OPERATIONS {
        for sm in Sm::ALL {
            for program in (operation.ptx)(sm) {
                let (name, text) = (program.name.as_str(), &program.text);
                assert!(seen.insert(name.to_string()), "two programs are called {name}");
                assert!(name.starts_with(operation.name), "{name} is a program of {}", operation.name);
                assert!(name.split('-').any(|part| part == sm.name()), "{name} does not name {}", sm.name());
                assert!(text.contains(&format!(".entry {}(", program.name.entry())), "{name} has another entry");
                assert!(text.contains(&format!("\n.target {}\n", sm.target())), "{name} has another target");
                assert!(!text.contains(env!("CARGO_MANIFEST_DIR")), "{name} names a path of this machine");
            }
        }
    }
}
