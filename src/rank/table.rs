//! The table of features: what each is called, and what it is.

/// A feature of a program.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Feature {
    /// What all of its kind have in common: how `name` was counted.
    pub group: &'static str,
    pub name: &'static str,
    pub value: f64,
}

/// A row of the table of features.
pub(super) type Named = (&'static str, f64);

/// The table of features, in the order in which estimators read them.
#[derive(Default)]
pub(super) struct Table(Vec<Feature>);

impl Table {
    pub(super) fn add(&mut self, group: &'static str, rows: impl IntoIterator<Item = Named>) {
        self.0.extend(rows.into_iter().map(|(name, value)| Feature { group, name, value }));
    }

    pub(super) fn features(self) -> Vec<Feature> {
        self.0
    }

    /// The logarithms of counts.
    pub(super) fn add_magnitudes(&mut self, group: &'static str, rows: impl IntoIterator<Item = Named>) {
        self.add(group, rows.into_iter().map(|(name, count)| (name, magnitude(count))));
    }

    /// The logarithms of counts for each operation that the workload asks for.
    pub(super) fn add_per_flop(&mut self, group: &'static str, rows: impl IntoIterator<Item = Named>, flops: f64) {
        self.add(group, rows.into_iter().map(|(name, count)| (name, ((count + 1.0) / flops).log2())));
    }
}

/// The logarithm of a count.
pub(super) fn magnitude(count: f64) -> f64 {
    (1.0 + count.max(0.0)).log2()
}
