//! Where files are kept unless a command says otherwise.

use std::path::PathBuf;

/// Tilescribe's part of the user's cache folder; `None` where neither `XDG_CACHE_HOME` nor `HOME` names one.
pub fn cache_folder() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("tilescribe"))
}
