//! Download of a snapshot's files into a data directory.
//!
//! ```text
//! DATADIR/db.restoring/manifest.json     the snapshot
//! DATADIR/db.restoring/db/…              its files
//! DATADIR/db.restoring/complete          all files are there and on the disk
//! DATADIR/db                             the database, at the very end
//! ```
//!
//! No command opens a data directory in which `db.restoring` is.

use crate::{
    FileEntry, Manifest, Progress, Repository, lock_directory,
    manifest::{CHUNK_BYTES, Chunk},
    repository::{hash, unpack},
};
use anyhow::{Context, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::ErrorKind,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Relaxed},
        },
    },
};
use tandem_storage_writer::{database_path, has_database, restore_path};
use tokio::task::spawn_blocking;

/// Files of a snapshot in a data directory, all there and checked, but not yet its database.
#[derive(Debug)]
pub struct Restored {
    datadir: PathBuf,
    /// Held until the end, so that no other process restores into the same directory.
    _lock: File,
    /// Manifest of the snapshot.
    pub manifest: Manifest,
    /// Bytes that were read from the repository now, before compression.
    pub fetched_bytes: u64,
    /// Bytes that an interrupted restore had left in place.
    pub kept_bytes: u64,
}

impl Restored {
    /// Returns a folder that is like a data directory with the database in it, for checks.
    #[must_use]
    pub fn datadir(&self) -> PathBuf {
        let staging = restore_path(&self.datadir);
        // An earlier process may have died when the database had its name already.
        if has_database(&staging) { staging } else { self.datadir.clone() }
    }

    /// Makes the files the database of the data directory.
    ///
    /// # Errors
    /// When the file system fails. A later [`restore`] goes on.
    pub fn finish(self) -> anyhow::Result<()> {
        let staging = restore_path(&self.datadir);
        let (from, to) = (database_path(&staging), database_path(&self.datadir));
        let finish = || -> anyhow::Result<()> {
            if from.exists() {
                fs::rename(&from, &to)?;
                sync(&self.datadir)?;
            }
            // The folder loses its name first: a part of it would keep the database from being opened.
            let done = self.datadir.join("db.restored");
            if done.exists() {
                fs::remove_dir_all(&done)?;
            }
            fs::rename(&staging, &done)?;
            sync(&self.datadir)?;
            Ok(fs::remove_dir_all(&done)?)
        };
        finish().with_context(|| format!("make {} the database", from.display()))
    }
}

