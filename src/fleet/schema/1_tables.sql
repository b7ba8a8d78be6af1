-- What a fleet keeps. Everything that must not be lost is a row of `records`; all else says what is to be
-- measured, by whom, and how that went.

CREATE SCHEMA fleet;
REVOKE ALL ON SCHEMA fleet FROM PUBLIC;

CREATE TABLE fleet.about (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    -- by which a worker's store knows where its records belong
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    -- a worker that is silent for so long has lost its lease
    lease_seconds integer NOT NULL DEFAULT 120 CHECK (lease_seconds BETWEEN 1 AND 86400),
    -- nobody leases anything
    draining boolean NOT NULL DEFAULT false
);
INSERT INTO fleet.about DEFAULT VALUES;

CREATE TABLE fleet.tasks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- canonical hash of the workload; workers hold the text to it
    hash text NOT NULL UNIQUE CHECK (length(hash) BETWEEN 1 AND 128),
    workload text NOT NULL CHECK (octet_length(workload) <= 1 << 20)
);

CREATE TABLE fleet.targets (
    -- the first 16 bytes of the text's SHA-256
    fingerprint text PRIMARY KEY
        CHECK (fingerprint = encode(substring(sha256(convert_to(target, 'UTF8')) FROM 1 FOR 16), 'hex')),
    -- TOML
    target text NOT NULL CHECK (octet_length(target) <= 1 << 16)
);

CREATE TABLE fleet.workers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- SHA-256 of a secret that only this worker has: nobody reports in another one's name
    secret bytea NOT NULL UNIQUE,
    name text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    target text NOT NULL REFERENCES fleet.targets,
    -- version of the search space that it reads
    space text NOT NULL CHECK (length(space) BETWEEN 1 AND 4096),
    tilescribe text NOT NULL CHECK (length(tilescribe) BETWEEN 1 AND 100),
    joined timestamptz NOT NULL,
    seen timestamptz NOT NULL,
    -- it said goodbye
    gone timestamptz,
    draining boolean NOT NULL DEFAULT false,
    programs bigint NOT NULL DEFAULT 0,
    -- seconds that it measured, and that it waited for something to measure
    busy_s double precision NOT NULL DEFAULT 0,
    idle_s double precision NOT NULL DEFAULT 0
);

CREATE TABLE fleet.plans (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- drawn by the coordinator, so that what is sent twice is there once
    key uuid NOT NULL UNIQUE,
    -- which command of which coordinator it is part of
    run text NOT NULL CHECK (length(run) BETWEEN 1 AND 4096),
    -- who wrote the programs, and the 64 bits of its seed
    proposer text NOT NULL CHECK (length(proposer) BETWEEN 1 AND 200),
    seed bigint NOT NULL,
    kind text NOT NULL CHECK (kind IN ('each', 'first-correct', 'finals')),
    task bigint NOT NULL REFERENCES fleet.tasks,
    target text NOT NULL REFERENCES fleet.targets,
    space text NOT NULL CHECK (length(space) BETWEEN 1 AND 4096),
    traces text[] NOT NULL CHECK (cardinality(traces) BETWEEN 1 AND 4096),
    -- the fastest program known when the plan was written, beside which its programs are timed
    best_trace text,
    best_ns bigint CHECK (best_ns > 0),
    created timestamptz NOT NULL,
    state text NOT NULL CHECK (state IN ('waiting', 'leased', 'done', 'parked', 'cancelled')),
    -- why it is parked
    cause text,
    -- number of the last lease: what comes under an older one ends nothing
    fence bigint NOT NULL DEFAULT 0,
    -- lost leases that were looked at and forgiven
    forgiven integer NOT NULL DEFAULT 0,
    -- raised by everything that its coordinator waits for
    news bigint NOT NULL DEFAULT 0,
    CHECK ((best_trace IS NULL) = (best_ns IS NULL))
);
CREATE INDEX plans_waiting ON fleet.plans (target, space, id) WHERE state = 'waiting';
CREATE INDEX plans_waiting_of_task ON fleet.plans (target, space, task, id) WHERE state = 'waiting';
CREATE INDEX plans_open ON fleet.plans (run) WHERE state IN ('waiting', 'leased');
CREATE INDEX plans_parked ON fleet.plans (id) WHERE state = 'parked';
CREATE INDEX plans_of_task ON fleet.plans (task, target, space);

CREATE TABLE fleet.leases (
    plan bigint NOT NULL REFERENCES fleet.plans,
    fence bigint NOT NULL,
    worker bigint NOT NULL REFERENCES fleet.workers,
    taken timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    ended timestamptz,
    -- how it ended: `expired` and `died` speak against the plan; `late` is an expired one that was heard of again
    how text CHECK (how IN ('finished', 'returned', 'expired', 'late', 'died', 'unmeasurable', 'refused', 'withdrawn')),
    cause text,
    PRIMARY KEY (plan, fence),
    CHECK ((ended IS NULL) = (how IS NULL))
);
CREATE INDEX leases_held ON fleet.leases (expires) WHERE ended IS NULL;
CREATE INDEX leases_held_by ON fleet.leases (worker) WHERE ended IS NULL;

CREATE TABLE fleet.records (
    plan bigint NOT NULL,
    fence bigint NOT NULL,
    -- of the program in its plan, from 1
    number integer NOT NULL,
    -- why it has no time; NULL where it was timed
    failure text CHECK (failure IN ('dead-end', 'compile', 'timeout', 'crash', 'memory', 'wrong-result')),
    detail text NOT NULL CHECK (octet_length(detail) <= 8192),
    times_ns bigint[] NOT NULL CHECK (cardinality(times_ns) <= 65536 AND 0 < ALL (times_ns)),
    compile_us bigint NOT NULL CHECK (compile_us >= 0),
    tilescribe text NOT NULL CHECK (length(tilescribe) BETWEEN 1 AND 100),
    -- by the server's clock: those of workers may be wrong
    received timestamptz NOT NULL,
    -- under a lease, a program is measured once
    PRIMARY KEY (plan, fence, number),
    FOREIGN KEY (plan, fence) REFERENCES fleet.leases,
    CHECK ((failure IS NULL) = (cardinality(times_ns) > 0))
);
CREATE INDEX records_received ON fleet.records USING brin (received) WITH (pages_per_range = 16);
CREATE INDEX records_failed ON fleet.records (failure) WHERE failure IS NOT NULL;
