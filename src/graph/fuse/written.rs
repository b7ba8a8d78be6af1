//! Which elements of a buffer are written.

use std::collections::BTreeMap;

/// So many parts of a buffer, each so many elements, the starts of two so many apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Parts {
    /// Where the lowest part starts.
    pub first: i64,
    pub elements: i64,
    /// Not negative.
    pub step: i64,
    pub count: i64,
}

impl Parts {
    /// The first element and the one behind the last.
    fn span(self) -> (i64, i64) {
        let last = self.first.saturating_add(self.step.saturating_mul(self.count - 1));
        (self.first, last.saturating_add(self.elements))
    }

    /// Whether there is something between two parts.
    fn leaves_gaps(self) -> bool {
        self.count > 1 && self.step > self.elements
    }
}

/// The elements of a buffer that are written: ranges, and rows that are written in part.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    ranges: Ranges,
    rows: Vec<Rows>,
}

/// What is written of each of so many rows, told by the first of them: its ranges span no more than the step
/// from one row to the next.
#[derive(Clone, Debug)]
struct Rows {
    step: i64,
    count: i64,
    first: Ranges,
}

impl Rows {
    fn are_apart_as(&self, parts: Parts) -> bool {
        (self.step, self.count) == (parts.step, parts.count)
    }

    /// Whether parts of some of the rows are written.
    fn hold(&self, parts: Parts) -> bool {
        if parts.count > 1 && parts.step != self.step || parts.elements > self.step {
            return false;
        }
        let row = (parts.first - self.hull().0).div_euclid(self.step);
        let first = parts.first - row * self.step;
        row >= 0 && row + parts.count <= self.count && self.first.covers(first, first + parts.elements)
    }

    /// Where the first row starts and ends.
    fn hull(&self) -> (i64, i64) {
        let (first, last) = (self.first.0.iter().next(), self.first.0.iter().next_back());
        first.zip(last).map_or((0, 0), |((start, _), (_, end))| (*start, *end))
    }

    fn span(&self) -> (i64, i64) {
        let (first, end) = self.hull();
        (first, end.saturating_add(self.step.saturating_mul(self.count - 1)))
    }

    /// Whether parts lie in these rows, or beside what is known of them.
    fn may_hold(&self, parts: Parts) -> bool {
        let (first, end) = self.hull();
        let hull = end.max(parts.first + parts.elements) - first.min(parts.first);
        self.are_apart_as(parts) && hull <= self.step
    }
}

impl Written {
    /// Whether all elements of a range are written.
    pub fn covers(&self, first: i64, end: i64) -> bool {
        self.ranges.covers(first, end)
    }

    /// Whether all elements of parts are written.
    pub fn holds(&self, parts: Parts) -> bool {
        let (first, end) = parts.span();
        self.ranges.covers(first, end)
            || self.rows.iter().any(|rows| rows.hold(parts))
            || (parts.leaves_gaps() && self.ranges.covers_each(parts))
    }

    /// Adds parts; false where one is written already, or may be.
    pub fn insert(&mut self, parts: Parts) -> bool {
        let (first, end) = parts.span();
        if parts.elements == 0 {
            return true;
        }
        let own = self.rows.iter().position(|rows| parts.leaves_gaps() && rows.may_hold(parts));
        let is_apart = |(at, rows): (usize, &Rows)| {
            let (start, behind) = rows.span();
            Some(at) == own || end <= start || behind <= first
        };
        if !self.rows.iter().enumerate().all(is_apart) || self.ranges.meets(first, end) {
            return false;
        }
        if !parts.leaves_gaps() {
            // the same elements in each iteration, or some behind others; not some that reach into others
            let are_apart = parts.count <= 1 || parts.step == 0 || parts.step == parts.elements;
            return are_apart && self.ranges.insert(first, end);
        }
        let at = own.unwrap_or_else(|| {
            self.rows.push(Rows { step: parts.step, count: parts.count, first: Ranges::default() });
            self.rows.len() - 1
        });
        let rows = &mut self.rows[at];
        if !rows.first.insert(parts.first, parts.first + parts.elements) {
            return false;
        }
        let (start, behind) = rows.hull();
        if rows.first.0.len() > 1 || behind - start < rows.step {
            return true;
        }
        let (start, behind) = rows.span();
        self.rows.swap_remove(at);
        self.ranges.insert(start, behind)
    }

    /// Adds what of a range is not in yet.
    pub fn put(&mut self, first: i64, end: i64) {
        self.ranges.put(first, end);
    }

    /// What is in both.
    pub fn common(&self, other: &Written) -> Written {
        let of_rows = self.rows.iter().flat_map(|own| {
            let alike = other.rows.iter().filter(|other| (other.step, other.count) == (own.step, own.count));
            alike.map(|other| Rows { first: own.first.common(&other.first), ..*own }).collect::<Vec<_>>()
        });
        let rows = of_rows.filter(|rows| !rows.first.0.is_empty()).collect();
        Written { ranges: self.ranges.common(&other.ranges), rows }
    }
}