/// Checks that a snapshot may be restored into a data directory. Returns the manifest of a restore that was
/// interrupted there, if any.
///
/// # Errors
/// When there is a database, or the record of the interrupted restore is damaged.
pub fn refuse_occupied(datadir: &Path) -> anyhow::Result<Option<Manifest>> {
    let staging = restore_path(datadir);
    ensure!(
        !has_database(datadir) || staging.join("complete").exists(),
        "{} has a database already; choose an empty directory",
        datadir.display()
    );
    let path = staging.join("manifest.json");
    let text = match fs::read(&path) {
        Ok(text) => text,
        // No restore has begun there.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    Manifest::parse(&text).map(Some).with_context(|| path.display().to_string())
}

/// Removes what an interrupted restore left in a data directory, if no other process restores there.
///
/// # Errors
/// When another process restores there, or the file system fails.
pub fn abandon(datadir: &Path) -> anyhow::Result<()> {
    let _lock = lock_directory(datadir)?;
    let staging = restore_path(datadir);
    fs::remove_dir_all(&staging).with_context(|| format!("remove {}", staging.display()))
}

/// Writes the files of a snapshot into a data directory, beside the place of its database. `parallel` chunks
/// are under way at the same time. What an interrupted call left is checked and kept.
///
/// # Errors
/// When there is a database already, part of another snapshot, or too little room; when a chunk is missing or is
/// not the one that the manifest names. What was written stays for the next call.
pub async fn restore(
    datadir: &Path,
    manifest: Manifest,
    repository: &Repository,
    parallel: usize,
    progress: &Progress<'_>,
) -> anyhow::Result<Restored> {
    let (target, content) = (datadir.to_owned(), manifest.clone());
    let (staging, lock) = spawn_blocking(move || stage(&target, &content)).await??;
    let mut restored = Restored {
        datadir: datadir.to_owned(),
        _lock: lock,
        manifest,
        fetched_bytes: 0,
        kept_bytes: 0,
    };
    let complete = staging.join("complete");
    if complete.exists() {
        restored.kept_bytes = restored.manifest.bytes();
        return Ok(restored);
    }
    let folder = database_path(&staging);
    let (for_targets, files) = (folder.clone(), restored.manifest.files.clone());
    let parts = spawn_blocking(move || targets(&for_targets, files)).await??;
    let total = restored.manifest.bytes();
    let (done, fetched) = (AtomicU64::new(0), AtomicU64::new(0));
    progress(0, total);
    let written = stream::iter(parts).map(|part| async {
        let bytes = part.chunk.bytes;
        if place(part, repository).await? {
            fetched.fetch_add(bytes, Relaxed);
        }
        progress(done.fetch_add(bytes, Relaxed) + bytes, total);
        anyhow::Ok(())
    });
    written.buffer_unordered(parallel.max(1)).try_for_each(|()| async { Ok(()) }).await?;
    spawn_blocking(move || -> anyhow::Result<()> {
        sync(&folder)?;
        File::create(&complete)?.sync_all()?;
        sync(&staging)
    })
    .await??;
    restored.fetched_bytes = fetched.into_inner();
    restored.kept_bytes = total - restored.fetched_bytes;
    Ok(restored)
}

/// Makes the folder for the files, or takes that of an interrupted restore of the same snapshot. Returns it with
/// the lock of the data directory.
fn stage(datadir: &Path, manifest: &Manifest) -> anyhow::Result<(PathBuf, File)> {
    let context = || format!("restore into {}", datadir.display());
    fs::create_dir_all(datadir).with_context(context)?;
    let lock = lock_directory(datadir)?;
    let before = refuse_occupied(datadir)?;
    let staging = restore_path(datadir);
    if let Some(before) = &before {
        ensure!(
            before == manifest,
            "{} has part of snapshot {}: restore that one, or remove the folder",
            staging.display(),
            before.name()
        );
    }
    let stage = || -> anyhow::Result<()> {
        let folder = database_path(&staging);
        fs::create_dir_all(&staging)?;
        if before.is_none() {
            let unfinished = staging.join("manifest.unfinished");
            fs::write(&unfinished, serde_json::to_vec(manifest)?)?;
            File::open(&unfinished)?.sync_all()?;
            fs::rename(&unfinished, staging.join("manifest.json"))?;
        }
        if !staging.join("complete").exists() {
            fs::create_dir_all(&folder)?;
            require_room(&folder, manifest)?;
        }
        sync(&staging)?;
        sync(datadir)
    };
    stage().with_context(context)?;
    Ok((staging, lock))
}

/// Checks whether the files find room on the volume, beside those that are there.
fn require_room(folder: &Path, manifest: &Manifest) -> anyhow::Result<()> {
    let volume = rustix::fs::statvfs(folder)?;
    let free = volume.f_bavail.saturating_mul(volume.f_frsize);
    let mut there = 0;
    for entry in fs::read_dir(folder)? {
        there += entry?.metadata()?.blocks() * 512;
    }
    let needed = manifest.bytes().saturating_sub(there);
    ensure!(needed <= free, "{needed} bytes are needed; the volume has {free} left");
    Ok(())
}

/// File that is being written.
struct Target {
    name: String,
    path: PathBuf,
    /// Whether an earlier call may have written parts of it.
    was_there: bool,
    /// Chunks that are not yet in place.
    left: AtomicU64,
}

/// Chunk with its place.
struct Part {
    target: Arc<Target>,
    offset: u64,
    chunk: Chunk,
}

/// Makes the files with their sizes, removes all others, and returns the chunks to write.
fn targets(folder: &Path, files: Vec<FileEntry>) -> anyhow::Result<Vec<Part>> {
    let make = || -> anyhow::Result<Vec<Part>> {
        let sizes: HashMap<_, _> =
            files.iter().map(|file| (file.name.clone(), file.bytes)).collect();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(|name| sizes.contains_key(name)) {
                fs::remove_file(entry.path())?;
            }
        }
        let mut parts = Vec::new();
        for FileEntry { name, bytes, chunks } in files {
            let path = folder.join(&name);
            let was_there = path.exists();
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
            file.set_len(bytes)?;
            if bytes == 0 {
                file.sync_all()?;
            }
            let left = AtomicU64::new(chunks.len() as u64);
            let target = Arc::new(Target { name, path, was_there, left });
            let offsets = (0..).step_by(CHUNK_BYTES as usize);
            parts.extend(chunks.into_iter().zip(offsets).map(|(chunk, offset)| Part {
                target: target.clone(),
                offset,
                chunk,
            }));
        }
        Ok(parts)
    };
    make().with_context(|| folder.display().to_string())
}

/// Puts a chunk into its place. Returns whether it had to be fetched.
async fn place(part: Part, repository: &Repository) -> anyhow::Result<bool> {
    let Part { target, offset, chunk } = part;
    let context = format!("file {}", target.name);
    let put = async {
        let (there, chunk_there) = (target.clone(), chunk.clone());
        let kept = target.was_there
            && spawn_blocking(move || is_in_place(&there.path, offset, &chunk_there)).await??;
        let packed = match kept {
            true => None,
            false => Some(repository.get_chunk(&chunk.hash, chunk.bytes).await?),
        };
        let write = move || -> anyhow::Result<()> {
            if let Some(packed) = packed {
                let plain = unpack(&packed, chunk.bytes, &chunk.hash)?;
                drop(packed);
                let file = OpenOptions::new().write(true).open(&target.path)?;
                file.write_all_at(&plain, offset)?;
            }
            if target.left.fetch_sub(1, AcqRel) == 1 {
                File::open(&target.path)?.sync_all()?;
            }
            Ok(())
        };
        spawn_blocking(write).await??;
        anyhow::Ok(!kept)
    };
    put.await.context(context)
}

/// Returns whether a part of a file is what it has to be.
fn is_in_place(path: &Path, offset: u64, chunk: &Chunk) -> anyhow::Result<bool> {
    let mut plain = vec![0; usize::try_from(chunk.bytes)?];
    File::open(path)?.read_exact_at(&mut plain, offset)?;
    Ok(hash(&plain) == chunk.hash)
}

/// Waits until the names in a folder are on the disk.
fn sync(folder: &Path) -> anyhow::Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("sync {}", folder.display()))
}
