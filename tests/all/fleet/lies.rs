//! Someone lies: a worker, or a coordinator. And who may do what.

use std::time::Duration;

use tilescribe::fleet::{FleetError, Settings};

use super::rig::{Rig, repeats};

/// The password in an address.
fn password(address: &str) -> String {
    let rest = address.strip_prefix("postgres://").unwrap();
    rest.split_once('@').unwrap().0.split_once(':').unwrap().1.to_string()
}

/// A worker that is none of ours: what it says to the server, word by word.
fn say(rig: &Rig, statement: &str) -> Result<String, String> {
    rig.server.try_sql("fleet_worker", &password(&rig.worker), statement)
}

/// SQL for joining under a secret, which is one byte 32 times.
fn join(secret: char, fingerprint: &str, target: &str, space: &str) -> String {
    format!(
        "SELECT fleet.join_fleet(convert_to(repeat('{secret}', 32), 'UTF8'), 'liar', '{fingerprint}', $t${target}$t$, \
         '{space}', '9.9.9')"
    )
}

fn lease(secret: char) -> String {
    format!("SELECT plan, fence FROM fleet.lease(convert_to(repeat('{secret}', 32), 'UTF8'), NULL)")
}

fn report(secret: char, plan: i64, fence: i64, records: &str) -> String {
    format!(
        "SELECT fleet.report(convert_to(repeat('{secret}', 32), 'UTF8'), {plan}, {fence}, '9.9.9', '{records}'::jsonb, \
         NULL, NULL, 0, 0)"
    )
}

const RECORD: &str = r#"[{"number": 1, "failure": null, "detail": "", "times_ns": [5], "compile_us": 1}]"#;

#[test]
fn workers_and_coordinators_may_do_what_they_need_and_nothing_else() {
    let Some(mut rig) = Rig::start(120) else { return };
    rig.send(1, 2);
    let tables = ["about", "tasks", "targets", "workers", "plans", "leases", "records", "migrations"];
    for table in tables {
        for what in [format!("SELECT * FROM fleet.{table}"), format!("DELETE FROM fleet.{table}")] {
            let said = say(&rig, &what).unwrap_err();
            assert!(said.contains("permission denied"), "{what}: {said}");
        }
        let coordinator = |what: &str| rig.server.try_sql("fleet_coordinator", &password(&rig.coordinator), what);
        assert!(coordinator(&format!("DELETE FROM fleet.{table}")).unwrap_err().contains("permission denied"));
        assert_eq!(coordinator(&format!("SELECT * FROM fleet.{table}")).is_ok(), table != "workers", "{table}");
    }
    let coordinator = |what: &str| rig.server.try_sql("fleet_coordinator", &password(&rig.coordinator), what);
    assert!(coordinator("SELECT id, name, seen FROM fleet.workers").is_ok());
    for what in [
        "SELECT secret FROM fleet.workers",
        "CREATE TABLE fleet.mine (a int)",
        "CREATE TABLE public.mine (a int)",
        "CREATE TEMP TABLE mine (a int)",
        "SELECT fleet.settle(1)",
        "SELECT fleet.lease('', NULL)",
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "SELECT pg_read_file('postgresql.conf')",
    ] {
        let said = coordinator(what).unwrap_err();
        assert!(said.contains("permission denied") || said.contains("must be superuser"), "{what}: {said}");
    }
    for what in [
        "SELECT fleet.cancel(ARRAY[1])",
        "SELECT fleet.retry(NULL)",
        "SELECT fleet.settle(1)",
        "SELECT fleet.reclaim()",
    ] {
        assert!(say(&rig, what).unwrap_err().contains("permission denied"), "{what}");
    }
}

#[test]
fn a_forged_fingerprint_is_refused() {
    let Some(mut rig) = Rig::start(120) else { return };
    let (own, text) = (rig.target.fingerprint(), rig.target.to_toml());
    let other = text.replace("l1_bytes", "l1_bites");
    for _ in 0..repeats() {
        rig.send(2, 5);
        // another machine's text under our fingerprint, ours under a made-up one
        for (fingerprint, text) in [(&own, &other), (&"0".repeat(32), &text), (&String::new(), &text)] {
            let said = say(&rig, &join('x', fingerprint, text, "cpu:")).unwrap_err();
            assert!(said.contains("is not that of the target"), "{said}");
        }
        assert!(say(&rig, &lease('x')).unwrap_err().contains("has not joined the fleet"));
        let honest = rig.start_worker("honest", &["--patience", "0.5"]);
        rig.wait_until_done();
        honest.end();
        rig.check_complete();
    }
    assert_eq!(rig.count("targets"), 1);
}

