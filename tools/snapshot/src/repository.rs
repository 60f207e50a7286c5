//! Directory or bucket with snapshots.

use crate::{
    Manifest,
    manifest::{CHUNK_BYTES, MANIFEST_BYTES_MAX},
};
use anyhow::{Context, bail, ensure};
use futures_util::TryStreamExt;
use object_store::{
    Error, ObjectStore, ObjectStoreExt, PutPayload, aws::AmazonS3Builder,
    azure::MicrosoftAzureBuilder, gcp::GoogleCloudStorageBuilder, local::LocalFileSystem,
    path::Path, prefix::PrefixStore,
};
use std::{fs, sync::Arc};
use tandem_primitives::{B256, Bytes};
use url::Url;

/// Snapshots that a repository may have, at most.
const SNAPSHOTS_MAX: usize = 10_000;

/// Level of compression: the files are compressed already, mostly by LZ4, and this is fast.
const LEVEL: i32 = 1;

/// Directory or bucket with snapshots and their chunks.
#[derive(Clone, Debug)]
pub struct Repository {
    objects: Arc<dyn ObjectStore>,
    /// Address for messages.
    address: String,
}

impl Repository {
    /// Opens the repository at a path, or at a URL `file:///…`, `s3://BUCKET/…`, `gs://BUCKET/…` or
    /// `az://CONTAINER/…`. A missing directory is made if `create` is set. Connects to nothing. Credentials and
    /// endpoints come from the usual variables of the environment, those of the crate `object_store`
    /// (`AWS_ACCESS_KEY_ID`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME` and others).
    ///
    /// # Errors
    /// When the address is not one of these, or the directory is missing.
    pub fn open(address: &str, create: bool) -> anyhow::Result<Self> {
        Self::open_at(address, create).with_context(|| format!("snapshots at {address}"))
    }

    fn open_at(address: &str, create: bool) -> anyhow::Result<Self> {
        let url = match address.contains("://") {
            true => Url::parse(address).context("not a URL")?,
            false => return Self::open_directory(std::path::Path::new(address), address, create),
        };
        let prefix = Path::from_url_path(url.path())?;
        let objects: Arc<dyn ObjectStore> = match url.scheme() {
            "file" => {
                let Ok(path) = url.to_file_path() else { bail!("expected file:///PATH") };
                return Self::open_directory(&path, address, create);
            }
            "s3" => Arc::new(AmazonS3Builder::from_env().with_url(address).build()?),
            "gs" => Arc::new(GoogleCloudStorageBuilder::from_env().with_url(address).build()?),
            "az" => Arc::new(MicrosoftAzureBuilder::from_env().with_url(address).build()?),
            scheme => bail!("unknown scheme {scheme}; expected a path, file, s3, gs or az"),
        };
        Ok(Self {
            objects: Arc::new(PrefixStore::new(objects, prefix)),
            address: address.to_owned(),
        })
    }

    fn open_directory(path: &std::path::Path, address: &str, create: bool) -> anyhow::Result<Self> {
        if create {
            fs::create_dir_all(path)?;
        }
        let objects = LocalFileSystem::new_with_prefix(path)?.with_fsync(true);
        Ok(Self { objects: Arc::new(objects), address: address.to_owned() })
    }

    /// Returns a repository over any store of objects.
    pub fn over(objects: Arc<dyn ObjectStore>) -> Self {
        let address = objects.to_string();
        Self { objects, address }
    }

    /// Returns all snapshots with their names, the lowest head first.
    ///
    /// # Errors
    /// When the repository or a manifest cannot be read.
    pub async fn list(&self) -> anyhow::Result<Vec<(String, Manifest)>> {
        let mut snapshots = Vec::new();
        for name in self.names().await? {
            let manifest = self.manifest(&name).await?;
            snapshots.push((name, manifest));
        }
        Ok(snapshots)
    }

    /// Returns the name and manifest of the snapshot with the newest head.
    ///
    /// # Errors
    /// As [`Self::list`], and when there is no snapshot.
    pub async fn newest(&self) -> anyhow::Result<(String, Manifest)> {
        let Some(name) = self.names().await?.pop() else {
            bail!("{} has no snapshot", self.address);
        };
        let manifest = self.manifest(&name).await?;
        Ok((name, manifest))
    }

