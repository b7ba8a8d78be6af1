//! Where the server is, and how it is spoken to.
//!
//! TLS with a certificate that is checked is the default; only a socket of the same machine goes without. It
//! is left out by `sslmode=disable`, and nothing in between is offered: encryption without knowing to whom
//! protects from nobody who can be in between.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::{FleetError, causes};
use super::password;
use crate::files;

/// No file of settings or passwords is larger.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;
/// A machine that does not answer within this time is lost.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The same of a server that has heard a question: longer than it may work on one.
const DEADLINE: Duration = Duration::from_secs(90);

/// Where the server is, and how it is spoken to. Prints without the password.
#[derive(Clone)]
pub struct Settings {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    deadline: Duration,
}

/// A file of settings.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    url: String,
    password: Option<String>,
    sslrootcert: Option<PathBuf>,
}

impl Settings {
    /// `postgres://USER@HOST/DATABASE`, or the name of a TOML file with `url` and, where wanted, `password`
    /// and `sslrootcert`. A password that is missing is taken from `PGPASSWORD`, or the file that
    /// `PGPASSFILE` names, or `~/.pgpass`.
    ///
    /// Of the parameters of an address, `sslmode` is `verify-full` (the default) or `disable`; `sslrootcert`
    /// names a file of certificates that are trusted instead of the system's; all others are those of the
    /// crate `postgres`.
    ///
    /// # Errors
    /// [`FleetError::Settings`].
    pub fn read(given: &str) -> Result<Settings, FleetError> {
        if is_address(given) {
            return Settings::of(given, None, None);
        }
        let path = Path::new(given);
        let unreadable = |reason: String| FleetError::Settings(format!("{given}: {reason}"));
        let text = files::read_text(path, MAX_FILE_BYTES).map_err(|error| {
            unreadable(format!("{error} (expected postgres://USER@HOST/DATABASE, or a file of settings)"))
        })?;
        let file: File = toml::from_str(&text).map_err(|error| unreadable(error.message().to_string()))?;
        if !is_address(&file.url) {
            return Err(unreadable("`url` is no postgres:// address".into()));
        }
        let beside = |certificate: PathBuf| files::folder_of(path).join(certificate);
        Settings::of(&file.url, file.password, file.sslrootcert.map(beside))
    }

    fn of(url: &str, password: Option<String>, roots: Option<PathBuf>) -> Result<Settings, FleetError> {
        let Address { plain, is_encrypted, roots: named } = Address::of(url)?;
        let mut config = Config::from_str(&plain).map_err(|error| FleetError::Settings(causes(&error)))?;
        config.application_name("tilescribe").connect_timeout(TIMEOUT).tcp_user_timeout(TIMEOUT);
        config.keepalives_idle(TIMEOUT).keepalives_interval(TIMEOUT / 3).keepalives_retries(3);
        // what works on the server longer than this is stopped by it, so that nobody waits for ever
        let limits = "-c statement_timeout=60s -c lock_timeout=30s -c idle_in_transaction_session_timeout=60s";
        let options = config.get_options().map_or_else(|| limits.to_string(), |given| format!("{limits} {given}"));
        config.options(&options);
        let is_local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        let tls = match is_encrypted && !is_local {
            true => Some(MakeRustlsConnect::new(client(named.or(roots).as_deref())?)),
            false => None,
        };
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        if config.get_password().is_none()
            && let Some(password) = password.or_else(|| password::of(&config))
        {
            config.password(password);
        }
        Ok(Settings { config, tls, deadline: DEADLINE })
    }

    /// Under another name for those who look at the server's sessions.
    #[must_use]
    pub fn called(mut self, name: &str) -> Settings {
        self.config.application_name(name);
        self
    }

