use super::*;
use std::{
    fs::OpenOptions,
    io::Read,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn replaces_the_file_and_leaves_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    for text in ["first", "second, longer", ""] {
        write_atomically(&path, |w| w.write_all(text.as_bytes())).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        assert_eq!(names(folder.path()), ["state"]);
    }
}

/// A disk that fills: takes `room` bytes, then fails.
struct Full<'a> {
    inner: &'a mut dyn Write,
    room: usize,
}
impl Write for Full<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room == 0 {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let n = self.inner.write(&bytes[..bytes.len().min(self.room)])?;
        self.room -= n;
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[test]
fn a_disk_that_fills_leaves_the_file_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let new = vec![7u8; 3_000_000];
    for old in [None, Some(b"old".to_vec())] {
        if let Some(old) = &old {
            std::fs::write(&path, old).unwrap();
        }
        for room in [0, 1, 4096, 1 << 20, 2_999_999] {
            let error = write_atomically(&path, |w| Full { inner: w, room }.write_all(&new)).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("state: cannot write the file"), "after {room} bytes: {text}");
            assert_eq!(std::fs::read(&path).ok(), old, "after {room} bytes");
            assert_eq!(names(folder.path()).len(), usize::from(old.is_some()), "after {room} bytes");
        }
    }
}

#[test]
fn a_leftover_of_a_killed_process_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    std::fs::write(folder.path().join(".state.partial"), "a longer leftover than what follows").unwrap();
    write_atomically(&path, |w| w.write_all(b"new")).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    assert_eq!(names(folder.path()), ["state"]);
    std::fs::write(folder.path().join(".state.partial"), "a leftover").unwrap();
    remove_leftover(&path).unwrap();
    remove_leftover(&path).unwrap();
    assert_eq!(names(folder.path()), ["state"]);
    let _writer = AtomicFile::create(&path).unwrap();
    let error = remove_leftover(&path).unwrap_err().to_string();
    assert!(error.contains("another process is writing this file"), "{error}");
}

#[test]
fn two_writers_of_one_file_cannot_mix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    symlink("state", folder.path().join("link")).unwrap();
    let mut first = AtomicFile::create(&path).unwrap();
    first.write_all(b"first").unwrap();
    for name in ["state", "link"] {
        let error = AtomicFile::create(folder.path().join(name)).unwrap_err().to_string();
        assert!(error.contains("another process is writing this file"), "{error}");
        let error = check_output(folder.path().join(name)).unwrap_err().to_string();
        assert!(error.contains("another process is writing this file"), "{error}");
    }
    first.commit().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"first");
}

/// The second writer opens the temporary file, the first renames it to its own name and returns, then the second goes on.
#[test]
fn a_writer_that_opened_the_temporary_file_before_its_rename_leaves_the_committed_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let partial = partial::name_of(&path).unwrap();
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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let partial = partial::name_of(&path).unwrap();
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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let partial = folder.path().join(".state.partial");
    for commit in [true, false] {
        let file = AtomicFile::create(&path).unwrap();
        // Whoever removes what it should not.
        std::fs::remove_file(&partial).unwrap();
        std::fs::write(&partial, "of another").unwrap();
        if commit {
            let error = file.commit().unwrap_err().to_string();
            assert!(error.contains("was removed or replaced meanwhile"), "{error}");
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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let (path, done) = (&path, &AtomicBool::new(false));
    let end = Instant::now() + Duration::from_secs(2);
    let committed = std::thread::scope(|scope| {
        let writers: Vec<_> = (1u8..=4)
            .map(|id| {
                scope.spawn(move || {
                    let mut commits = 0;
                    while Instant::now() < end {
                        let Ok(mut file) = AtomicFile::create(path) else { continue };
                        file.write_all(&vec![id; usize::from(id) * 1000]).unwrap();
                        if id == 4 {
                            drop(file);
                        } else {
                            file.commit().unwrap();
                            commits += 1;
                        }
                    }
                    commits
                })
            })
            .collect();
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                if let Ok(bytes) = std::fs::read(path) {
                    let id = *bytes.first().expect("a whole version is not empty");
                    assert_eq!(bytes, vec![id; usize::from(id) * 1000]);
                }
            }
        });
        let joined: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        joined.into_iter().map(Result::unwrap).sum::<usize>()
    });
    assert!(committed > 10, "{committed}");
    assert_eq!(names(folder.path()), ["state"]);
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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    check_output(&path).unwrap();
    assert_eq!(names(folder.path()), [""; 0]);
    std::fs::write(&path, "old").unwrap();
    check_output(&path).unwrap();
    assert_eq!((names(folder.path()), std::fs::read(&path).unwrap()), (vec!["state".to_owned()], b"old".to_vec()));
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // Would wait for a reader if it were opened.
    check_output(&fifo).unwrap();
}

