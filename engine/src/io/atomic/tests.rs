use super::*;
use crate::shared_tests::refused;
use std::{
    fs::OpenOptions,
    io::Read,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// A new folder, the path of a file in it, and that of the temporary file.
fn place() -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (path, partial) = (folder.path().join("state"), folder.path().join(".state.partial"));
    (folder, path, partial)
}

pub(super) fn names(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn text(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn fifo(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

#[test]
fn a_disk_that_fills_leaves_the_file_as_it_was() {
    let (folder, path, _) = place();
    let new = vec![7u8; 3_000_000];
    for old in [None, Some(b"old".to_vec())] {
        old.iter().for_each(|old| std::fs::write(&path, old).unwrap());
        for room in [0, 1, 4096, 1 << 20, 2_999_999] {
            let full = |w: &mut dyn Write| w.write_all(&new[..room]).and(Err(io::ErrorKind::StorageFull.into()));
            let text = write_atomically(&path, full).unwrap_err().to_string();
            assert!(text.contains("state: cannot write the file"), "after {room} bytes: {text}");
            assert_eq!(std::fs::read(&path).ok(), old, "after {room} bytes");
            assert_eq!(names(&folder).len(), usize::from(old.is_some()), "after {room} bytes");
        }
    }
}

#[test]
fn replaces_the_file_and_a_leftover_of_a_killed_process_and_leaves_nothing_else() {
    let (folder, path, partial) = place();
    for new in ["first", "second, longer", ""] {
        std::fs::write(&partial, "a longer leftover than what follows").unwrap();
        write_atomically(&path, |w| w.write_all(new.as_bytes())).unwrap();
        assert_eq!((text(&path).as_str(), names(&folder)), (new, vec!["state".to_owned()]));
    }
    std::fs::write(&partial, "a leftover").unwrap();
    remove_leftover(&path).unwrap();
    remove_leftover(&path).unwrap();
    assert_eq!(names(&folder), ["state"]);
    let _writer = AtomicFile::create(&path).unwrap();
    refused(remove_leftover(&path), "another process is writing this file");
}

#[test]
fn two_writers_of_one_file_cannot_mix() {
    let (folder, path, _) = place();
    symlink("state", folder.path().join("link")).unwrap();
    let mut first = AtomicFile::create(&path).unwrap();
    first.write_all(b"first").unwrap();
    for name in ["state", "link"] {
        refused(AtomicFile::create(folder.path().join(name)), "another process is writing this file");
        refused(check_output(folder.path().join(name)), "another process is writing this file");
    }
    first.commit().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"first");
}

/// The second writer opens the temporary file, the first renames it to its own name and returns, then the second goes on.
#[test]
fn a_writer_that_opened_the_temporary_file_before_its_rename_leaves_the_committed_file() {
    let (_folder, path, partial) = place();
    let mut first = AtomicFile::create(&path).unwrap();
    first.write_all(b"first").unwrap();
    let seen_by_second = partial::open_leftover(&partial, &path).unwrap().unwrap();
    first.commit().unwrap();
    partial::remove_leftover(&partial, &seen_by_second, &path, "file").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"first");

    // The same with a third writer that has begun meanwhile: its file is not removed either.
    let mut third = AtomicFile::create(&path).unwrap();
    third.write_all(b"third").unwrap();
    partial::remove_leftover(&partial, &seen_by_second, &path, "file").unwrap();
    third.commit().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"third");
}

/// The first writer has created the temporary file and not yet locked it; the second takes it for a leftover.
#[test]
fn a_writer_whose_temporary_file_was_removed_before_its_lock_notices() {
    let (_folder, path, partial) = place();
    let first = partial::create(&partial, 0o666).unwrap();
    let seen_by_second = partial::open_leftover(&partial, &path).unwrap().unwrap();
    partial::remove_leftover(&partial, &seen_by_second, &path, "file").unwrap();
    assert!(!partial::lock_own(&partial, &first).unwrap(), "the second has the lock");
    drop(seen_by_second);
    assert!(!partial::lock_own(&partial, &first).unwrap(), "the name has gone");
    let second = partial::claim(&partial, &path, &path, "file").unwrap();
    assert!(!partial::lock_own(&partial, &first).unwrap(), "the name stands for the file of the second");
    assert!(partial::names(&partial, &second).unwrap());
}

