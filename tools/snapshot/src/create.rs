//! Upload of a checkpoint's files.

use crate::{
    FORMAT, FileEntry, Manifest, Progress, Repository, Subject, is_database_file,
    manifest::{CHUNK_BYTES, Chunk},
    repository::{hash, pack},
};
use anyhow::{Context, bail, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::task::spawn_blocking;

/// Result of [`create`].
#[derive(Clone, Debug)]
pub struct Created {
    /// Name of the snapshot.
    pub name: String,
    /// Its manifest.
    pub manifest: Manifest,
    /// Chunks of all files.
    pub chunks: u64,
    /// Chunks that were not in the repository.
    pub new_chunks: u64,
    /// Bytes of the new chunks as they are stored.
    pub new_bytes: u64,
}

/// Part of a file to upload.
struct Part {
    file: usize,
    path: Arc<PathBuf>,
    offset: u64,
    bytes: u64,
}

/// Chunk of a part, after it came into the repository.
struct Stored {
    chunk: Chunk,
    file: usize,
    stored_bytes: u64,
    is_new: bool,
}

/// Makes a snapshot of the files in a folder, which nothing may change meanwhile. `created` is the time of
/// the checkpoint in seconds since 1970. `parallel` chunks are under way at the same time.
///
/// # Errors
/// When the folder has files of another kind, or cannot be read, or the repository cannot be written. What
/// was uploaded stays, and the next call does not upload it again.
pub async fn create(
    folder: &Path,
    subject: Subject,
    created: u64,
    repository: &Repository,
    parallel: usize,
    progress: &Progress<'_>,
) -> anyhow::Result<Created> {
    let path = folder.to_owned();
    let mut files = spawn_blocking(move || files_of(&path)).await??;
    let total: u64 = files.iter().map(|file| file.bytes).sum();
    let done = AtomicU64::new(0);
    progress(0, total);
    let parts = parts_of(folder, &files);
    let mut stored = stream::iter(parts)
        .map(|part| async {
            let stored = upload(part, repository).await?;
            let bytes = stored.chunk.bytes;
            progress(done.fetch_add(bytes, Relaxed) + bytes, total);
            anyhow::Ok(stored)
        })
        .buffered(parallel.max(1));
    let (mut chunks, mut new_chunks, mut new_bytes, mut stored_bytes) = (0, 0, 0, 0);
    // In the order of the files and of their parts.
    while let Some(part) = stored.try_next().await? {
        chunks += 1;
        new_chunks += u64::from(part.is_new);
        new_bytes += if part.is_new { part.stored_bytes } else { 0 };
        stored_bytes += part.stored_bytes;
        files[part.file].chunks.push(part.chunk);
    }
    drop(stored);
    let manifest = Manifest { format: FORMAT, created, subject, stored_bytes, files };
    let name = repository.put_manifest(&manifest).await?;
    Ok(Created { name, manifest, chunks, new_chunks, new_bytes })
}

/// Returns the files of a folder by name, without chunks.
fn files_of(folder: &Path) -> anyhow::Result<Vec<FileEntry>> {
    let read = || -> anyhow::Result<Vec<FileEntry>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // RocksDB's own notes, which no database needs.
            if name == "LOCK" || name == "IDENTITY" || name.starts_with("LOG") {
                continue;
            }
            ensure!(is_database_file(&name), "{name:?} is not a file of a database");
            let bytes = entry.metadata()?.len();
            files.push(FileEntry { name, bytes, chunks: Vec::new() });
        }
        if !files.iter().any(|file| file.name == "CURRENT") {
            bail!("there is no database");
        }
        files.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    };
    read().with_context(|| folder.display().to_string())
}

fn parts_of(folder: &Path, files: &[FileEntry]) -> Vec<Part> {
    let mut parts = Vec::new();
    for (file, entry) in files.iter().enumerate() {
        let path = Arc::new(folder.join(&entry.name));
        for index in 0..entry.bytes.div_ceil(CHUNK_BYTES) {
            let offset = index * CHUNK_BYTES;
            let bytes = (entry.bytes - offset).min(CHUNK_BYTES);
            parts.push(Part { file, path: path.clone(), offset, bytes });
        }
    }
    parts
}

async fn upload(part: Part, repository: &Repository) -> anyhow::Result<Stored> {
    let Part { file, path, offset, bytes } = part;
    let read = move || -> anyhow::Result<_> {
        let plain =
            read_part(&path, offset, bytes).with_context(|| format!("read {}", path.display()))?;
        let name = hash(&plain);
        Ok((plain, name))
    };
    let (plain, name) = spawn_blocking(read).await??;
    let chunk = Chunk { hash: name, bytes };
    if let Some(stored_bytes) = repository.chunk_bytes(&name).await? {
        return Ok(Stored { chunk, file, stored_bytes, is_new: false });
    }
    let packed = spawn_blocking(move || pack(&plain)).await??;
    let stored_bytes = packed.len() as u64;
    repository.put_chunk(&name, packed).await?;
    Ok(Stored { chunk, file, stored_bytes, is_new: true })
}

fn read_part(path: &Path, offset: u64, bytes: u64) -> anyhow::Result<Vec<u8>> {
    let mut plain = vec![0; usize::try_from(bytes)?];
    File::open(path)?.read_exact_at(&mut plain, offset)?;
    Ok(plain)
}
