//! Someone dies: a worker, the server, the coordinator.

use std::time::{Duration, Instant};

use tilescribe::fleet::{News, Origin};
use tilescribe::measure::{Batch, Mode};

use super::proxy::{Proxy, Trap};
use super::rig::{Rig, repeats};

/// A worker is killed when its report is on the way, and started again.
fn a_worker_dies(trap: Trap) {
    let Some(mut rig) = Rig::start(120) else { return };
    let socket = rig.server.socket();
    for _ in 0..repeats() {
        let proxy = Proxy::new(&socket);
        rig.worker = proxy.address(&rig.worker.clone(), &socket);
        let through = rig.worker.clone();
        rig.send(2, 12);
        let caught = proxy.set(trap);
        let worker = rig.start_worker("mortal", &[]);
        caught.recv_timeout(Duration::from_secs(60)).unwrap();
        worker.kill();
        proxy.disconnect();
        let again = rig.start_worker("mortal", &["--patience", "1"]);
        rig.wait_until_done();
        again.end();
        rig.check_complete();
        rig.worker = proxy_free(&through, &proxy, &socket);
    }
    // a program more than once only where nothing of it had arrived
    assert_eq!(rig.count("plans WHERE state = 'parked'"), 0);
}

/// The address without the proxy.
fn proxy_free(address: &str, proxy: &Proxy, socket: &std::path::Path) -> String {
    let through = proxy.address(&socket.display().to_string(), socket);
    address.replace(&through, &socket.display().to_string())
}

#[test]
fn a_worker_dies_before_its_report_arrives() {
    a_worker_dies(Trap::Before);
}

#[test]
fn a_worker_dies_while_its_report_arrives() {
    a_worker_dies(Trap::During);
}

#[test]
fn a_worker_dies_after_its_report_has_arrived() {
    a_worker_dies(Trap::After);
}

#[test]
fn a_worker_dies_at_any_moment() {
    let Some(mut rig) = Rig::start(120) else { return };
    for turn in 0..repeats() {
        rig.send(4, 32);
        // a store that only this turn's worker has: what its last life left comes with it
        for moment in [30, 60 + 7 * turn as u64] {
            let worker = rig.start_worker("mortal", &[]);
            std::thread::sleep(Duration::from_millis(moment));
            worker.kill();
        }
        let last = rig.start_worker("mortal", &["--patience", "1"]);
        rig.wait_until_done();
        last.end();
        rig.check_complete();
    }
}

#[test]
fn a_worker_dies_in_the_finals_and_they_begin_anew() {
    let Some(mut rig) = Rig::start(4) else { return };
    for turn in 0..repeats() as u64 {
        let before = rig.count("records");
        let batch = Batch { mode: Mode::Finals, ..rig.batch(0, 8) };
        let mut session = rig.session();
        let plan = session.submit(&batch, Origin { proposer: "test", seed: turn }).unwrap();
        let worker = rig.start_worker("mortal", &["--program-ms", "250"]);
        // some have arrived, and not all
        let until = Instant::now() + Duration::from_secs(60);
        while rig.count("records") == before {
            assert!(Instant::now() < until, "nothing arrives");
            std::thread::sleep(Duration::from_millis(20));
        }
        worker.kill();
        let partial = rig.count("records") - before;
        assert!(partial < 8, "all of them arrived at once");
        // times of one machine's state say nothing about those of another's
        assert!(session.wait(Duration::from_secs(1)).unwrap().is_none());
        let again = rig.start_worker("mortal", &["--patience", "1"]);
        let mut measured = Vec::new();
        loop {
            match session.wait(Duration::from_secs(60)).unwrap().expect("the finals end") {
                News::Measured { plan: of, number, .. } if of == plan => measured.push(number),
                News::Done { plan: of } if of == plan => break,
                other => panic!("{other:?}"),
            }
        }
        again.end();
        assert_eq!(measured, (0..8).collect::<Vec<_>>());
        let whole =
            format!("(SELECT FROM fleet.records WHERE plan = {plan} GROUP BY fence HAVING count(*) = 8) AS whole");
        assert_eq!(rig.server.sql(&format!("SELECT count(*) FROM {whole}")), "1");
        assert!(rig.count("records") - before >= 8 + partial);
        rig.check_complete();
    }
}

#[test]
fn the_server_dies_while_it_commits() {
    // a commit takes 30 ms, so that the kill comes while one goes on
    let Some(mut rig) = Rig::with(120, &["commit_delay=30000", "commit_siblings=0"], &[]) else { return };
    let workers: Vec<_> = ["a", "b", "c"].map(|name| rig.start_worker(name, &[])).into();
    for turn in 0..repeats() {
        let before = rig.count("records");
        rig.send(30, 8);
        while rig.count("records") < before + 40 {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(3 * turn as u64));
        rig.server.kill();
        rig.server.run();
        rig.wait_until_done();
        rig.check_complete();
    }
    workers.iter().for_each(|worker| worker.signal(libc::SIGTERM));
    workers.into_iter().for_each(super::rig::Process::end);
}

#[test]
fn the_answer_to_a_commit_is_lost() {
    let Some(mut rig) = Rig::start(120) else { return };
    let socket = rig.server.socket();
    let proxy = Proxy::new(&socket);
    rig.worker = proxy.address(&rig.worker.clone(), &socket);
    let worker = rig.start_worker("deaf", &[]);
    for _ in 0..repeats() {
        let caught = proxy.set(Trap::After);
        rig.send(2, 10);
        caught.recv_timeout(Duration::from_secs(60)).unwrap();
        proxy.disconnect();
        rig.wait_until_done();
        rig.check_complete();
    }
    // sent twice, there once: nothing was measured a second time
    assert_eq!(rig.count("records"), 20 * repeats() as u64);
    assert_eq!(rig.count("leases WHERE how <> 'finished'"), 0);
    worker.signal(libc::SIGTERM);
    worker.end();
}

#[test]
fn a_plan_that_kills_three_workers_is_parked_with_its_cause() {
    let Some(mut rig) = Rig::start(120) else { return };
    for turn in 1..=repeats() as u64 {
        let plans = rig.send(3, 5);
        // the third program of the second plan
        let poison =
            rig.server.sql(&format!("SELECT trim(E'\n' FROM traces[3]) FROM fleet.plans WHERE id = {}", plans[1]));
        for _ in 0..3 {
            let mut victim = rig.start_worker("victim", &["--dies-of", &poison]);
            while !victim.has_ended() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        // it tells of its last death, and does the rest
        let last = rig.start_worker("victim", &["--patience", "1", "--dies-of", &poison]);
        rig.wait_for("plans WHERE state = 'parked'", 1);
        rig.wait_for("plans WHERE state = 'done'", 3 * turn - 1);
        last.end();
        let cause = rig.server.sql("SELECT cause FROM fleet.plans WHERE state = 'parked'");
        assert_eq!(cause, ["worker victim died while it measured program 3"; 3].join("; "));
        // what was measured of it is there
        assert_eq!(rig.count(&format!("records WHERE plan = {}", plans[1])), 2);
        rig.check();
        // by hand, and with a worker that bears it
        assert_eq!(rig.server.sql("SELECT fleet.retry(NULL)"), "1");
        let robust = rig.start_worker("victim", &["--patience", "1"]);
        rig.wait_until_done();
        robust.end();
        rig.check_complete();
    }
}
