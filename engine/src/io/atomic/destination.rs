//! Kinds of output paths: files, which are replaced, and streams, which are written in place.
//!
//! | path | output |
//! |---|---|
//! | nothing, or a regular file | new file, renamed to the path |
//! | link | target of the link; the link stays |
//! | device, FIFO | written in place |
//! | socket | sent to the listening process |
//! | `/dev/stdout`, `/dev/fd/N`, `/proc/PID/fd/N` | written at the position of the open file |
//! | folder | error |
use crate::error::{EngineError, Result};
use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            fs::{FileTypeExt, OpenOptionsExt},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
};

/// Resolved output path.
#[derive(Debug)]
pub(super) enum Destination {
    /// A regular file or a free name, with links resolved.
    File(PathBuf),
    /// An existing stream, which is not replaced.
    Stream(Stream),
}

/// An output that is written in place.
#[derive(Debug)]
pub(super) enum Stream {
    StandardOutput,
    StandardError,
    /// An open file of this or another process, named under `/proc`.
    Descriptor(PathBuf),
    Fifo(PathBuf),
    Device(PathBuf),
    Socket(PathBuf),
}

/// Linux's limit on nested links.
const MOST_LINKS: usize = 40;

impl Destination {
    /// Follows the links of `path`.
    ///
    /// # Errors
    /// `path` is a folder or ends in a slash, or a link in it cannot be followed.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let mut at = path.to_owned();
        for _ in 0..=MOST_LINKS {
            let ends_as_folder = at.as_os_str().as_encoded_bytes().ends_with(b"/");
            let kind = match std::fs::symlink_metadata(&at) {
                Ok(metadata) => metadata.file_type(),
                Err(_) if ends_as_folder || at.file_name().is_none() => {
                    return Err(EngineError::file(path, "expected the name of a file"));
                }
                // A parent is missing or not a folder: creating the file returns the exact error.
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    return Ok(Self::File(at));
                }
                Err(e) => return Err(EngineError::io(path, "look at the file", e)),
            };
            if kind.is_dir() {
                let problem = "a folder has this name; choose another name";
                return Err(EngineError::file(path, problem));
            }
            if kind.is_file() {
                return Ok(Self::File(at));
            }
            if !kind.is_symlink() {
                return Ok(Self::Stream(if kind.is_fifo() {
                    Stream::Fifo(at)
                } else if kind.is_socket() {
                    Stream::Socket(at)
                } else {
                    Stream::Device(at)
                }));
            }
            if let Some(stream) = descriptor(&at) {
                return Ok(Self::Stream(stream));
            }
            // Linux does not follow links of other users in folders such as /tmp (`fs.protected_symlinks`): stat of the
            // target fails, reading the link does not.
            match std::fs::metadata(&at) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(EngineError::io(path, "follow the link", e));
                }
                _ => {}
            }
            let link = std::fs::read_link(&at).map_err(|e| EngineError::io(path, "follow the link", e))?;
            at = super::super::folder::parent_of(&at).join(link);
        }
        Err(EngineError::file(path, "more than 40 nested links; name the file itself"))
    }
}

/// The open file of a link under `/proc/PID/fd`, whose text is not a path.
fn descriptor(link: &Path) -> Option<Stream> {
    let folder = super::super::folder::parent_of(link).canonicalize().ok()?;
    let rest = folder.strip_prefix("/proc").ok()?;
    let number = link.file_name()?.to_str()?.parse::<u32>().ok()?;
    let mut names = rest.iter().map(|name| name.to_str());
    let process = names.next()??.parse::<u32>().ok()?;
    if names.next_back()? != Some("fd") {
        return None;
    }
    Some(match number {
        1 if process == std::process::id() => Stream::StandardOutput,
        2 if process == std::process::id() => Stream::StandardError,
        _ => Stream::Descriptor(link.to_owned()),
    })
}

impl Stream {
    /// Opens the stream for writing. A FIFO waits for its reader.
    pub(super) fn open(&self) -> io::Result<File> {
        // Without creation and truncation; a terminal does not become the controlling one.
        let open = |path: &Path, append: bool| {
            OpenOptions::new().write(true).append(append).custom_flags(libc::O_NOCTTY).open(path)
        };
        let duplicate = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map(File::from);
        match self {
            Self::StandardOutput => duplicate(io::stdout().as_fd()),
            Self::StandardError => duplicate(io::stderr().as_fd()),
            // Append: a regular file that is opened again would be overwritten from its start.
            Self::Descriptor(path) => open(path, true),
            Self::Fifo(path) | Self::Device(path) => open(path, false),
            Self::Socket(path) => Ok(File::from(OwnedFd::from(UnixStream::connect(path)?))),
        }
    }

    /// Checks without side effects that [`Stream::open`] should succeed: for the reader of a FIFO, an output that is opened
    /// and closed is an empty one.
    pub(super) fn check(&self) -> io::Result<()> {
        match self {
            Self::Fifo(_) | Self::Socket(_) => Ok(()),
            Self::Device(_) | Self::Descriptor(_) | Self::StandardOutput | Self::StandardError => self.open().map(drop),
        }
    }
}
