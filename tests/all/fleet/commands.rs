//! The program itself, with workers that measure.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::rig::Rig;
use super::server::Server;
use crate::command::{Sandbox, TASK};

fn json(text: &str) -> Value {
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// A worker that measures; the caller waits for it.
fn worker(sandbox: &Sandbox, fleet: &str, more: &[&str]) -> Child {
    let arguments = [&["worker", "--fleet", fleet, "--json"][..], more].concat();
    sandbox.tilescribe(&arguments).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap()
}

#[test]
fn a_fleet_is_made_works_and_is_looked_at() {
    let Some(server) = Server::start(&[], &[]) else { return };
    let (sandbox, keeper) = (Sandbox::new(), server.address());
    sandbox.fail(&["fleet", "status", "--fleet", &keeper], 3, "`tilescribe fleet init` makes one");
    let made = json(&sandbox.succeed(&["fleet", "init", "--fleet", &keeper, "--json"]));
    let (coordinator, for_workers) = (made["coordinator"].as_str().unwrap(), made["worker"].as_str().unwrap());
    // once more: nothing changes, and nothing is told again
    let again = json(&sandbox.succeed(&["fleet", "init", "--fleet", &keeper, "--json"]));
    assert_eq!((&again["from"], &again["coordinator"]), (&made["to"], &Value::Null));
    // the settings in a file, the password beside them
    let (user, rest) = for_workers.strip_prefix("postgres://").unwrap().split_once(':').unwrap();
    let (password, place) = rest.split_once('@').unwrap();
    sandbox.file("fleet.toml", format!("url = \"postgres://{user}@{place}\"\npassword = \"{password}\"\n"));
    let two =
        [worker(&sandbox, "fleet.toml", &["--name", "first"]), worker(&sandbox, for_workers, &["--threads", "1"])];
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while json(&sandbox.succeed(&["fleet", "status", "--fleet", coordinator, "--json"]))["workers"]
        .as_array()
        .unwrap()
        .len()
        < 2
    {
        assert!(std::time::Instant::now() < until);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    sandbox.file("workloads.txt", format!("# product\n{TASK}"));
    let collect =
        ["collect", "--workloads", "workloads.txt", "-o", "c.zst", "--method", "random", "--trials-per-task", "40"];
    let found = json(&sandbox.succeed(&[&collect[..], &["--fleet", coordinator, "--json"]].concat()));
    // for both targets, and all of them right
    assert_eq!(
        (found["tasks"].as_u64(), found["records"].as_u64(), found["valid"].as_u64()),
        (Some(2), Some(80), Some(80))
    );
    // what a file holds of programs is sent, and measured once more
    let sent = sandbox.succeed(&["plan", "--records", "c.zst", "--fleet", coordinator, "--json"]);
    assert!(json(&sent)["programs"].as_u64().unwrap() >= 80, "{sent}");
    let open = || json(&sandbox.succeed(&["fleet", "status", "--fleet", coordinator, "--json"]))["plans"].clone();
    while open()["waiting"] != 0 || open()["leased"] != 0 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    for worker in two {
        // SAFETY: a process of ours that has not been waited for.
        unsafe { libc::kill(worker.id().cast_signed(), libc::SIGTERM) };
        let ended = worker.wait_with_output().unwrap();
        let printed = String::from_utf8(ended.stdout).unwrap();
        assert!(ended.status.success(), "{printed}");
        assert!(
            printed.starts_with("joined as worker ") && json(&printed)["programs"].as_u64() >= Some(40),
            "{printed}"
        );
    }
    let status = sandbox.succeed(&["fleet", "status", "--fleet", coordinator]);
    assert!(status.contains(" programs, ") && status.contains("target    workers  waiting"), "{status}");
    let names = sandbox.succeed(&["fleet", "workers", "--fleet", coordinator, "--all"]);
    assert!(names.contains("first") && names.contains("gone"), "{names}");
    assert_eq!(sandbox.succeed(&["fleet", "workers", "--fleet", coordinator]).lines().count(), 1, "nobody is there");
    let plans = sandbox.succeed(&["fleet", "plans", "--fleet", coordinator, "--state", "done", "--json"]);
    assert!(plans.lines().all(|line| json(line)["measured"] == json(line)["programs"]), "{plans}");
    sandbox.succeed(&["fleet", "status", "--fleet", coordinator, "--page", "page.html"]);
    let page = std::fs::read_to_string(sandbox.path("page.html")).unwrap();
    assert!(
        page.starts_with("<!doctype html>") && page.contains("<h2>Workers</h2>") && !page.contains("http"),
        "{page}"
    );
    // both measurements of each worker's programs, against each other
    let exported = sandbox.succeed(&["fleet", "export", "e.zst", "--fleet", coordinator]);
    assert!(exported.starts_with("e.zst: "), "{exported}");
    sandbox.succeed(&["fleet", "export", "one.zst", "--fleet", coordinator, "--run", &run_of(&plans, "collect")]);
    sandbox.succeed(&["fleet", "export", "two.zst", "--fleet", coordinator, "--run", &run_of(&plans, "plan")]);
    assert!(sandbox.succeed(&["records", "agreement", "one.zst", "two.zst"]).contains("of 2 tasks"));
    sandbox.fail(&["fleet", "export", "none.zst", "--fleet", coordinator, "--worker", "99"], 2, "no such record");
    sandbox.fail(&["fleet", "status", "--fleet", for_workers], 3, "permission denied");
    sandbox.fail(&["fleet", "status", "--fleet", "nowhere.toml"], 2, "expected postgres://");
}

/// The run of a command, as plans name it.
fn run_of(plans: &str, command: &str) -> String {
    let runs = plans.lines().map(|line| json(line)["run"].as_str().unwrap().to_string());
    runs.into_iter().find(|run| run.starts_with(&format!("{command} "))).unwrap()
}

#[test]
fn workers_that_are_drained_take_nothing_more() {
    let Some(mut rig) = Rig::start(120) else { return };
    let sandbox = Sandbox::new();
    let worker = rig.start_worker("drained", &[]);
    rig.wait_for("workers", 1);
    let fleet = rig.coordinator.clone();
    let drain = |more: &[&str]| sandbox.succeed(&[&["fleet", "drain", "--fleet", &fleet][..], more].concat());
    for named in [&[][..], &["1"]] {
        drain(named);
        let waiting = rig.count("plans WHERE state = 'waiting'");
        assert_eq!(waiting, 0);
        rig.send(1, 1);
        std::thread::sleep(std::time::Duration::from_millis(800));
        assert_eq!(rig.count("plans WHERE state = 'waiting'"), 1, "{named:?}");
        assert!(sandbox.succeed(&["fleet", "workers", "--fleet", &rig.coordinator]).contains("draining"));
        drain(&[named, &["--undo"]].concat());
        rig.wait_until_done();
    }
    worker.signal(libc::SIGTERM);
    worker.end();
}

#[test]
fn the_way_to_a_server_is_encrypted_and_its_certificate_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    for (name, host) in [("right", "localhost"), ("wrong", "elsewhere")] {
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", &format!("/CN={host}")])
            .args(["-addext", &format!("subjectAltName=DNS:{host}"), "-addext", "basicConstraints=critical,CA:FALSE"])
            .args(["-keyout", &path(&format!("{name}.key")), "-out", &path(&format!("{name}.crt"))])
            .output();
        let Ok(made) = made else { return eprintln_missing() };
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = |name: &str| {
        let (certificate, key) = (format!("ssl_cert_file={name}.crt"), format!("ssl_key_file={name}.key"));
        ["ssl=on".into(), "listen_addresses=127.0.0.1".into(), format!("port={port}"), certificate, key]
    };
    let right = settings("right");
    let Some(server) =
        Server::start_with_files(&right.each_ref().map(String::as_str), &[path("right.crt"), path("right.key")])
    else {
        return;
    };
    let sandbox = Sandbox::new();
    let keeper = format!("{}&port={port}", server.address());
    let made = json(&sandbox.succeed(&["fleet", "init", "--fleet", &keeper, "--json"]));
    let user = made["coordinator"].as_str().unwrap().split_once("@/").unwrap().0.to_string();
    let address = |query: &str| format!("{user}@localhost:{port}/fleet{query}");
    let status = |query: &str| ["fleet".to_string(), "status".into(), "--fleet".into(), address(query)];
    let run = |query: &str| sandbox.tilescribe(&status(query).each_ref().map(String::as_str)).output().unwrap();
    let said = |query: &str| String::from_utf8_lossy(&run(query).stderr).into_owned();
    let trusted = format!("?sslrootcert={}", path("right.crt"));
    assert!(run(&trusted).status.success(), "{}", said(&trusted));
    assert!(run("?sslmode=disable").status.success(), "{}", said("?sslmode=disable"));
    // by default, the system's certificates: this is none of them
    for query in ["", &format!("?sslrootcert={}", path("wrong.crt"))] {
        assert_eq!(run(query).status.code(), Some(3));
        assert!(
            said(query).contains("the fleet's server refuses") && said(query).contains("certificate"),
            "{}",
            said(query)
        );
    }
    // the certificate is of another host
    let other = format!("{user}@127.0.0.1:{port}/fleet{trusted}");
    let output = sandbox.tilescribe(&["fleet", "status", "--fleet", &other]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(run("?sslmode=require").status.code(), Some(2));
}

fn eprintln_missing() {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "not run: the test of certificates needs `openssl`");
}
