//! Programs for several extents: where a task is tuned for more than one point, each of them has a program of
//! its own, and a run takes that of the nearest.

use std::cmp::Reverse;

use super::{Call, Callee, Network, NetworkTask, Region, RegionKind};
use crate::workload::Workload;

/// What takes less work at a point, in operations, has no program of its own there: some microseconds are
/// spent whatever the program is.
const LEAST_WORK: i64 = 1_000_000;
/// Programs of a task, at most.
const MOST_VARIANTS: usize = 6;

impl Network {
    /// Makes tasks that are tuned for points of different work into one task for each, and every call of them
    /// into a [`RegionKind::Nearest`].
    pub fn specialise(&mut self) {
        let tasks = std::mem::take(&mut self.tasks);
        let mut variants_of: Vec<Vec<usize>> = Vec::with_capacity(tasks.len());
        for task in tasks {
            let first = self.tasks.len();
            self.tasks.extend(variants(task));
            variants_of.push((first..self.tasks.len()).collect());
        }
        let calls = std::mem::take(&mut self.calls);
        // where calls have moved to
        let mut starts = Vec::with_capacity(calls.len() + 1);
        for call in calls {
            let first = self.calls.len();
            starts.push(first);
            let own = call.task().map_or(&[][..], |task| variants_of[task].as_slice());
            if own.is_empty() {
                self.calls.push(call);
                continue;
            }
            self.calls.extend(own.iter().map(|task| Call { callee: Callee::Task(*task), ..call.clone() }));
            if own.len() > 1 {
                let points = own.iter().enumerate().flat_map(|(variant, task)| {
                    let points = &self.tasks[*task].workload.points;
                    points.iter().map(move |point| (variant, point.clone()))
                });
                let kind = RegionKind::Nearest { points: points.collect() };
                self.regions.push(Region { calls: first..self.calls.len(), kind });
            }
        }
        starts.push(self.calls.len());
        let is_choice = |region: &Region| matches!(region.kind, RegionKind::Nearest { .. });
        for region in self.regions.iter_mut().filter(|region| !is_choice(region)) {
            region.calls = starts[region.calls.start]..starts[region.calls.end];
        }
        self.regions.sort_by_key(|region| (region.calls.start, Reverse(region.calls.end), is_choice(region)));
    }
}

/// A task for each group of its points, that with the least work first.
fn variants(task: NetworkTask) -> Vec<NetworkTask> {
    let mut groups = groups(&task.workload);
    if groups.len() < 2 {
        return vec![task];
    }
    let each = groups.len().div_ceil(MOST_VARIANTS);
    groups = groups.chunks(each).map(<[_]>::concat).collect();
    let variant = |points: Vec<Vec<i64>>| {
        let most: Vec<String> = points.last().into_iter().flatten().map(i64::to_string).collect();
        NetworkTask {
            name: format!("{}_at_{}", task.name, most.join("x")),
            workload: Workload { points, ..task.workload.clone() },
            ..task.clone()
        }
    };
    groups.into_iter().map(variant).collect()
}

/// The points by work, those of little work with the next.
fn groups(workload: &Workload) -> Vec<Vec<Vec<i64>>> {
    let mut points = workload.points_by_work();
    points.reverse();
    let (mut groups, mut group) = (Vec::new(), Vec::new());
    for point in points {
        let is_worth_it = workload.at(&point).work() >= LEAST_WORK;
        group.push(point);
        if is_worth_it {
            groups.push(std::mem::take(&mut group));
        }
    }
    groups.extend((!group.is_empty()).then_some(group));
    groups
}
