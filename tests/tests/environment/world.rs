//! Inputs of the situations: a corpus, its vocabulary and shards, a tiny model of each kind, and the program, in one folder that
//! every user may read.

use albert_tests::{
    program::program,
    run_folder::{World, files},
};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// The folder, with its contents before the first situation.
pub(crate) struct Template {
    world: World,
    before: BTreeMap<String, u64>,
    pub(crate) is_root: bool,
}

impl Template {
    pub(crate) fn new() -> Self {
        let world = World::with_models();
        fs::write(world.path("plan.toml"), world.plan("[1]", 40, "")).expect("the world is writable");
        fs::copy(program(), world.path("albert")).expect("the program can be copied");
        open_to_all(world.path("").as_path());
        let is_root = fs::metadata("/proc/self").is_ok_and(|this| this.uid() == 0);
        let before = hashes(&world.path(""));
        Self { world, before, is_root }
    }

    pub(crate) fn folder(&self) -> PathBuf {
        // Without a trailing slash: shards name their source files.
        self.world.path("text.txt").parent().expect("it is in the world").to_owned()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.world.path(name)
    }

    /// Files that were added, removed or changed.
    pub(crate) fn changed(&self) -> Vec<String> {
        let now = hashes(&self.folder());
        let differs = |name: &&String| self.before.get(*name) != now.get(*name);
        let mut changed: Vec<_> = self.before.keys().chain(now.keys()).filter(differs).cloned().collect();
        changed.dedup();
        changed
    }
}

/// Hash of every file below `folder`.
fn hashes(folder: &Path) -> BTreeMap<String, u64> {
    files(folder).into_iter().map(|(name, bytes)| (name, engine::io::hash64(&bytes))).collect()
}

/// Makes the folder readable by every user; only root may write to it.
fn open_to_all(path: &Path) {
    let is_folder = path.is_dir();
    let executes = is_folder || path.ends_with("albert");
    fs::set_permissions(path, fs::Permissions::from_mode(if executes { 0o755 } else { 0o644 })).expect("it is ours");
    if is_folder {
        for entry in fs::read_dir(path).expect("the folder can be read") {
            open_to_all(&entry.expect("the folder can be read").path());
        }
    }
}
