//! Something is lost: time, room, the way to the server.

use std::fs;
use std::time::Duration;

use super::proxy::Proxy;
use super::rig::{Process, Rig, repeats};
use super::server::faults;

#[test]
fn a_lease_expires_while_its_worker_measures() {
    let Some(mut rig) = Rig::start(1) else { return };
    for _ in 0..repeats() {
        let plans = rig.send(1, 20);
        let slow = rig.start_worker("slow", &["--program-ms", "50"]);
        rig.wait_for(&format!("leases WHERE plan = {} AND ended IS NULL", plans[0]), 1);
        std::thread::sleep(Duration::from_millis(300));
        slow.signal(libc::SIGSTOP);
        rig.wait_for(&format!("leases WHERE plan = {} AND expires < clock_timestamp()", plans[0]), 1);
        let other = rig.start_worker("other", &["--program-ms", "50"]);
        rig.wait_for(&format!("leases WHERE plan = {} AND fence = 2", plans[0]), 1);
        slow.signal(libc::SIGCONT);
        rig.wait_until_done();
        // it is heard of again: that speaks for the plan
        rig.wait_for(&format!("leases WHERE plan = {} AND how = 'late'", plans[0]), 1);
        for worker in [slow, other] {
            worker.signal(libc::SIGTERM);
            worker.end();
        }
        rig.check_complete();
    }
    assert_eq!(rig.count("plans WHERE state = 'parked'"), 0);
}

#[test]
fn nothing_passes_for_a_while() {
    let Some(mut rig) = Rig::start(1) else { return };
    let socket = rig.server.socket();
    let near = rig.worker.clone();
    let proxy = Proxy::new(&socket);
    let far = proxy.address(&near, &socket);
    for turn in 0..repeats() {
        rig.worker = far.clone();
        // a server that says nothing for half a second is lost
        let cut_off = rig.start_worker("far", &["--deadline", "0.5"]);
        rig.send(6, 20);
        rig.wait_for("leases WHERE ended IS NULL", 1);
        proxy.cut(true);
        rig.worker = near.clone();
        let other = rig.start_worker("near", &[]);
        // once longer than a lease, once shorter
        std::thread::sleep(Duration::from_millis(if turn % 2 == 0 { 2500 } else { 400 }));
        proxy.cut(false);
        rig.wait_until_done();
        for worker in [cut_off, other] {
            worker.signal(libc::SIGTERM);
            worker.end();
        }
        rig.check_complete();
    }
}

#[test]
fn the_disk_of_a_worker_is_full_for_a_while() {
    let Some(mut rig) = Rig::start(120) else { return };
    let (library, marker) = (faults(rig.folder.path()), rig.path("full"));
    let mut command = rig.command("cramped", &["--program-ms", "10"]);
    let worker = rig.spawn(command.env("LD_PRELOAD", library).env("TILESCRIBE_FULL", &marker));
    for _ in 0..repeats() {
        rig.send(3, 20);
        rig.wait_for("leases WHERE ended IS NULL", 1);
        fs::write(&marker, "cramped.db\n").unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let log = || fs::read_to_string(rig.path("log")).unwrap_or_default();
        let before = log();
        std::thread::sleep(Duration::from_millis(500));
        // it waits: nothing is measured that cannot be kept
        assert_eq!(log(), before);
        fs::remove_file(&marker).unwrap();
        rig.wait_until_done();
        rig.check_complete();
    }
    worker.signal(libc::SIGTERM);
    worker.end();
    let words = fs::read_to_string(rig.path("workers.log")).unwrap();
    assert!(words.contains("the disk is full; every record committed before is safe"), "{words}");
}

/// `part` is that of a path to which nothing can be written.
fn the_disk_of_the_server_is_full(part: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (library, marker) = (faults(folder.path()), folder.path().join("full"));
    // readable for the server's user
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let environment = [("LD_PRELOAD", library.to_str().unwrap()), ("TILESCRIBE_FULL", marker.to_str().unwrap())];
    let Some(mut rig) = Rig::with(120, &["checkpoint_timeout=30s"], &environment) else { return };
    let worker = rig.start_worker("patient", &[]);
    for _ in 0..repeats() {
        rig.send(40, 40);
        rig.wait_for("leases WHERE ended IS NULL", 1);
        fs::write(&marker, format!("{part}\n")).unwrap();
        std::thread::sleep(Duration::from_millis(700));
        fs::remove_file(&marker).unwrap();
        // it may give up where its log cannot be written; whoever made room starts it again
        if !rig.server.comes_back() {
            rig.server.kill();
            rig.server.run();
        }
        rig.wait_until_done();
        rig.check_complete();
    }
    worker.signal(libc::SIGTERM);
    worker.end();
    let words = fs::read_to_string(rig.path("workers.log")).unwrap();
    assert!(words.contains("the fleet's server cannot be reached"), "the fault was not noticed: {words}");
}

#[test]
fn the_disk_of_the_server_is_full_for_a_while() {
    the_disk_of_the_server_is_full("/base/");
}

#[test]
fn the_disk_of_the_servers_log_is_full_for_a_while() {
    the_disk_of_the_server_is_full("/pg_wal/");
}

#[test]
fn clocks_are_an_hour_apart() {
    let Some(mut rig) = Rig::start(2) else { return };
    let library = faults(rig.folder.path());
    for _ in 0..repeats() {
        rig.send(6, 20);
        let workers: Vec<Process> = [("early", "-3600"), ("late", "3600"), ("right", "0")]
            .map(|(name, shift)| {
                let mut command = rig.command(name, &[]);
                rig.spawn(command.env("LD_PRELOAD", &library).env("TILESCRIBE_CLOCK", shift))
            })
            .into();
        rig.wait_until_done();
        for worker in &workers {
            worker.signal(libc::SIGTERM);
        }
        workers.into_iter().for_each(Process::end);
        rig.check_complete();
    }
    // each was measured once, and received at the time of the server
    assert_eq!(rig.count("records"), 120 * repeats() as u64);
    assert_eq!(rig.count("leases WHERE how <> 'finished'"), 0);
    assert_eq!(rig.count("records WHERE abs(extract(epoch FROM received - clock_timestamp())) > 600"), 0);
}

#[test]
fn two_workers_share_a_device() {
    let Some(mut rig) = Rig::start(120) else { return };
    let lock = rig.path("device.lock");
    let arguments = ["--lock", lock.to_str().unwrap(), "--program-ms", "1"];
    let workers = ["one", "two"].map(|name| rig.start_worker(name, &arguments));
    for _ in 0..repeats() {
        rig.send(12, 10);
        rig.wait_until_done();
    }
    for worker in workers {
        worker.signal(libc::SIGTERM);
        worker.end();
    }
    rig.check_complete();
    // one program at a time: each is kept before the next is begun
    let log = fs::read_to_string(rig.path("log")).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    for pair in lines.chunks(2) {
        let [begun, kept] = pair else { panic!("an odd number of lines") };
        assert_eq!(begun.strip_prefix("begun "), kept.strip_prefix("kept "), "two at a time");
    }
    // and both had their share
    assert_eq!(rig.server.sql("SELECT count(DISTINCT worker) FROM fleet.leases"), "2");
}
