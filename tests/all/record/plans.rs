//! Plans in the store: what is kept of them, in stores of before too.

use tilescribe::record::{Filter, PlanRecord, PlanRun, Store, StoreError, TasksTiming};

use super::{record, task, timed};

fn plan(text: &str, tasks_ns: f64, run: Option<[f64; 2]>) -> PlanRecord {
    let (created_unix_s, tilescribe) = PlanRecord::stamp();
    PlanRecord {
        program: "0123".into(),
        name: "net".into(),
        target: task(4).target.fingerprint(),
        plan: text.into(),
        tasks: 3,
        calls: 5,
        tasks_ns,
        timing: TasksTiming::Finals,
        run: run.map(|[ns, default_ns]| PlanRun { ns, default_ns }),
        created_unix_s,
        tilescribe,
    }
}

#[test]
fn plans_come_back_the_fastest_first_and_keep_their_runs() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("s.db")).unwrap();
    let target = task(4).target;
    let plans = [plan("", 30.0, None), plan("layout 0 = last\n", 20.0, Some([18.0, 31.0]))];
    store.insert_plans(&target, &plans).unwrap();
    assert_eq!(store.plans(None).unwrap(), [plans[1].clone(), plans[0].clone()]);
    assert_eq!(store.plans(Some("0123")).unwrap().len(), 2);
    assert_eq!(store.plans(Some("4567")).unwrap(), []);
    // times are of the last compilation, the run is of the last one that made one
    let again = PlanRecord { timing: TasksTiming::Records, ..plan("layout 0 = last\n", 40.0, None) };
    store.insert_plans(&target, std::slice::from_ref(&again)).unwrap();
    let kept = store.plans(None).unwrap();
    assert_eq!(kept, [plans[0].clone(), PlanRecord { run: plans[1].run, ..again }]);
    assert_eq!(kept[1].run_ratio(), Some(18.0 / 31.0));
}

#[test]
fn stores_of_before_get_the_table_with_the_first_plan() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let task = task(4);
    let mut store = Store::open(&path).unwrap();
    store.insert(&task, &record(&task, 1, timed(&[10]))).unwrap();
    drop(store);
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("DROP TABLE plans").unwrap();
    connection.close().unwrap();
    for store in [Store::open_to_read(&path).unwrap(), Store::open(&path).unwrap()] {
        assert_eq!(store.plans(None).unwrap(), []);
    }
    let mut store = Store::open(&path).unwrap();
    store.insert_plans(&task.target, &[plan("layout 0 = last\n", 20.0, None)]).unwrap();
    assert_eq!(store.plans(None).unwrap().len(), 1);
    assert_eq!(store.records(&Filter::default()).unwrap().len(), 1);
    drop(store);
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("UPDATE plans SET timing = 'by eye'").unwrap();
    connection.close().unwrap();
    let error = Store::open(&path).unwrap().plans(None).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
}