    /// With another time after which a server that does not answer is lost.
    #[must_use]
    pub fn within(mut self, deadline: Duration) -> Settings {
        self.deadline = deadline;
        self
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Connects; the connection lives as long as the runtime that this is called on.
    ///
    /// # Errors
    /// [`FleetError::Lost`] or [`FleetError::Refused`].
    pub(super) async fn connect(&self) -> Result<Client, FleetError> {
        // how a connection ends is told to whoever asks something through it
        Ok(match &self.tls {
            Some(tls) => {
                let (client, connection) = self.config.connect(tls.clone()).await?;
                tokio::spawn(async { drop(connection.await) });
                client
            }
            None => {
                let (client, connection) = self.config.connect(NoTls).await?;
                tokio::spawn(async { drop(connection.await) });
                client
            }
        })
    }

    /// The database that holds the fleet.
    pub(super) fn database(&self) -> Result<&str, FleetError> {
        let missing = || FleetError::Settings("it names no database: postgres://USER@HOST/DATABASE".into());
        self.config.get_dbname().filter(|name| !name.is_empty()).ok_or_else(missing)
    }

    /// The address of the same database for another user.
    pub(super) fn address_for(&self, user: &str, password: &str) -> String {
        let database = self.config.get_dbname().unwrap_or_default();
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        match self.config.get_hosts().first() {
            Some(Host::Tcp(host)) => format!("postgres://{user}:{password}@{host}:{port}/{database}"),
            Some(Host::Unix(folder)) => {
                format!("postgres://{user}:{password}@/{database}?host={}&port={port}", folder.display())
            }
            None => format!("postgres://{user}:{password}@/{database}"),
        }
    }
}

fn is_address(given: &str) -> bool {
    given.starts_with("postgres://") || given.starts_with("postgresql://")
}

/// An address without what the crate `postgres` leaves to others.
struct Address {
    plain: String,
    is_encrypted: bool,
    roots: Option<PathBuf>,
}

impl Address {
    fn of(url: &str) -> Result<Address, FleetError> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let mut address = Address { plain: place.to_string(), is_encrypted: true, roots: None };
        let mut rest = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("sslmode", "verify-full")) => {}
                Some(("sslmode", "disable")) => address.is_encrypted = false,
                Some(("sslmode", other)) => {
                    let reason = format!(
                        "`sslmode={other}` is not offered: `verify-full`, the default, with `sslrootcert=FILE` for a \
                         certificate of one's own, or `disable`"
                    );
                    return Err(FleetError::Settings(reason));
                }
                Some(("sslrootcert", path)) => address.roots = Some(PathBuf::from(decoded(path)?)),
                _ => rest.push(part),
            }
        }
        if !rest.is_empty() {
            address.plain = format!("{place}?{}", rest.join("&"));
        }
        Ok(address)
    }
}

/// What stands behind `%2F` and its like.
fn decoded(text: &str) -> Result<String, FleetError> {
    let invalid = || FleetError::Settings(format!("`{text}` is no part of an address"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        bytes.push(match byte {
            b'%' => {
                let (digits, tail) = rest.split_at_checked(2).ok_or_else(invalid)?;
                rest = tail;
                let digits = std::str::from_utf8(digits).map_err(|_| invalid())?;
                u8::from_str_radix(digits, 16).map_err(|_| invalid())?
            }
            byte => *byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| invalid())
}

/// Whom to trust: the certificates of a file, or those of the system.
fn client(roots: Option<&Path>) -> Result<ClientConfig, FleetError> {
    let mut trusted = RootCertStore::empty();
    let certificates = match roots {
        Some(path) => {
            let bad =
                |reason: String| FleetError::Settings(format!("the certificates in {}: {reason}", path.display()));
            let bytes = files::read(path, MAX_FILE_BYTES).map_err(|error| bad(error.to_string()))?;
            let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
            let found = found.map_err(|error| bad(error.to_string()))?;
            if found.is_empty() {
                return Err(bad("there are none".into()));
            }
            found
        }
        None => rustls_native_certs::load_native_certs().certs,
    };
    trusted.add_parsable_certificates(certificates);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| FleetError::Settings(error.to_string()))?;
    Ok(client.with_root_certificates(trusted).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Address, Settings, decoded};

    #[test]
    fn encryption_is_left_out_only_by_name() {
        let of = |url| Address::of(url).map(|address| (address.plain, address.is_encrypted, address.roots));
        assert_eq!(of("postgres://u@h/d").unwrap(), ("postgres://u@h/d".into(), true, None));
        let url = "postgres://u@h/d?sslmode=verify-full&connect_timeout=3&sslrootcert=a%20b.crt";
        let expected = ("postgres://u@h/d?connect_timeout=3".into(), true, Some(PathBuf::from("a b.crt")));
        assert_eq!(of(url).unwrap(), expected);
        assert!(!of("postgres://u@h/d?sslmode=disable").unwrap().1);
        for mode in ["require", "prefer", "allow", "verify-ca", ""] {
            let error = Settings::read(&format!("postgres://u@h/d?sslmode={mode}")).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains("is not offered"), "{error}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in
            ["nowhere.toml", "postgres://h:port/d", "postgres://u@h/d?unknown=1", "postgres://u@h/d?sslrootcert=%zz"]
        {
            assert!(Settings::read(text).is_err(), "{text}");
        }
        assert_eq!(decoded("a%2Fb%25").unwrap(), "a/b%");
    }
}
