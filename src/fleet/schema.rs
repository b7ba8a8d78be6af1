//! How a fleet comes into being: its tables and functions, step by step, and who may use them.

use super::error::FleetError;
use super::link::Client;
use super::settings::Settings;

/// What brings the tables from one version to the next; their number is the version.
const MIGRATIONS: [&str; 3] = [
    include_str!("schema/1_tables.sql"),
    include_str!("schema/2_workers.sql"),
    include_str!("schema/3_coordinators.sql"),
];

/// The version of the tables that this Tilescribe works with.
const VERSION: i32 = MIGRATIONS.len() as i32;

/// What makes the rights: after every migration, since functions may be new.
const RIGHTS: &str = include_str!("schema/rights.sql");

/// Two who migrate at once wait for each other by this number.
const MIGRATION_LOCK: i64 = 0x7469_6c65;

/// Makes sure that a fleet of this version is there.
///
/// # Errors
/// [`FleetError::NoFleet`] and [`FleetError::Version`].
pub(super) fn check(client: &mut Client) -> Result<(), FleetError> {
    let found: i32 = client.query_one("SELECT fleet.version()", &[])?.get(0);
    match found == VERSION {
        true => Ok(()),
        false => Err(FleetError::Version { found, expected: VERSION }),
    }
}

/// What [`init`] did.
#[derive(Clone, Debug)]
pub struct Initialised {
    /// Versions before and after.
    pub from: i32,
    pub to: i32,
    /// Addresses for coordinators and for workers, with their passwords, where these are new.
    pub addresses: Option<[String; 2]>,
    /// Settings of the server under which it may lose what it has confirmed.
    pub unsafe_settings: Vec<String>,
}

/// Makes the fleet of a database, or brings it up to date. The user needs the right to create roles. The
/// roles `DATABASE_coordinator` and `DATABASE_worker` are given passwords where they are new, or where
/// `renew_passwords` asks for it.
///
/// # Errors
/// [`FleetError::Refused`] where a right is missing; then nothing has changed.
pub fn init(settings: &Settings, lease_seconds: Option<u32>, renew_passwords: bool) -> Result<Initialised, FleetError> {
    let database = settings.database()?;
    let mut client = Client::connect(settings)?;
    // undone where the connection ends before its end
    client.run("BEGIN")?;
    client.query("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK])?;
    let from = migrate(&mut client)?;
    if let Some(seconds) = lease_seconds {
        let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
        client.query("UPDATE fleet.about SET lease_seconds = $1", &[&seconds])?;
    }
    let roles = ["coordinator", "worker"].map(|role| format!("{database}_{role}"));
    let mut passwords = Vec::new();
    for role in &roles {
        let is_there = !client.query("SELECT FROM pg_roles WHERE rolname = $1", &[role])?.is_empty();
        if !is_there {
            client.run(&format!("CREATE ROLE {} LOGIN", quoted(role)))?;
        }
        if !is_there || renew_passwords {
            let password = random_password()?;
            client.run(&format!("ALTER ROLE {} PASSWORD '{password}'", quoted(role)))?;
            passwords.push(settings.address_for(role, &password));
        }
    }
    let rights = RIGHTS.replace("{database}", &quoted(database));
    let rights = rights.replace("{coordinator}", &quoted(&roles[0])).replace("{worker}", &quoted(&roles[1]));
    client.run(&rights)?;
    let mut unsafe_settings = Vec::new();
    for (name, least) in [("fsync", "on"), ("full_page_writes", "on"), ("synchronous_commit", "on")] {
        let value: String = client.query_one("SELECT current_setting($1)", &[&name])?.get(0);
        // there are stricter ones, too
        if value == "off" || value == "local" {
            unsafe_settings.push(format!("{name} = {value} (expected {least})"));
        }
    }
    client.run("COMMIT")?;
    let addresses = <[String; 2]>::try_from(passwords).ok();
    Ok(Initialised { from, to: VERSION, addresses, unsafe_settings })
}

/// Takes the steps that are missing; returns the version before.
fn migrate(client: &mut Client) -> Result<i32, FleetError> {
    let is_there = "SELECT to_regclass('fleet.migrations') IS NOT NULL";
    let mut from = 0;
    if client.query_one(is_there, &[])?.get(0) {
        from = client.query_one("SELECT max(number) FROM fleet.migrations", &[])?.get::<_, Option<i32>>(0).unwrap_or(0);
    }
    if from > VERSION {
        return Err(FleetError::Version { found: from, expected: VERSION });
    }
    for (number, migration) in (1..).zip(MIGRATIONS).skip(usize::try_from(from).unwrap_or(0)) {
        client.run(migration)?;
        if number == 1 {
            client.run("CREATE TABLE fleet.migrations (number integer PRIMARY KEY, taken timestamptz NOT NULL)")?;
        }
        client.query("INSERT INTO fleet.migrations VALUES ($1, clock_timestamp())", &[&number])?;
    }
    Ok(from)
}

/// A name as SQL takes it.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// 192 random bits, in letters that an address takes as they are.
fn random_password() -> Result<String, FleetError> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes)
        .map_err(|error| FleetError::Refused { detail: format!("no random numbers: {error}") })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
