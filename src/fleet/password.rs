//! Passwords that are not in an address: where PostgreSQL's own programs look for them.

use std::path::PathBuf;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::settings::MAX_FILE_BYTES;
use crate::files;

/// That of `PGPASSWORD`, or of the file that `PGPASSFILE` names, or of `~/.pgpass`.
pub(super) fn of(config: &Config) -> Option<String> {
    std::env::var("PGPASSWORD").ok().or_else(|| of_file(config))
}

/// The password that a file of PostgreSQL's holds for a server: lines of
/// `host:port:database:user:password`, in which `*` stands for anything and `\` before `:` and `\`.
fn of_file(config: &Config) -> Option<String> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pgpass"));
    let path = std::env::var_os("PGPASSFILE").map(PathBuf::from).or_else(home)?;
    let metadata = std::fs::metadata(&path).ok()?;
    if std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 != 0 {
        tracing::warn!("{}: left out, since others may read it; `chmod 600` it", path.display());
        return None;
    }
    let text = files::read_text(&path, MAX_FILE_BYTES).ok()?;
    let host = match config.get_hosts().first()? {
        Host::Tcp(name) => name.clone(),
        Host::Unix(_) => "localhost".into(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let wanted = [host.as_str(), port.as_str(), config.get_dbname()?, config.get_user()?];
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let (password, place) = fields.split_last()?;
        let fits = |(field, wanted): (&String, &&str)| field == "*" || field == wanted;
        (place.len() == wanted.len() && place.iter().zip(&wanted).all(fits)).then(|| password.clone())
    })
}

fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        let field = match letter {
            ':' => {
                fields.push(String::new());
                continue;
            }
            '\\' => letters.next().unwrap_or('\\'),
            other => other,
        };
        fields.iter_mut().last().into_iter().for_each(|last| last.push(field));
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::fields;

    #[test]
    fn fields_of_a_line_may_hold_colons() {
        assert_eq!(fields(r"h\:1:*:d:u:p\\w"), ["h:1", "*", "d", "u", r"p\w"]);
    }
}
