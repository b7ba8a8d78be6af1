//! Workloads that write a part of an output.

use tilescribe::workload::{
    Role, Stage, TensorId, Workload, WorkloadError, canonical, part_of_bytes, put_part, rows_of_part,
};

use super::{floats, parse, ramp, run};

#[test]
fn a_part_is_computed_and_the_rest_is_left() {
    let whole = "input t0 4 6\nconst t1 6 3\nout t2 4 3 sum 6 mul t0 a c t1 c b\n";
    let part = "input t0 4 6\nconst t1 6 3\nout t2 4 3 like 4 8 sum 6 mul t0 a c t1 c b\n";
    let arguments = || vec![floats(ramp(24, 7)), floats(ramp(18, 5))];
    let (dense, found) = (run(&parse(whole), arguments()).unwrap(), run(&parse(part), arguments()).unwrap());
    assert_eq!(found.shape(), [4, 8]);
    assert_eq!(found.part(&[4, 3]), Ok(dense));
    let values = found.as_f32().unwrap();
    assert!((0..4).all(|row| values[row * 8 + 3..row * 8 + 8].iter().all(|value| *value == 0.0)));
    assert!(found.part(&[4, 9]).is_err() && found.part(&[4]).is_err());
    // texts of parts are printed as they are read, and those of wholes as ever
    for text in [whole, part] {
        assert_eq!(parse(text).to_string(), text);
    }
    assert_eq!(parse(part).part_of(TensorId(2)), Some(&vec![4, 3]));
    assert_eq!(parse(whole).part_of(TensorId(2)), None);
}

#[test]
fn what_is_touched_of_tensors() {
    let workload = parse("input t0 9 8\ninput t1 4\nout t2 9 3 like 9 6 add t0 a + b 2 t1 b\n");
    let touched = |id| workload.touched(TensorId(id));
    assert_eq!((touched(0), touched(1), touched(2)), (vec![9, 5], vec![3], vec![9, 3]));
    assert_eq!(workload.touched_bytes(TensorId(2)), 9 * 3 * 4);
    // guards bound an index, a gathered one may be anywhere
    let guarded = parse("input t0 9\nout t1 12 pad 0.0 t0 ? a\n");
    assert_eq!(guarded.touched(TensorId(0)), [9]);
    let shorter = parse("input t0 9\nout t1 12 guard 1 a 0 5 t0 a 0.0\n");
    assert_eq!(shorter.touched(TensorId(0)), [5]);
    let gathered = parse("input t0 9 4\ninput t1 i64 3\nout t2 3 2 t0 value t1 a b\n");
    assert_eq!(gathered.touched(TensorId(0)), [9, 2]);
}

#[test]
fn parts_that_are_none_are_refused() {
    let shape = |workload: &Workload| matches!(workload.validate(), Err(WorkloadError::Shape { stage: 0, .. }));
    let with = |role, shape: Vec<i64>, spatial: Vec<i64>| {
        let mut workload = parse("input t0 9\nout t1 2 3 t0 b\n");
        workload.tensors[1].role = role;
        workload.tensors[1].shape = shape;
        workload.stages[0] = Stage { spatial, ..workload.stages[0].clone() };
        workload
    };
    assert_eq!(with(Role::Output, vec![2, 5], vec![2, 3]).validate(), Ok(()));
    assert!(shape(&with(Role::Output, vec![2, 2], vec![2, 3])), "more than the output");
    assert!(shape(&with(Role::Output, vec![2], vec![2, 3])), "of another rank");
    assert!(shape(&with(Role::Intermediate, vec![2, 5], vec![2, 3])), "nobody else writes intermediates");
    // what lies behind the part is not there to be read
    let read = "input t0 9\nout t1 2 3 like 2 5 t0 b\nout t2 2 T t1 a b\n";
    assert_eq!(read.replace('T', "3").parse::<Workload>().map(|w| w.stages.len()), Ok(2));
    let behind = read.replace('T', "4").parse::<Workload>();
    assert!(behind.is_err_and(|error| error.to_string().contains("out of range")));
    // an extent of the run is one of the whole, too
    let run_time = "param len0 1 4\ninput t0 9\nout t1 len0 3 like len0 5 t0 b\n";
    assert_eq!(parse(run_time).at(&[2]).part_of(TensorId(1)), Some(&vec![2, 3]));
    assert!(run_time.replace("len0 3", "4 3").parse::<Workload>().is_err());
    assert!(run_time.replace("len0 3 like len0 5", "3 len0 like 3 5").parse::<Workload>().is_err());
}

#[test]
fn the_canonical_form_keeps_rows_apart() {
    let form = |text: &str| canonical(&parse(text)).workload.to_string();
    // leading axes are one row, those behind the part one column; an axis of one of several elements stays
    let rows = form("input t0 4 5 6\nout t1 4 5 6 like 4 5 9 exp t0 a b c\n");
    assert_eq!(rows, "input t0 20 6\nout t1 20 6 like 20 9 exp t0 a b\n");
    let columns = form("input t0 4 5 6\nout t1 4 5 6 like 4 7 6 exp t0 a b c\n");
    assert_eq!(columns, form("input t0 4 30\nout t1 4 30 like 4 42 exp t0 a b\n"));
    let single = form("input t0 4 1\nout t1 1 4 1 like 1 4 3 exp t0 b c\n");
    assert_eq!(single, "input t0 4\nout t1 4 1 like 4 3 exp t0 a\n");
    // behind the last row is nothing
    assert_eq!(form("input t0 4\nout t1 1 4 like 1 9 exp t0 b\n"), "input t0 4\nout t1 4 exp t0 a\n");
    for text in [rows, columns, single] {
        assert_eq!(form(&text), text);
    }
}

#[test]
fn rows_of_boxes() {
    assert_eq!(rows_of_part(&[2, 3], &[2, 5]), (vec![0, 5], 3));
    assert_eq!(rows_of_part(&[2, 2, 4], &[3, 3, 4]), (vec![0, 12], 8));
    assert_eq!(rows_of_part(&[2, 5], &[7, 5]), (vec![0], 10));
    assert_eq!(rows_of_part(&[], &[]), (vec![0], 1));
    assert_eq!(rows_of_part(&[2, 0], &[2, 5]), (vec![], 0));
    let mut bytes: Vec<u8> = (0..20).collect();
    put_part(&mut bytes, &[100, 101, 102, 103], &[2, 1], &[2, 5], 2);
    assert_eq!(part_of_bytes(&bytes, &[2, 2], &[2, 5], 2), [100, 101, 2, 3, 102, 103, 12, 13]);
}
