//! A PostgreSQL server of a test's own, in a temporary folder, on a socket.

use std::fs;
use std::io::Write;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where Debian and others put the server's programs; `PATH` is looked through as well.
const PLACES: [&str; 4] =
    ["/usr/lib/postgresql/15/bin", "/usr/lib/postgresql/16/bin", "/usr/lib/postgresql/17/bin", "/usr/pgsql/bin"];

/// The user who runs the server where the tests are run by root, whom it does not serve.
const USER: &str = "postgres";

/// The database.
const DATABASE: &str = "fleet";

pub struct Server {
    folder: tempfile::TempDir,
    programs: PathBuf,
    /// Further settings, as `-c` takes them.
    settings: Vec<String>,
    /// Environment of the server.
    environment: Vec<(String, String)>,
    child: Option<Child>,
}

/// Where the server's programs are; `None`, and a word about it, where they are missing.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = PLACES.iter().map(PathBuf::from).chain(std::env::split_paths(&path));
    let found =
        places.into_iter().find(|place| ["initdb", "postgres", "psql"].iter().all(|name| place.join(name).exists()));
    if found.is_none() {
        // past the harness, which keeps what passing tests print
        let reason = "not run: tests of fleets need PostgreSQL, which `.ci/setup fleet` installs";
        let _ = writeln!(std::io::stderr(), "{reason}");
    }
    found
}

/// The server's user, if we are root.
fn user() -> Option<(u32, u32)> {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    let text = fs::read_to_string("/etc/passwd").unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("{USER}:"))).expect("there is a user `postgres`");
    let fields: Vec<&str> = line.split(':').collect();
    Some((fields[2].parse().unwrap(), fields[3].parse().unwrap()))
}

impl Server {
    /// Makes a cluster and starts it, with these settings. `None` where PostgreSQL is not installed.
    pub fn start(settings: &[&str], environment: &[(&str, &str)]) -> Option<Server> {
        Server::make(settings, environment, &[])
    }

    /// The same with files that lie in its folder of data, readable for its user alone.
    pub fn start_with_files(settings: &[&str], files: &[String]) -> Option<Server> {
        Server::make(settings, &[], files)
    }

    fn make(settings: &[&str], environment: &[(&str, &str)], files: &[String]) -> Option<Server> {
        let programs = programs()?;
        let folder = tempfile::tempdir().unwrap();
        for name in ["data", "socket"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        if let Some((user, group)) = user() {
            for path in [folder.path().to_path_buf(), folder.path().join("data"), folder.path().join("socket")] {
                chown(path, Some(user), Some(group)).unwrap();
            }
        }
        let mut server = Server {
            folder,
            programs,
            settings: settings.iter().map(ToString::to_string).collect(),
            environment: environment.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
            child: None,
        };
        let data = server.path("data");
        let made = server
            .program("initdb")
            .args(["-U", USER, "--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C", "-D"])
            .arg(&data)
            .args(["--pwfile", server.password_file().to_str().unwrap()])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let rules =
            format!("local all {USER} trust\nlocal all all scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\n");
        fs::write(data.join("pg_hba.conf"), rules).unwrap();
        for file in files {
            let place = data.join(Path::new(file).file_name().unwrap());
            fs::copy(file, &place).unwrap();
            fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            if let Some((user, group)) = user() {
                chown(&place, Some(user), Some(group)).unwrap();
            }
        }
        server.run();
        server.sql_in("postgres", &format!("CREATE DATABASE {DATABASE}"));
        Some(server)
    }

    fn password_file(&self) -> PathBuf {
        let path = self.path("password");
        fs::write(&path, "nobody-knows\n").unwrap();
        path
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        let port = self.settings.iter().find_map(|setting| setting.strip_prefix("port="));
        command.env("PGPORT", port.unwrap_or("5432"));
        command.stdin(Stdio::null()).current_dir(self.folder.path());
        if let Some((user, group)) = user() {
            command.uid(user).gid(group);
        }
        command
    }

    /// Starts it, and waits until it answers.
    pub fn run(&mut self) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let before = fs::metadata(self.path("log")).map_or(0, |log| log.len()) as usize;
            self.spawn();
            if self.comes_back() {
                return;
            }
            // the sessions of one that was killed are in groups of their own, and take a moment to notice
            let log = fs::read_to_string(self.path("log")).unwrap();
            let is_held = log[before..].contains("pre-existing shared memory block");
            assert!(is_held && Instant::now() < until, "the server has ended: {log}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn spawn(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = self.program("postgres");
        command.arg("-D").arg(self.path("data")).arg("-k").arg(self.socket());
        if !self.settings.iter().any(|setting| setting.starts_with("listen_addresses")) {
            command.args(["-c", "listen_addresses="]);
        }
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        self.child = Some(command.spawn().unwrap());
    }

    /// Waits until it answers; says no where it has ended instead.
    pub fn comes_back(&mut self) -> bool {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.answers() {
            if self.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                return false;
            }
            let log = || fs::read_to_string(self.path("log")).unwrap();
            assert!(Instant::now() < until, "the server does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
        true
    }

    fn answers(&self) -> bool {
        let mut ask = self.program("psql");
        ask.arg("-h").arg(self.socket()).args(["-U", USER, "-d", "postgres", "-c", "SELECT 1"]);
        ask.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    }

    /// Kills it and all that belongs to it at once.
    pub fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // SAFETY: the group that it was started in; ours until it is waited for.
        unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
        child.wait().unwrap();
        let _ = fs::remove_file(self.path("data").join("postmaster.pid"));
    }

    /// The address for its keeper.
    pub fn address(&self) -> String {
        format!("postgres://{USER}@/{DATABASE}?host={}", self.socket().display())
    }

    /// What a statement gives: a line for each row, `|` between columns.
    pub fn sql(&self, statement: &str) -> String {
        self.sql_in(DATABASE, statement)
    }

    fn sql_in(&self, database: &str, statement: &str) -> String {
        self.try_sql_as(database, USER, "", statement).unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    /// The same for a user of the database with a password.
    pub fn try_sql(&self, user: &str, password: &str, statement: &str) -> Result<String, String> {
        self.try_sql_as(DATABASE, user, password, statement)
    }

    fn try_sql_as(&self, database: &str, user: &str, password: &str, statement: &str) -> Result<String, String> {
        let mut ask = self.program("psql");
        ask.arg("-h").arg(self.socket()).args(["-U", user, "-d", database, "-XAtq", "-v", "ON_ERROR_STOP=1", "-c"]);
        let answer = ask.arg(statement).env("PGPASSWORD", password).output().unwrap();
        match answer.status.success() {
            true => Ok(String::from_utf8(answer.stdout).unwrap().trim_end().to_string()),
            false => Err(String::from_utf8_lossy(&answer.stderr).into_owned()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Makes the library that `faults.c` describes, for `LD_PRELOAD`.
pub fn faults(folder: &Path) -> PathBuf {
    let library = folder.join("faults.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/fleet/faults.c");
    let made =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl").output();
    let made = made.unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    library
}