#[test]
fn a_worker_reports_on_its_own_leases_only() {
    let Some(mut rig) = Rig::start(120) else { return };
    let (own, text) = (rig.target.fingerprint(), rig.target.to_toml());
    let space = rig.server.sql("SELECT ''") + &tilescribe::space::Space::standard().version(rig.target.kind());
    let plans = rig.send(2, 3);
    for secret in ['a', 'b'] {
        say(&rig, &join(secret, &own, &text, &space)).unwrap();
        assert_eq!(say(&rig, &lease(secret)).unwrap(), format!("{}|1", plans[usize::from(secret == 'b')]));
    }
    // who asks again has not heard the answer
    assert_eq!(say(&rig, &lease('a')).unwrap(), format!("{}|1", plans[0]));
    assert_eq!(say(&rig, &report('a', plans[0], 1, RECORD)).unwrap(), "held");
    for (secret, plan, fence) in
        [('a', plans[1], 1), ('b', plans[0], 1), ('a', plans[0], 2), ('a', 999, 1), ('c', plans[0], 1)]
    {
        let said = say(&rig, &report(secret, plan, fence, RECORD)).unwrap_err();
        assert!(said.contains("had no lease") || said.contains("has not joined"), "{said}");
    }
    // what makes no sense changes nothing
    for (from, to) in [
        ("\"number\": 1", "\"number\": 4"),
        ("\"number\": 1", "\"number\": 0"),
        ("[5]", "[-5]"),
        ("[5]", "[0]"),
        ("[5]", "[]"),
        ("[5]", "[99999999999999999999]"),
        ("null", "\"bored\""),
        ("null", "\"timeout\""),
        ("\"compile_us\": 1", "\"compile_us\": -1"),
    ] {
        assert!(say(&rig, &report('b', plans[1], 1, &RECORD.replace(from, to))).is_err(), "{to}");
    }
    assert_eq!(rig.count("records"), 1);
    // again: the first stays
    assert_eq!(say(&rig, &report('a', plans[0], 1, &RECORD.replace("[5]", "[7]"))).unwrap(), "held");
    assert_eq!(rig.server.sql("SELECT times_ns FROM fleet.records"), "{5}");
}

#[test]
fn an_old_space_is_offered_nothing_of_a_new_one() {
    let Some(mut rig) = Rig::start(120) else { return };
    let (own, text) = (rig.target.fingerprint(), rig.target.to_toml());
    for _ in 0..repeats() {
        rig.send(2, 4);
        say(&rig, &join('o', &own, &text, "cpu:algorithm-1")).unwrap();
        assert_eq!(say(&rig, &lease('o')).unwrap(), "");
        // and the other way round: plans of an old space wait, and status says for whom
        rig.server.sql("UPDATE fleet.plans SET space = 'cpu:algorithm-1' WHERE id = (SELECT max(id) FROM fleet.plans)");
        let new = rig.start_worker("new", &["--patience", "0.5"]);
        rig.wait_for("plans WHERE state <> 'done'", 1);
        new.end();
        assert_eq!(rig.count("records WHERE plan = (SELECT max(id) FROM fleet.plans)"), 0);
        rig.server.sql("UPDATE fleet.plans SET state = 'cancelled' WHERE state <> 'done'");
        rig.check();
        rig.server.sql("DELETE FROM fleet.plans WHERE state = 'cancelled'");
    }
}

#[test]
fn a_lying_coordinator_makes_a_worker_compute_and_nothing_else() {
    let Some(mut rig) = Rig::start(120) else { return };
    let plans = rig.send(6, 3);
    let change = |plan: i64, what: &str| rig.server.sql(&format!("UPDATE fleet.plans SET {what} WHERE id = {plan}"));
    change(plans[0], "traces[2] = 'no decision'");
    change(plans[1], "traces[3] = repeat('tile a = 1' || chr(10), 100000)");
    change(plans[2], "best_trace = E'tile a = 1\\n', best_ns = 5");
    change(plans[3], "task = (SELECT max(id) FROM fleet.tasks)");
    rig.server.sql("UPDATE fleet.tasks SET workload = 'out t0 4 rm -rf' WHERE id = (SELECT max(id) FROM fleet.tasks)");
    // of a task whose text is another one's
    rig.server.sql(&format!(
        "UPDATE fleet.tasks SET workload = E'input t0 9\\nout t1 9 exp t0 a\\n' WHERE id = (SELECT task FROM fleet.plans WHERE id = {})",
        plans[4]
    ));
    let worker = rig.start_worker("honest", &["--patience", "1"]);
    rig.wait_for("plans WHERE state = 'parked'", 6);
    worker.end();
    let causes = rig.server.sql("SELECT cause FROM fleet.plans ORDER BY id");
    for (cause, part) in causes.lines().zip([
        "its program 2: ",
        "its program 3: more than 65536 bytes",
        "its fastest program is none",
        "its workload: ",
        "its workload has another hash",
        "its workload: ",
    ]) {
        assert!(cause.starts_with("refused by worker 1: ") && cause.contains(part), "{cause}");
    }
    assert_eq!(rig.count("records"), 0);
}

#[test]
fn who_cannot_join_is_told_why() {
    let Some(rig) = Rig::start(120) else { return };
    let told = |address: &str| {
        let settings = Settings::read(address).unwrap().within(Duration::from_secs(5));
        tilescribe::fleet::Console::connect(&settings).map(|_| ()).unwrap_err()
    };
    let wrong = rig.coordinator.replace(&password(&rig.coordinator), "wrong");
    let error = told(&wrong);
    assert!(matches!(&error, FleetError::Refused { detail } if detail.contains("password")), "{error}");
    let nowhere = rig.coordinator.replace("/socket", "/nowhere");
    assert!(matches!(told(&nowhere), FleetError::Lost { .. }));
    let empty = rig.server.address().replace("/fleet?", "/postgres?");
    let error = told(&empty);
    assert!(matches!(error, FleetError::NoFleet), "{error}");
    rig.server.sql("INSERT INTO fleet.migrations VALUES (99, now())");
    let error = told(&rig.coordinator).to_string();
    assert!(error.contains("version 99") && error.contains("use a newer one"), "{error}");
    rig.server.sql("DELETE FROM fleet.migrations WHERE number > 1");
    let error = told(&rig.coordinator).to_string();
    assert!(error.contains("version 1") && error.contains("`tilescribe fleet init`"), "{error}");
}