#[test]
fn neither_commit_nor_drop_touches_the_file_of_another_writer() {
    let (_folder, path, partial) = place();
    for commit in [true, false] {
        let file = AtomicFile::create(&path).unwrap();
        // Whoever removes what it should not.
        std::fs::remove_file(&partial).unwrap();
        std::fs::write(&partial, "of another").unwrap();
        if commit {
            refused(file.commit(), "was removed or replaced meanwhile");
        } else {
            drop(file);
        }
        assert_eq!(std::fs::read(&partial).unwrap(), b"of another");
        assert!(!path.exists());
        std::fs::remove_file(&partial).unwrap();
    }
}

/// Several writers and a reader, as fast as they can: every version that is read is whole, every commit succeeds.
#[test]
fn versions_stay_whole_under_writers_that_come_and_go() {
    let (folder, path, _) = place();
    let (path, commits) = (&path, &AtomicUsize::new(0));
    let end = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for id in 1u8..=4 {
            scope.spawn(move || {
                while Instant::now() < end {
                    let Ok(mut file) = AtomicFile::create(path) else { continue };
                    file.write_all(&vec![id; usize::from(id) * 1000]).unwrap();
                    // The fourth always gives up.
                    if id < 4 {
                        file.commit().unwrap();
                        commits.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        scope.spawn(move || {
            while Instant::now() < end {
                if let Ok(bytes) = std::fs::read(path) {
                    let id = *bytes.first().expect("a whole version is not empty");
                    assert_eq!(bytes, vec![id; usize::from(id) * 1000]);
                }
            }
        });
    });
    assert!(commits.load(Ordering::Relaxed) > 10, "{commits:?}");
    assert_eq!(names(&folder), ["state"]);
}

#[test]
fn says_what_is_in_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    std::fs::create_dir(folder.path().join(".blocked.partial")).unwrap();
    symlink("missing/deeper/state", folder.path().join("dangling")).unwrap();
    symlink("loop", folder.path().join("loop")).unwrap();
    symlink("..", folder.path().join("above")).unwrap();
    for (path, expected) in [
        (folder.path().join("missing/state"), "missing does not exist; create it or choose another path"),
        (folder.path().join("dangling"), "missing/deeper does not exist; create it or choose another path"),
        (file.join("state"), "file is not a folder; choose another path"),
        (file.join("deeper/state"), "file is not a folder; choose another path"),
        (folder.path().to_owned(), "a folder has this name"),
        (folder.path().join("above"), "a folder has this name"),
        (folder.path().join("blocked"), ".blocked.partial is a folder; remove it"),
        (folder.path().join("new/"), "expected the name of a file"),
        (PathBuf::new(), "expected the name of a file"),
        (folder.path().join("loop"), "cannot follow the link: Too many levels of symbolic links"),
    ] {
        let error = write_atomically(&path, |w| w.write_all(b"x")).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(check_output(&path).unwrap_err().to_string(), error);
    }
}

#[test]
fn checking_changes_nothing() {
    let (folder, path, _) = place();
    check_output(&path).unwrap();
    assert_eq!(names(&folder), [""; 0]);
    std::fs::write(&path, "old").unwrap();
    check_output(&path).unwrap();
    assert_eq!((names(&folder), text(&path).as_str()), (vec!["state".to_owned()], "old"));
    // Would wait for a reader if it were opened.
    check_output(fifo(&folder)).unwrap();
}

#[test]
fn planted_links_are_removed_and_not_written_through() {
    let (folder, path, partial) = place();
    let victim = folder.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let plant: [fn(&Path, &Path) -> io::Result<()>; 3] = [
        |victim, partial| symlink(victim, partial),
        |victim, partial| std::fs::hard_link(victim, partial),
        |_, partial| symlink("nothing", partial),
    ];
    for plant in plant {
        plant(&victim, &partial).unwrap();
        write_atomically(&path, |w| w.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(names(&folder), ["state", "victim"]);
    }
}

#[test]
fn permissions_of_the_replaced_file_are_kept() {
    let (folder, path, partial) = place();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    std::fs::write(&path, "old").unwrap();
    // What the umask leaves of 666.
    let usual = mode(&path);
    for wanted in [0o600, 0o640, 0o666, 0o444, 0o755] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(wanted)).unwrap();
        let file = AtomicFile::create(&path).unwrap();
        assert_eq!(mode(&partial), wanted, "while it is written");
        file.commit().unwrap();
        assert_eq!(mode(&path), wanted);
    }
    write_atomically(folder.path().join("new"), |w| w.write_all(b"new")).unwrap();
    assert_eq!(mode(&folder.path().join("new")), usual);
}

#[test]
fn the_owner_of_the_replaced_file_is_kept_by_root() {
    let (_folder, path, _) = place();
    std::fs::write(&path, "old").unwrap();
    if std::os::unix::fs::chown(&path, Some(1234), Some(4321)).is_err() {
        eprintln!("SKIPPED: only root gives files away");
        return;
    }
    write_atomically(&path, |w| w.write_all(b"new")).unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (1234, 4321));
}

