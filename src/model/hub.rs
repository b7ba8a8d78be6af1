//! Where a checkpoint comes from: a folder, or a repository of the Hugging Face hub.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::checkpoint::{Accepts, FILES, WORLD_FILE, names_world};
use super::{Checkpoint, CheckpointError};

/// What `--checkpoint` points at: a folder, or `hf:owner/name@revision` (`main` without a revision).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    Folder(PathBuf),
    Hub { repository: String, revision: String },
}

/// A checkpoint that could not be had.
#[derive(Debug, Error)]
pub enum SourceError {
    #[error("`{0}` is no checkpoint: give a folder or hf:owner/name@revision")]
    Syntax(String),
    /// The network, the hub, or the cache folder.
    #[error("cannot download `{file}` of hf:{repository}@{revision}: {problem}")]
    Download { repository: String, revision: String, file: &'static str, problem: String },
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// Where the hub is, and where downloads are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HubOptions {
    /// The hub's URL, without a slash at the end.
    pub endpoint: String,
    pub cache: PathBuf,
}

impl HubOptions {
    /// As the hub's own tools read them: `HF_ENDPOINT`, else huggingface.co; `HF_HOME/hub`, else the user's
    /// cache folder.
    ///
    /// # Errors
    /// Where there is neither `HF_HOME` nor a home folder.
    pub fn from_environment() -> Result<HubOptions, SourceError> {
        let endpoint = std::env::var("HF_ENDPOINT").unwrap_or_else(|_| "https://huggingface.co".into());
        // the client's default panics where there is no home folder
        let cache = match (std::env::var_os("HF_HOME"), std::env::home_dir()) {
            (Some(home), _) => PathBuf::from(home).join("hub"),
            (None, Some(home)) => home.join(".cache/huggingface/hub"),
            (None, None) => return Err(SourceError::Syntax("hf: without HF_HOME or a home folder".into())),
        };
        Ok(HubOptions { endpoint: endpoint.trim_end_matches('/').to_string(), cache })
    }
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Source, SourceError> {
        let Some(name) = text.strip_prefix("hf:") else {
            return match text.is_empty() {
                true => Err(SourceError::Syntax(text.into())),
                false => Ok(Source::Folder(PathBuf::from(text))),
            };
        };
        let (repository, revision) = name.split_once('@').unwrap_or((name, "main"));
        let parts: Vec<&str> = repository.split('/').collect();
        if parts.len() != 2 || !parts.into_iter().all(is_name) || !revision.split('/').all(is_name) {
            return Err(SourceError::Syntax(text.chars().take(200).collect()));
        }
        Ok(Source::Hub { repository: repository.into(), revision: revision.into() })
    }
}

/// Names that mean the same in a URL and in a path.
fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !text.is_empty() && text.len() <= 96 && !text.starts_with('.') && text.chars().all(allowed)
}

impl Source {
    /// Gets the checkpoint, downloads it first if need be, and checks all of it; see [`Checkpoint::load`].
    ///
    /// # Errors
    /// What kept it from being had, or from being used.
    pub fn load(&self, accepts: Accepts<'_>) -> Result<Checkpoint, SourceError> {
        match self {
            Source::Folder(folder) => Ok(Checkpoint::load(folder, accepts)?),
            Source::Hub { .. } => self.load_from(accepts, &HubOptions::from_environment()?),
        }
    }

    /// [`Source::load`] with the hub's place given.
    ///
    /// # Errors
    /// As [`Source::load`].
    pub fn load_from(&self, accepts: Accepts<'_>, options: &HubOptions) -> Result<Checkpoint, SourceError> {
        match self {
            Source::Folder(folder) => Ok(Checkpoint::load(folder, accepts)?),
            Source::Hub { repository, revision } => {
                let folder = download(repository, revision, options)?;
                Ok(Checkpoint::load(&folder, accepts)?)
            }
        }
    }
}

/// Downloads all files that the cache lacks; returns the folder of the revision's snapshot.
fn download(repository: &str, revision: &str, options: &HubOptions) -> Result<PathBuf, SourceError> {
    let mut folder = PathBuf::new();
    let mut files = FILES.to_vec();
    while !files.is_empty() {
        let (file, limit) = files.remove(0);
        // the client trusts the server's headers with `unwrap` here and there; a bad server must not end the
        // program
        let result = catch_unwind(AssertUnwindSafe(|| fetch(repository, revision, file, limit, options)))
            .unwrap_or_else(|_| Err("the server's answer makes no sense".into()));
        let path = result.map_err(|problem| SourceError::Download {
            repository: repository.into(),
            revision: revision.into(),
            file,
            problem,
        })?;
        let parent = path.parent().unwrap_or(Path::new(".")).to_path_buf();
        if !folder.as_os_str().is_empty() && parent != folder {
            return Err(SourceError::Download {
                repository: repository.into(),
                revision: revision.into(),
                file,
                problem: "the revision moved during the download, try again".into(),
            });
        }
        // the first file says whether there is a last one
        let is_first = folder.as_os_str().is_empty();
        if is_first && std::fs::read(&path).is_ok_and(|config| names_world(&config)) {
            files.push(WORLD_FILE);
        }
        folder = parent;
    }
    Ok(folder)
}

/// One file, from the cache or from the hub, checked against the size and the hash that the hub names.
fn fetch(
    repository: &str,
    revision: &str,
    file: &'static str,
    limit: u64,
    options: &HubOptions,
) -> Result<PathBuf, String> {
    let repo = Repo::with_revision(repository.into(), RepoType::Model, revision.into());
    // a commit never changes, a branch may: only the former is taken from the cache unasked
    let pinned = revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit());
    let cache = Cache::new(options.cache.clone());
    if let Some(path) = cache.repo(repo.clone()).get(file).filter(|_| pinned) {
        return Ok(path);
    }
    let api = api(options).map_err(|e| e.to_string())?;
    let handle = api.repo(repo);
    let metadata = api.metadata(&handle.url(file)).map_err(|e| e.to_string())?;
    if pinned && !metadata.commit_hash().eq_ignore_ascii_case(revision) {
        return Err(format!("the server answers for commit {}", metadata.commit_hash()));
    }
    if metadata.size() as u64 > limit {
        return Err(format!("it has {} bytes, more than {limit}", metadata.size()));
    }
    // both become names in the cache folder
    if !is_name(metadata.etag()) || !is_name(metadata.commit_hash()) {
        return Err("the server names an impossible etag or commit".into());
    }
    let path = handle.download(file).map_err(|e| e.to_string())?;
    verify(&path, metadata.size(), metadata.etag()).inspect_err(|_| {
        // leave nothing broken behind; what cannot be removed will be checked and refused again
        let _ = std::fs::canonicalize(&path).and_then(std::fs::remove_file);
        let _ = std::fs::remove_file(&path);
    })?;
    Ok(path)
}

fn api(options: &HubOptions) -> Result<Api, ApiError> {
    let builder = ApiBuilder::from_cache(Cache::new(options.cache.clone()));
    builder.with_endpoint(options.endpoint.clone()).with_progress(false).build()
}

/// The hub names files that it stores apart, as weights are, by their SHA-256.
fn verify(path: &Path, size: usize, etag: &str) -> Result<(), String> {
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    if bytes.len() != size {
        return Err(format!("{} of {size} bytes arrived", bytes.len()));
    }
    if etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit()) {
        let found: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        if !found.eq_ignore_ascii_case(etag) {
            return Err(format!("its SHA-256 is {found}, the hub says {etag}"));
        }
    }
    Ok(())
}
