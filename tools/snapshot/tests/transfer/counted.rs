//! Store in memory that counts operations, and fails when it was told to.

use futures_util::stream::BoxStream;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory,
    path::Path,
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Store in memory.
#[derive(Debug)]
pub struct Counted {
    pub objects: InMemory,
    /// Operations that still succeed.
    left: AtomicU64,
    puts: AtomicU64,
    gets: AtomicU64,
}

impl Counted {
    /// Returns an empty store that never fails.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            objects: InMemory::new(),
            left: AtomicU64::new(u64::MAX),
            puts: AtomicU64::new(0),
            gets: AtomicU64::new(0),
        })
    }

    /// Lets so many operations succeed and all later ones fail.
    pub fn fail_after(&self, operations: u64) {
        self.left.store(operations, Relaxed);
    }

    /// Returns how many objects were written.
    pub fn puts(&self) -> u64 {
        self.puts.load(Relaxed)
    }

    /// Returns how many objects were read.
    pub fn gets(&self) -> u64 {
        self.gets.load(Relaxed)
    }

    fn take(&self) -> Result<()> {
        let taken = self.left.try_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        let fails = |_| Error::Generic { store: "Counted", source: "the line is cut".into() };
        taken.map(|_| ()).map_err(fails)
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Counted {
    async fn put_opts(&self, to: &Path, payload: PutPayload, how: PutOptions) -> Result<PutResult> {
        self.take()?;
        self.puts.fetch_add(1, Relaxed);
        self.objects.put_opts(to, payload, how).await
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        unreachable!("a chunk is one object")
    }

    async fn get_opts(&self, from: &Path, how: GetOptions) -> Result<GetResult> {
        self.take()?;
        self.gets.fetch_add(u64::from(!how.head), Relaxed);
        self.objects.get_opts(from, how).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, how).await
    }
}
