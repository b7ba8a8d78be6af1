//! A fleet to do harm to: a server, workers, and what must be true in the end.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tilescribe::codegen;
use tilescribe::fleet::{Coordinator, Origin, Session, Settings, init};
use tilescribe::measure::{Batch, Mode};
use tilescribe::space::{Space, Trace};
use tilescribe::target::{Target, Task};

use super::server::Server;

/// How often each fault is repeated.
pub fn repeats() -> usize {
    std::env::var("TILESCRIBE_FAULTS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// Seconds that the slowest of these tests waits for what takes one.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Rig {
    pub server: Server,
    pub folder: tempfile::TempDir,
    /// Addresses for coordinators and for workers.
    pub coordinator: String,
    pub worker: String,
    pub target: Target,
    /// Number of the last program that was made up.
    programs: u64,
}

/// A worker's process; killed when it is dropped.
pub struct Process(Child);

impl Process {
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: a process of ours that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.0.id().cast_signed(), signal) }, 0);
    }

    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Waits for its end, which has to be a good one.
    pub fn end(mut self) {
        let until = Instant::now() + PATIENCE;
        while !self.has_ended() {
            assert!(Instant::now() < until, "a worker does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // it may have ended
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Rig {
    /// A fleet whose leases last so many seconds. `None` where PostgreSQL is not installed.
    pub fn start(lease_seconds: u32) -> Option<Rig> {
        Rig::with(lease_seconds, &[], &[])
    }

    /// The same with settings and the environment of the server.
    pub fn with(lease_seconds: u32, settings: &[&str], environment: &[(&str, &str)]) -> Option<Rig> {
        let server = Server::start(settings, environment)?;
        let made = init(&Settings::read(&server.address()).unwrap(), Some(lease_seconds), false).unwrap();
        assert_eq!(made.unsafe_settings, [] as [&str; 0]);
        let [coordinator, worker] = made.addresses.unwrap();
        let target = Target::from(codegen::host().unwrap());
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("target.toml"), target.to_toml()).unwrap();
        Some(Rig { server, folder, coordinator, worker, target, programs: 0 })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A simulated worker, which measures a program in 2 ms and waits for ever, unless told otherwise.
    pub fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let test = std::env::current_exe().unwrap();
        // beside the folder of the test binary
        let program = test.parent().unwrap().parent().unwrap().join("examples/simulated_worker");
        assert!(program.exists(), "{} is missing: `cargo build --release --examples`", program.display());
        let mut command = Command::new(program);
        let log = fs::File::options().create(true).append(true).open(self.path("workers.log")).unwrap();
        command.args(["--fleet", &self.worker, "--name", name, "--program-ms", "2"]);
        command.arg("--store").arg(self.path(&format!("{name}.db"))).arg("--log").arg(self.path("log"));
        command.arg("--target").arg(self.path("target.toml"));
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        command
    }

    pub fn start_worker(&self, name: &str, arguments: &[&str]) -> Process {
        Process(self.command(name, arguments).spawn().unwrap())
    }

    pub fn spawn(&self, command: &mut Command) -> Process {
        Process(command.spawn().unwrap())
    }

    /// A task that differs from those of other numbers.
    pub fn task(&self, number: usize) -> Task {
        let extent = number + 2;
        let workload = format!("input t0 {extent}\nout t1 {extent} exp t0 a\n").parse().unwrap();
        Task { workload, target: self.target.clone() }
    }

    /// Made-up programs, each another.
    pub fn traces(&mut self, count: usize) -> Vec<Trace> {
        let own = self.programs + 1..=self.programs + count as u64;
        self.programs += count as u64;
        own.map(|number| format!("tile a = {number}\n").parse().unwrap()).collect()
    }

    /// Sends so many plans of so many programs each, which then nobody here waits for. Their numbers.
    pub fn send(&mut self, plans: usize, programs: usize) -> Vec<i64> {
        let mut session = self.session();
        let batches: Vec<Batch> = (0..plans).map(|plan| self.batch(plan, programs)).collect();
        let origin = Origin { proposer: "test", seed: 0 };
        let sent = batches.iter().map(|batch| session.submit(batch, origin).unwrap()).collect();
        session.let_go();
        sent
    }

    pub fn batch(&mut self, task: usize, programs: usize) -> Batch {
        Batch { task: self.task(task), traces: self.traces(programs), mode: Mode::Each, best: None }
    }

    pub fn session(&self) -> Session {
        let settings = Settings::read(&self.coordinator).unwrap();
        let coordinator = Coordinator::connect(&settings, "test", &Space::standard(), &Arc::default()).unwrap();
        coordinator.know(&self.target).unwrap();
        Arc::new(coordinator).session()
    }

    pub fn count(&self, what: &str) -> u64 {
        self.server.sql(&format!("SELECT count(*) FROM fleet.{what}")).parse().unwrap()
    }

    /// Waits until something is so many.
    pub fn wait_for(&self, what: &str, count: u64) {
        let until = Instant::now() + PATIENCE;
        while self.count(what) != count {
            let words = || fs::read_to_string(self.path("workers.log")).unwrap_or_default();
            let state =
                || self.server.sql("SELECT id, state, fence, cause FROM fleet.plans WHERE state <> 'done' LIMIT 20");
            assert!(Instant::now() < until, "{what}: {} and not {count}\n{}\n{}", self.count(what), words(), state());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until all plans are done.
    pub fn wait_until_done(&self) {
        self.wait_for("plans WHERE state <> 'done'", 0);
    }

    /// How often each program was begun, and kept, by whatever workers.
    fn noted(&self) -> BTreeMap<String, [u64; 2]> {
        let mut noted = BTreeMap::<String, [u64; 2]>::new();
        for line in fs::read_to_string(self.path("log")).unwrap_or_default().lines() {
            let (what, trace) = line.split_once(' ').unwrap();
            noted.entry(trace.to_string()).or_default()[usize::from(what == "kept")] += 1;
        }
        noted
    }

    /// What must be true whatever happened: a program that was kept has a record for each time that it was
    /// kept, none has more than it was begun, and each record says what that program takes.
    pub fn check(&self) {
        let text = self.server.sql(
            "SELECT replace(trim(E'\n' FROM p.traces[r.number]), E'\n', ';'), count(*), count(DISTINCT times_ns) FROM fleet.records r
             JOIN fleet.plans p ON p.id = r.plan GROUP BY 1",
        );
        let mut records = BTreeMap::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('|').collect();
            assert_eq!(fields[2], "1", "one program, several times: {line}");
            records.insert(fields[0].to_string(), fields[1].parse::<u64>().unwrap());
        }
        let noted = self.noted();
        for (trace, [begun, kept]) in &noted {
            let found = records.get(trace).copied().unwrap_or(0);
            assert!(*kept <= found && found <= *begun, "{trace}: begun {begun}, kept {kept}, {found} records");
        }
        let unknown: Vec<_> = records.keys().filter(|trace| !noted.contains_key(*trace)).collect();
        assert!(unknown.is_empty(), "records of what nobody measured: {unknown:?}");
    }

    /// And where all plans are done: each program has a record.
    pub fn check_complete(&self) {
        self.check();
        let missing = self.server.sql(
            "SELECT count(*) FROM fleet.plans p, generate_series(1, cardinality(traces)) n
             WHERE NOT EXISTS (SELECT FROM fleet.records r WHERE r.plan = p.id AND r.number = n)",
        );
        assert_eq!(missing, "0", "programs without a record");
    }
}
