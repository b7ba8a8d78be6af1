//! What can happen between a worker and the server: answers get lost, nothing arrives, nobody is there.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

/// Where a report is caught that carries records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trap {
    /// Before anything of it has reached the server.
    Before,
    /// When half of it has.
    During,
    /// When the server has committed it, and the answer is on its way.
    After,
}

/// What tells a report with records from all else that a worker says.
const REPORT: &[u8] = b"\"times_ns\"";

#[derive(Default)]
struct State {
    trap: Option<Trap>,
    /// Nothing passes, and nothing ends.
    is_cut: bool,
    /// All that was connected is disconnected; raised with every disconnection.
    generation: u64,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    server: PathBuf,
    caught: Mutex<Option<mpsc::Sender<()>>>,
    has_ended: AtomicBool,
}

/// Stands between workers and the server's socket.
pub struct Proxy {
    folder: tempfile::TempDir,
    shared: Arc<Shared>,
}

impl Proxy {
    pub fn new(socket: &Path) -> Proxy {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            server: socket.join(".s.PGSQL.5432"),
            caught: Mutex::default(),
            has_ended: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if own.has_ended.load(Ordering::Relaxed) {
                    return;
                }
                let own = Arc::clone(&own);
                std::thread::spawn(move || own.connect(client.unwrap()));
            }
        });
        Proxy { folder, shared }
    }

    /// An address of the server, by way of this.
    pub fn address(&self, address: &str, socket: &Path) -> String {
        address.replace(&socket.display().to_string(), &self.folder.path().display().to_string())
    }

    /// Catches the next report; the receiver hears of it. It is held until [`Proxy::disconnect`].
    pub fn set(&self, trap: Trap) -> mpsc::Receiver<()> {
        let (sender, receiver) = mpsc::channel();
        *self.shared.caught.lock().unwrap() = Some(sender);
        self.shared.state.lock().unwrap().trap = Some(trap);
        receiver
    }

    /// Ends all connections, as a router does that forgets them.
    pub fn disconnect(&self) {
        self.shared.state.lock().unwrap().generation += 1;
        self.shared.changed.notify_all();
    }

    /// From now on nothing passes, in either direction, until it is undone.
    pub fn cut(&self, is_cut: bool) {
        self.shared.state.lock().unwrap().is_cut = is_cut;
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
        self.cut(false);
        self.disconnect();
        // wakes who waits for connections
        let _ = UnixStream::connect(self.folder.path().join(".s.PGSQL.5432"));
    }
}

impl Shared {
    fn connect(self: Arc<Shared>, client: UnixStream) {
        let generation = self.state.lock().unwrap().generation;
        self.wait_while_cut(generation);
        // a server that is down refuses, and so does this
        let Ok(server) = UnixStream::connect(&self.server) else { return };
        let (up, down) = (Arc::clone(&self), Arc::clone(&self));
        let pair = |a: &UnixStream, b: &UnixStream| (a.try_clone().unwrap(), b.try_clone().unwrap());
        let ((from_client, to_server), (from_server, to_client)) = (pair(&client, &server), pair(&server, &client));
        let is_held = Arc::new(AtomicBool::new(false));
        let held = Arc::clone(&is_held);
        std::thread::spawn(move || up.carry(from_client, to_server, generation, &held));
        std::thread::spawn(move || down.carry_back(from_server, to_client, generation, &is_held));
    }

    /// Whether the connection is still one.
    fn wait_while_cut(&self, generation: u64) -> bool {
        let state = self.state.lock().unwrap();
        let state = self.changed.wait_while(state, |state| state.is_cut && state.generation == generation).unwrap();
        state.generation == generation
    }

    /// What a worker says: one report may be caught.
    fn carry(&self, from: UnixStream, to: UnixStream, generation: u64, is_held: &AtomicBool) {
        self.pump(from, to, generation, |bytes, to| {
            if !self.wait_while_cut(generation) {
                return Err(ErrorKind::ConnectionAborted.into());
            }
            let trap = {
                let mut state = self.state.lock().unwrap();
                let is_report = bytes.windows(REPORT.len()).any(|window| window == REPORT);
                if is_report { state.trap.take() } else { None }
            };
            let Some(trap) = trap else { return to.write_all(bytes) };
            is_held.store(true, Ordering::Relaxed);
            let part = match trap {
                Trap::Before => 0,
                Trap::During => bytes.len() / 2,
                Trap::After => bytes.len(),
            };
            to.write_all(&bytes[..part])?;
            if trap != Trap::After {
                self.tell();
            }
            Ok(())
        });
    }

    /// The answers; one that is held back is told of instead.
    fn carry_back(&self, from: UnixStream, to: UnixStream, generation: u64, is_held: &AtomicBool) {
        self.pump(from, to, generation, |bytes, to| {
            if is_held.load(Ordering::Relaxed) {
                self.tell();
                return Ok(());
            }
            match self.wait_while_cut(generation) {
                true => to.write_all(bytes),
                false => Err(ErrorKind::ConnectionAborted.into()),
            }
        });
    }

    /// Passes on all that comes, until an end is closed or disconnected.
    fn pump(
        &self,
        mut from: UnixStream,
        mut to: UnixStream,
        generation: u64,
        pass: impl Fn(&[u8], &mut UnixStream) -> std::io::Result<()>,
    ) {
        from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = from.read(&mut buffer);
            if self.state.lock().unwrap().generation != generation {
                break;
            }
            match read {
                Ok(0) => break,
                Ok(length) if pass(&buffer[..length], &mut to).is_ok() => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => break,
            }
        }
        let _ = from.shutdown(std::net::Shutdown::Both);
        let _ = to.shutdown(std::net::Shutdown::Both);
    }

    fn tell(&self) {
        if let Some(caught) = self.caught.lock().unwrap().take() {
            // nobody listens any more where the test has gone on
            let _ = caught.send(());
        }
    }
}
