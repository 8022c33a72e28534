//! Kinds of output paths: what is replaced by a new file, and what is written in place.
//!
//! | the path names | the output |
//! |---|---|
//! | nothing, or a regular file | becomes that file by rename |
//! | a link | goes where the link points; the link stays |
//! | a device, a FIFO | is written to it |
//! | a socket | is sent to the process that listens there |
//! | `/dev/stdout`, `/dev/fd/N`, `/proc/PID/fd/N` | continues what is open there, at its position |
//! | a folder | is an error |
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

/// Target of an output path.
#[derive(Debug)]
pub(super) enum Destination {
    /// A regular file or a free name, all links at its end resolved.
    File(PathBuf),
    /// Something that exists and must not be replaced.
    Stream(Stream),
}

/// An output that is written in place.
#[derive(Debug)]
pub(super) enum Stream {
    StandardOutput,
    StandardError,
    /// An open file of this or another process, by its name under `/proc`.
    Descriptor(PathBuf),
    Fifo(PathBuf),
    Device(PathBuf),
    Socket(PathBuf),
}

/// Links in a row that Linux follows.
const MOST_LINKS: usize = 40;

impl Destination {
    /// Follows the links of `path`.
    ///
    /// # Errors
    /// `path` is a folder or ends like one, or a link in it may not be followed.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let mut at = path.to_owned();
        for _ in 0..=MOST_LINKS {
            let ends_as_folder = at.as_os_str().as_encoded_bytes().ends_with(b"/");
            let kind = match std::fs::symlink_metadata(&at) {
                Ok(metadata) => metadata.file_type(),
                Err(_) if ends_as_folder || at.file_name().is_none() => {
                    return Err(EngineError::file(path, "the name of a file was expected"));
                }
                // A folder on the way is missing or no folder: creating the file says which.
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    return Ok(Self::File(at));
                }
                Err(e) => return Err(EngineError::io(path, "look at the file", e)),
            };
            if kind.is_dir() {
                let problem = "a folder stands where the file is to be written; choose another name";
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
            // Linux refuses to follow links that another user left in a folder like /tmp (`fs.protected_symlinks`).
            // Reading the link would not notice; looking at what it points to does.
            match std::fs::metadata(&at) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(EngineError::io(path, "follow the link", e));
                }
                _ => {}
            }
            let link = std::fs::read_link(&at).map_err(|e| EngineError::io(path, "follow the link", e))?;
            at = super::super::folder::parent_of(&at).join(link);
        }
        Err(EngineError::file(path, "more than 40 links lead on from here; name the file itself"))
    }
}

/// The open file of a link under `/proc/PID/fd`. The text of such a link is not a path to it.
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
        // Neither created nor truncated; a terminal does not become that of this process.
        let open = |path: &Path, append: bool| {
            OpenOptions::new().write(true).append(append).custom_flags(libc::O_NOCTTY).open(path)
        };
        let duplicate = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map(File::from);
        match self {
            Self::StandardOutput => duplicate(io::stdout().as_fd()),
            Self::StandardError => duplicate(io::stderr().as_fd()),
            // Opened anew, a regular file would be written from its beginning.
            Self::Descriptor(path) => open(path, true),
            Self::Fifo(path) | Self::Device(path) => open(path, false),
            Self::Socket(path) => Ok(File::from(OwnedFd::from(UnixStream::connect(path)?))),
        }
    }

    /// Whether [`Stream::open`] can be expected to succeed, without effects: a reader of a FIFO would take an output that
    /// is opened and closed for an empty one.
    pub(super) fn check(&self) -> io::Result<()> {
        match self {
            Self::Fifo(_) | Self::Socket(_) => Ok(()),
            Self::Device(_) | Self::Descriptor(_) | Self::StandardOutput | Self::StandardError => self.open().map(drop),
        }
    }
}
