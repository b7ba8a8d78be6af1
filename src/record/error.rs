//! Why the store cannot do what it was asked, and whose fault it is.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use thiserror::Error;

use super::corpus::CorpusError;

/// Why the store cannot do what it was asked.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Bad input: the file is something else. It was not touched.
    #[error("{path} is not a Tilescribe record store: {found}; it was left as it is. Name another file")]
    Foreign { path: PathBuf, found: String },
    /// Bad input: the file is ours, of another version. It was not touched.
    #[error(
        "{path} is a record store of version {found}, this Tilescribe reads version {expected}; \
         export it with the Tilescribe that wrote it"
    )]
    Version { path: PathBuf, found: i32, expected: i32 },
    /// Bad input: the file is damaged, or something else wrote to it.
    #[error("{path}: the record store is damaged: {detail}. Move it away, or restore a copy")]
    Corrupt { path: PathBuf, detail: String },
    /// Environment. Everything committed before is kept.
    #[error("{path}: the disk is full; every record committed before is safe")]
    DiskFull { path: PathBuf },
    /// Environment: another process held the store for longer than we wait.
    #[error("{path}: another process keeps the record store locked")]
    Locked { path: PathBuf },
    /// Environment: no permission, no such folder, a read-only disk, ...
    #[error("{path}: {source}")]
    Access { path: PathBuf, source: io::Error },
    /// Bad input, or environment: while exporting or importing.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// Our bug.
    #[error("{path}: {source}")]
    Database { path: PathBuf, source: rusqlite::Error },
}

impl StoreError {
    pub(super) fn from_io(path: &Path, source: io::Error) -> StoreError {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::DiskFull { path: path.into() },
            _ => StoreError::Access { path: path.into(), source },
        }
    }

    pub(super) fn from_sqlite(path: &Path, source: rusqlite::Error) -> StoreError {
        let path = path.to_path_buf();
        let detail = source.to_string();
        match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => StoreError::DiskFull { path },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Locked { path },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Corrupt { path, detail },
            Some(
                ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly | ErrorCode::SystemIoFailure,
            ) => StoreError::Access { path, source: io::Error::other(detail) },
            Some(ErrorCode::ApiMisuse | ErrorCode::ParameterOutOfRange) => StoreError::Database { path, source },
            Some(ErrorCode::OutOfMemory) => StoreError::Access { path, source: io::Error::other(detail) },
            // a table or column that is not there, a constraint that does not hold, a number that cannot be:
            // something else wrote to the file
            Some(_) => StoreError::Corrupt { path, detail },
            None => match source {
                rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::Utf8Error(..)
                | rusqlite::Error::QueryReturnedNoRows => StoreError::Corrupt { path, detail },
                source => StoreError::Database { path, source },
            },
        }
    }
}