#[test]
fn a_link_stays_and_what_it_points_to_is_written() {
    let root = tempfile::tempdir().unwrap();
    let (links, files) = (root.path().join("links"), root.path().join("files"));
    [&links, &files].iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    std::fs::write(files.join("old"), "old").unwrap();
    symlink("../files/old", links.join("relative")).unwrap();
    symlink(links.join("relative"), links.join("chain")).unwrap();
    symlink("../files/new", links.join("dangling")).unwrap();
    for (link, file) in [("relative", "old"), ("chain", "old"), ("dangling", "new")] {
        write_atomically(links.join(link), |w| w.write_all(link.as_bytes())).unwrap();
        assert!(std::fs::symlink_metadata(links.join(link)).unwrap().is_symlink(), "{link}");
        assert_eq!(text(files.join(file)), link);
    }
    assert_eq!(names(&files), ["new", "old"]);
    assert_eq!(names(&links), ["chain", "dangling", "relative"]);
}

#[test]
fn a_fifo_is_written_to_and_stays_one() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = fifo(&folder);
    symlink("fifo", folder.path().join("link")).unwrap();
    for name in ["fifo", "link"] {
        // Not joined: the reader of a FIFO that nobody writes to waits for ever.
        let (sender, read) = std::sync::mpsc::channel();
        let opened = fifo.clone();
        std::thread::spawn(move || sender.send(std::fs::read(opened).unwrap()));
        write_atomically(folder.path().join(name), |w| w.write_all(&vec![3; 300_000])).unwrap();
        assert_eq!(read.recv_timeout(Duration::from_secs(20)).unwrap(), vec![3; 300_000]);
        assert!(std::fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    }
    assert_eq!(names(&folder), ["fifo", "link"]);
}

#[test]
fn a_device_is_written_to_and_stays_one() {
    let folder = tempfile::tempdir().unwrap();
    for (name, minor, expected) in [("null", "3", ""), ("full", "7", "No space left on device")] {
        let device = folder.path().join(name);
        if !Command::new("mknod").arg(&device).args(["c", "1", minor]).status().unwrap().success()
            || OpenOptions::new().write(true).open(&device).is_err()
        {
            eprintln!("SKIPPED: devices are made by root, on file systems that have them");
            return;
        }
        check_output(&device).unwrap();
        let said =
            write_atomically(&device, |w| w.write_all(b"anything")).map_or_else(|e| e.to_string(), |()| String::new());
        assert!(said.contains(expected) && said.is_empty() == expected.is_empty(), "{name}: {said}");
        assert!(std::fs::symlink_metadata(&device).unwrap().file_type().is_char_device());
        assert_eq!(names(&folder), [name]);
        std::fs::remove_file(&device).unwrap();
    }
}

#[test]
fn a_socket_receives_the_output() {
    let (folder, path, _) = place();
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
        bytes
    });
    check_output(&path).unwrap();
    write_atomically(&path, |w| w.write_all(b"to the listener")).unwrap();
    assert_eq!(reader.join().unwrap(), b"to the listener");
    assert_eq!(names(&folder), ["state"]);
}

#[test]
fn an_open_descriptor_is_continued() {
    use std::os::fd::AsRawFd;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"before;").unwrap();
    for name in ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"] {
        let descriptor = Path::new(name).join(file.as_raw_fd().to_string());
        check_output(&descriptor).unwrap();
        write_atomically(&descriptor, |w| w.write_all(b"more;")).unwrap();
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"before;more;more;more;");
    // A pipe has no name that could be renamed over.
    let (mut reader, writer) = io::pipe().unwrap();
    write_atomically(format!("/dev/fd/{}", writer.as_raw_fd()), |w| w.write_all(b"through")).unwrap();
    drop(writer);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"through");
    assert_eq!(names(&folder), ["log"]);
}