    /// Returns the names of all snapshots, the lowest head first.
    ///
    /// # Errors
    /// When the repository cannot be read, or has too many.
    pub async fn names(&self) -> anyhow::Result<Vec<String>> {
        let mut objects = self.objects.list(Some(&Path::from("snapshots")));
        let mut names = Vec::new();
        let listed = || format!("list the snapshots at {}", self.address);
        while let Some(object) = objects.try_next().await.with_context(listed)? {
            if let Some(name) = object.location.filename().and_then(|it| it.strip_suffix(".json")) {
                ensure!(
                    names.len() < SNAPSHOTS_MAX,
                    "{} has more than {SNAPSHOTS_MAX} snapshots; remove old ones",
                    self.address
                );
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Reads the manifest of a snapshot.
    ///
    /// # Errors
    /// When there is none of this name, or it is not valid ([`Manifest::parse`]).
    pub async fn manifest(&self, name: &str) -> anyhow::Result<Manifest> {
        let context = || format!("snapshot {name} at {}", self.address);
        let read = async {
            let text = match self.get(&manifest_path(name), MANIFEST_BYTES_MAX).await? {
                Some(text) => text,
                None => bail!("there is no such snapshot"),
            };
            Manifest::parse(&text)
        };
        read.await.with_context(context)
    }

    /// Writes the manifest of a snapshot, which makes it one. Returns its name.
    pub(crate) async fn put_manifest(&self, manifest: &Manifest) -> anyhow::Result<String> {
        let name = manifest.name();
        let text = serde_json::to_vec(manifest)?;
        ensure!(
            text.len() as u64 <= MANIFEST_BYTES_MAX,
            "a manifest of {} bytes; expected at most {MANIFEST_BYTES_MAX}",
            text.len()
        );
        let put = self.objects.put(&manifest_path(&name), PutPayload::from(text)).await;
        put.with_context(|| format!("write snapshot {name} to {}", self.address))?;
        Ok(name)
    }

    /// Returns the stored bytes of a chunk, `None` if it is not there.
    pub(crate) async fn chunk_bytes(&self, hash: &B256) -> anyhow::Result<Option<u64>> {
        match self.objects.head(&chunk_path(hash)).await {
            Ok(found) => Ok(Some(found.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error).with_context(|| self.of_chunk("look for", hash)),
        }
    }

    /// Stores a chunk.
    pub(crate) async fn put_chunk(&self, hash: &B256, packed: Vec<u8>) -> anyhow::Result<()> {
        let put = self.objects.put(&chunk_path(hash), PutPayload::from(packed)).await;
        put.map(|_| ()).with_context(|| self.of_chunk("write", hash))
    }

    /// Reads a chunk as it is stored. It is no longer than a chunk of `bytes` can be.
    pub(crate) async fn get_chunk(&self, hash: &B256, bytes: u64) -> anyhow::Result<Bytes> {
        let bytes_max = zstd::zstd_safe::compress_bound(usize::try_from(bytes)?) as u64;
        let read = self.get(&chunk_path(hash), bytes_max).await;
        let found = read.with_context(|| self.of_chunk("read", hash))?;
        found.with_context(|| self.of_chunk("read", hash) + ": it is missing")
    }

    /// Reads an object of at most so many bytes, `None` if there is none.
    async fn get(&self, path: &Path, bytes_max: u64) -> anyhow::Result<Option<Bytes>> {
        let found = match self.objects.get(path).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let size = found.meta.size;
        ensure!(size <= bytes_max, "{size} bytes are stored; expected at most {bytes_max}");
        // A server may send more than it said.
        let mut parts = found.into_stream();
        let mut bytes = Vec::with_capacity(usize::try_from(size)?);
        while let Some(part) = parts.try_next().await? {
            let length = (bytes.len() + part.len()) as u64;
            ensure!(length <= size, "{length} bytes or more are sent; {size} were announced");
            bytes.extend_from_slice(&part);
        }
        Ok(Some(bytes.into()))
    }

    /// Returns a message about a chunk.
    fn of_chunk(&self, done: &str, hash: &B256) -> String {
        format!("{done} chunk {hash:x} at {}", self.address)
    }
}

fn manifest_path(name: &str) -> Path {
    Path::from("snapshots").join(format!("{name}.json"))
}

fn chunk_path(hash: &B256) -> Path {
    let digits = const_hex::encode(hash);
    Path::from("chunks").join(&digits[..2]).join(digits)
}

/// Returns the name of a chunk.
pub(crate) fn hash(bytes: &[u8]) -> B256 {
    B256::from(*blake3::hash(bytes).as_bytes())
}

/// Compresses a chunk.
pub(crate) fn pack(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    zstd::bulk::compress(bytes, LEVEL).context("compress")
}

/// Unpacks a chunk of a stated size, and compares it with its name. Takes no more memory than stated.
pub(crate) fn unpack(packed: &[u8], bytes: u64, name: &B256) -> anyhow::Result<Vec<u8>> {
    ensure!(bytes <= CHUNK_BYTES, "a chunk of {bytes} bytes; expected at most {CHUNK_BYTES}");
    let unpack = || -> anyhow::Result<Vec<u8>> {
        let plain = zstd::bulk::decompress(packed, usize::try_from(bytes)?)
            .context("it is truncated or altered")?;
        let (length, found) = (plain.len() as u64, hash(&plain));
        ensure!(length == bytes, "it has {length} bytes; expected {bytes}");
        ensure!(found == *name, "it is altered: its hash is {found:x}");
        Ok(plain)
    };
    unpack().with_context(|| format!("chunk {name:x}"))
}
