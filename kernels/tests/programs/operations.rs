//! What holds for the PTX of every row of the table of operations: programs are named after it, and its snapshot in
//! `kernels/listings` is what the assembler emits.

use kernels::OPERATIONS;
use ptx::Sm;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// What a reader can take in, and a reviewer can see change.
const MAX_BYTES: usize = 30_000;

/// File name and listing of each operation's snapshot.
fn wanted() -> BTreeMap<String, String> {
    let programs = OPERATIONS.iter().filter_map(|operation| (operation.ptx)(Sm::Sm80).into_iter().next());
    programs.map(|program| (format!("{}.ptx", program.name), program.listing)).collect()
}

#[test]
fn snapshots_are_what_the_assembler_emits() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("listings");
    let wanted = wanted();
    if std::env::var_os("ALBERT_BLESS").is_some_and(|value| value == "1") {
        fs::create_dir_all(&folder).expect("kernels/listings can be made");
        for file in fs::read_dir(&folder).expect("kernels/listings can be listed") {
            let path = file.expect("kernels/listings can be listed").path();
            if path.extension().is_some_and(|extension| extension == "ptx") {
                fs::remove_file(path).expect("an old snapshot can be removed");
            }
        }
        for (name, listing) in &wanted {
            fs::write(folder.join(name), listing).expect("a snapshot can be written");
        }
    }
    let mut complaints = Vec::new();
    for (name, listing) in &wanted {
        let found = fs::read_to_string(folder.join(name)).unwrap_or_default().replace("\r\n", "\n");
        if let Some(complaint) = first_difference(name, &found, listing) {
            complaints.push(complaint);
        }
        if listing.len() > MAX_BYTES {
            complaints.push(format!("{name} has {} bytes; a snapshot has at most {MAX_BYTES}", listing.len()));
        }
    }
    for file in fs::read_dir(&folder).expect("kernels/listings can be listed") {
        let name = file.expect("kernels/listings can be listed").file_name().to_string_lossy().into_owned();
        if name.ends_with(".ptx") && !wanted.contains_key(&name) {
            complaints.push(format!("{name} is no operation's snapshot any more"));
        }
    }
    assert!(
        complaints.is_empty(),
        "{}\nif the change is meant, rewrite them: ALBERT_BLESS=1 cargo test -p kernels --test programs",
        complaints.join("\n")
    );
}

/// Where the file and the assembler part.
fn first_difference(name: &str, found: &str, listing: &str) -> Option<String> {
    if found == listing {
        return None;
    }
    if found.is_empty() {
        return Some(format!("kernels/listings/{name} is missing"));
    }
    let (mut old, mut new) = (found.lines(), listing.lines());
    for line in 1.. {
        let (old, new) = (old.next(), new.next());
        if old != new {
            let show = |text: Option<&str>| text.unwrap_or("the end").trim().to_string();
            return Some(format!(
                "kernels/listings/{name}:{line}: `{}`, the assembler emits `{}`",
                show(old),
                show(new)
            ));
        }
        if old.is_none() {
            break;
        }
    }
    Some(format!("kernels/listings/{name} differs in its line ends"))
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