/// Disjoint half-open ranges, joined where they touch.
#[derive(Clone, Debug, Default)]
struct Ranges(BTreeMap<i64, i64>);

impl Ranges {
    fn covers(&self, first: i64, end: i64) -> bool {
        first == end || self.0.range(..=first).next_back().is_some_and(|(_, known)| *known >= end)
    }

    /// Whether one of them has an element of a range.
    fn meets(&self, first: i64, end: i64) -> bool {
        self.0.range(..end).next_back().is_some_and(|(_, known)| *known > first)
    }

    /// Whether each part lies in one of the ranges. A range may hold many: the work is that of the ranges.
    fn covers_each(&self, parts: Parts) -> bool {
        let mut number = 0;
        while number < parts.count {
            let first = parts.first + parts.step * number;
            let Some((_, end)) = self.0.range(..=first).next_back() else { return false };
            if *end < first + parts.elements {
                return false;
            }
            number += (end - first - parts.elements) / parts.step + 1;
        }
        true
    }

    /// Adds what is not in yet.
    fn put(&mut self, first: i64, end: i64) {
        let mut at = first;
        while at < end {
            if let Some((_, known)) = self.0.range(..=at).next_back().filter(|(_, known)| **known > at) {
                at = *known;
                continue;
            }
            let next = self.0.range(at..).next().map_or(end, |(start, _)| (*start).min(end));
            self.insert(at, next);
            at = next;
        }
    }

    /// What is in both.
    fn common(&self, other: &Ranges) -> Ranges {
        let mut common = Ranges::default();
        for (first, end) in &self.0 {
            let before = other.0.range(..=*first).next_back();
            for (a, b) in before.into_iter().chain(other.0.range(first + 1..*end)) {
                let (low, high) = (*first.max(a), *end.min(b));
                if low < high {
                    common.insert(low, high);
                }
            }
        }
        common
    }

    /// False where a part is in already.
    fn insert(&mut self, mut first: i64, mut end: i64) -> bool {
        if first == end {
            return true;
        }
        let before = self.0.range(..end).next_back().map(|(a, b)| (*a, *b));
        match before {
            Some((_, known)) if known > first => return false,
            Some((start, known)) if known == first => first = start,
            _ => {}
        }
        if let Some(after) = self.0.remove(&end) {
            end = after;
        }
        self.0.insert(first, end);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Parts, Ranges, Written};

    #[test]
    fn ranges_join_and_refuse_overlap() {
        let mut ranges = Ranges::default();
        assert!(ranges.insert(0, 4) && ranges.insert(8, 12));
        assert!(!ranges.covers(0, 12));
        assert!(ranges.insert(4, 8));
        assert!(ranges.covers(0, 12) && ranges.covers(3, 9) && !ranges.covers(3, 13));
        assert!(!ranges.insert(11, 20) && !ranges.insert(5, 6));
    }

    #[test]
    fn rows_that_are_written_in_parts_become_ranges_when_they_are_whole() {
        const ROWS: i64 = 1 << 30;
        let part = |first, elements| Parts { first, elements, step: 10, count: ROWS };
        let mut written = Written::default();
        assert!(written.insert(part(5, 4)) && written.insert(part(11, 4)));
        assert!(written.holds(part(12, 3)) && !written.holds(part(9, 2)) && !written.covers(5, 15));
        // of some of the rows, and of one
        let some = |first, elements, count| Parts { count, ..part(first, elements) };
        assert!(written.holds(some(25, 4, ROWS - 2)) && !written.holds(some(25, 4, ROWS - 1)));
        assert!(written.holds(some(25, 4, 1)) && !written.holds(some(25, 5, 1)) && !written.holds(some(-5, 4, 1)));
        assert!(!written.holds(Parts { step: 20, ..some(5, 4, 2) }));
        assert!(!written.insert(part(8, 2)), "written twice");
        assert!(!written.insert(Parts { first: 9, elements: 1, step: 0, count: 1 }), "between parts of rows");
        assert!(!written.insert(part(5, 10)), "whole rows, of which parts are written");
        assert!(written.insert(part(9, 2)));
        assert!(written.covers(5, 5 + 10 * ROWS) && !written.covers(4, 6));
        assert!(!written.insert(part(5, 4)));
        assert!(written.holds(part(7, 5)) && !written.holds(part(12, 5)));
    }

    #[test]
    fn parts_of_two_branches_are_those_that_both_wrote() {
        let part = |first, elements| Parts { first, elements, step: 8, count: 3 };
        let (mut one, mut other) = (Written::default(), Written::default());
        assert!(one.insert(part(0, 6)) && other.insert(part(2, 5)));
        let common = one.common(&other);
        assert!(common.holds(part(2, 4)) && !common.holds(part(1, 4)) && !common.holds(part(3, 4)));
    }
}