#[test]
fn planted_links_are_removed_and_not_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let (path, partial) = (folder.path().join("state"), folder.path().join(".state.partial"));
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
        assert_eq!(names(folder.path()), ["state", "victim"]);
    }
}

#[test]
fn permissions_of_the_replaced_file_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    std::fs::write(&path, "old").unwrap();
    // What the umask leaves of 666.
    let usual = mode(&path);
    for wanted in [0o600, 0o640, 0o666, 0o444, 0o755] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(wanted)).unwrap();
        let file = AtomicFile::create(&path).unwrap();
        assert_eq!(mode(&folder.path().join(".state.partial")), wanted, "while it is written");
        file.commit().unwrap();
        assert_eq!(mode(&path), wanted);
    }
    write_atomically(folder.path().join("new"), |w| w.write_all(b"new")).unwrap();
    assert_eq!(mode(&folder.path().join("new")), usual);
}

#[test]
fn the_owner_of_the_replaced_file_is_kept_by_root() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
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
    [&links, &files].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    std::fs::write(files.join("old"), "old").unwrap();
    symlink("../files/old", links.join("relative")).unwrap();
    symlink(links.join("relative"), links.join("chain")).unwrap();
    symlink("../files/new", links.join("dangling")).unwrap();
    for (link, file) in [("relative", "old"), ("chain", "old"), ("dangling", "new")] {
        write_atomically(links.join(link), |w| w.write_all(link.as_bytes())).unwrap();
        assert!(std::fs::symlink_metadata(links.join(link)).unwrap().is_symlink(), "{link}");
        assert_eq!(std::fs::read_to_string(files.join(file)).unwrap(), link);
    }
    assert_eq!(names(&files), ["new", "old"]);
    assert_eq!(names(&links), ["chain", "dangling", "relative"]);
}

#[test]
fn a_fifo_is_written_to_and_stays_one() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    symlink("fifo", folder.path().join("link")).unwrap();
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for name in ["fifo", "link"] {
        // Not joined: the reader of a FIFO that nobody writes to waits for ever.
        let (sender, read) = std::sync::mpsc::channel();
        let opened = fifo.clone();
        std::thread::spawn(move || sender.send(std::fs::read(opened).unwrap()));
        write_atomically(folder.path().join(name), |w| w.write_all(&vec![3; 300_000])).unwrap();
        assert_eq!(read.recv_timeout(Duration::from_secs(20)).unwrap(), vec![3; 300_000]);
        assert!(std::fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    }
    assert_eq!(names(folder.path()), ["fifo", "link"]);
}

#[test]
fn a_device_is_written_to_and_stays_one() {
    let folder = tempfile::tempdir().unwrap();
    for (name, minor, result) in [("null", "3", None), ("full", "7", Some("No space left on device"))] {
        let device = folder.path().join(name);
        if !Command::new("mknod").arg(&device).args(["c", "1", minor]).status().unwrap().success()
            || OpenOptions::new().write(true).open(&device).is_err()
        {
            eprintln!("SKIPPED: devices are made by root, on file systems that have them");
            return;
        }
        check_output(&device).unwrap();
        let written = write_atomically(&device, |w| w.write_all(b"anything")).map_err(|e| e.to_string());
        match result {
            None => written.unwrap(),
            Some(expected) => assert!(written.unwrap_err().contains(expected)),
        }
        assert!(std::fs::symlink_metadata(&device).unwrap().file_type().is_char_device());
        assert_eq!(names(folder.path()), [name]);
        std::fs::remove_file(&device).unwrap();
    }
}

#[test]
fn a_socket_receives_the_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
        bytes
    });
    check_output(&path).unwrap();
    write_atomically(&path, |w| w.write_all(b"to the listener")).unwrap();
    assert_eq!(reader.join().unwrap(), b"to the listener");
    assert_eq!(names(folder.path()), ["socket"]);
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
    assert_eq!(names(folder.path()), ["log"]);
}
