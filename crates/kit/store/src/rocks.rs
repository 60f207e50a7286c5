//! An open database of RocksDB, and the column families of its tables.

use crate::{
    Error, Options, Result, Table,
    deep::DeepReads,
    layout::{FamilyFiles, Layout, shard_of},
    options::SHARDS,
    tables::{self, index_of},
};
use rocksdb::{ColumnFamily, ColumnFamilyDescriptor, DBPath, DBWithThreadMode, SingleThreaded};
use std::path::{Path, PathBuf};

/// Open database of RocksDB. Column families never change while it is in use, so their map needs no
/// lock.
pub(crate) type Db = DBWithThreadMode<SingleThreaded>;

/// An open database.
pub(crate) struct Rocks {
    pub db: Db,
    /// Options of the database, which own its counters.
    pub options: rocksdb::Options,
    pub path: PathBuf,
    pub layout: Layout,
    pub deep: DeepReads,
    /// Column families of each table, in the order of [`tables::ALL`] and of their keys.
    families: Vec<Vec<Family>>,
    /// Position of each shard's column family in a table that is divided.
    positions: [u8; SHARDS],
}

/// Column family of a table, or of a range of its shards.
pub(crate) struct Family {
    pub name: String,
    pub options: rocksdb::Options,
    /// Directory of its files.
    pub directory: PathBuf,
}

impl Rocks {
    /// Opens a database with the column families of a layout, and with others that belong to no table of it.
    ///
    /// # Errors
    /// [`Error::Locked`] or [`Error::Database`].
    pub fn open(
        path: &Path,
        settings: &Options,
        database: rocksdb::Options,
        layout: Layout,
        others: &[FamilyFiles],
    ) -> Result<Self> {
        let cache = settings.cache();
        let mut families: Vec<Vec<Family>> = Vec::with_capacity(tables::ALL.len());
        for entry in &tables::ALL {
            let names = layout.families(entry);
            let parts = names.len();
            let family = |(name, directory): FamilyFiles| -> Result<Family> {
                let mut options = entry.1.column_family(&cache, parts);
                options.set_disable_auto_compactions(!settings.auto_compaction);
                place(&mut options, directory.as_deref())?;
                let directory = directory.unwrap_or_else(|| path.to_owned());
                Ok(Family { name, options, directory })
            };
            families.push(names.into_iter().map(family).collect::<Result<_>>()?);
        }
        let known = families.iter().flatten();
        let known = known.map(|family| (family.name.clone(), family.options.clone()));
        let mut descriptors: Vec<_> =
            known.map(|(name, options)| ColumnFamilyDescriptor::new(name, options)).collect();
        for (name, directory) in others {
            let mut options = rocksdb::Options::default();
            options.set_disable_auto_compactions(true);
            place(&mut options, directory.as_deref())?;
            descriptors.push(ColumnFamilyDescriptor::new(name, options));
        }
        let db = match Db::open_cf_descriptors(&database, path, descriptors) {
            Ok(db) => db,
            Err(error) if is_lock_error(&error) => return Err(Error::Locked(path.to_owned())),
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            db,
            options: database,
            path: path.to_owned(),
            positions: layout.positions(),
            layout,
            deep: DeepReads::start(settings.read_threads.into()),
            families,
        })
    }

    /// Removes the column families of a table with their records.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn remove<T: Table>(&mut self) -> Result<()> {
        for family in &self.families[index_of::<T>()] {
            self.db.drop_cf(&family.name)?;
        }
        Ok(())
    }

    /// Creates the column families of a table.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn create<T: Table>(&mut self) -> Result<()> {
        for family in &self.families[index_of::<T>()] {
            self.db.create_cf(&family.name, &family.options)?;
        }
        Ok(())
    }

    /// Returns the position of a key's column family among those of its table.
    pub fn position<T: Table>(&self, key: &[u8]) -> usize {
        match T::TUNING.is_sharded() {
            true => usize::from(self.positions[shard_of(T::TUNING.shard(), key)]),
            false => 0,
        }
    }

    /// Returns the column families of a table.
    pub fn families<T: Table>(&self) -> &[Family] {
        &self.families[index_of::<T>()]
    }

    /// Returns the column families of a table by its place in [`tables::ALL`].
    pub fn families_at(&self, table: usize) -> &[Family] {
        &self.families[table]
    }

    /// Returns the handle of a column family.
    pub fn handle(&self, family: &Family) -> &ColumnFamily {
        handle(&self.db, &family.name)
    }

    /// Returns the handle of the column family at a position.
    pub fn handle_at<T: Table>(&self, position: usize) -> &ColumnFamily {
        self.handle(&self.families::<T>()[position])
    }

    /// Returns the handle of a key's column family.
    pub fn handle_of<T: Table>(&self, key: &[u8]) -> &ColumnFamily {
        self.handle_at::<T>(self.position::<T>(key))
    }

    /// Returns the handles of all column families of a table.
    pub fn handles<T: Table>(&self) -> impl Iterator<Item = &ColumnFamily> {
        self.families::<T>().iter().map(|family| self.handle(family))
    }

    /// Returns the positions of the column families that may have keys from `first` to before `end`.
    pub fn span<T: Table>(
        &self,
        first: &[u8],
        end: Option<&[u8]>,
    ) -> std::ops::RangeInclusive<usize> {
        let (first, last) = (self.position::<T>(first), self.families::<T>().len() - 1);
        first..=end.map_or(last, |end| self.position::<T>(end)).max(first)
    }
}

/// Returns the handle of a column family by its name.
pub(crate) fn handle<'d>(db: &'d Db, name: &str) -> &'d ColumnFamily {
    db.cf_handle(name).expect("every table is opened with the database")
}

/// Sets the directory of a column family's files.
pub(crate) fn place(options: &mut rocksdb::Options, directory: Option<&Path>) -> Result<()> {
    if let Some(directory) = directory {
        options.set_cf_paths(&[DBPath::new(directory, u64::MAX)?]);
    }
    Ok(())
}

/// Returns whether an error means that a process has the database open.
pub(crate) fn is_lock_error(error: &rocksdb::Error) -> bool {
    let text = error.as_ref();
    text.contains("lock file") || text.contains("lock hold by current process")
}
