-- What workers may do: call these functions, and nothing else. Whatever a worker says is about its own
-- leases. All that locks two rows locks the plan's first.

-- The worker that has this secret.
CREATE FUNCTION fleet.worker_of(secret_key bytea) RETURNS fleet.workers
LANGUAGE plpgsql STABLE SET search_path = fleet, pg_temp AS $$
DECLARE
    found_worker workers;
BEGIN
    SELECT * INTO found_worker FROM workers WHERE secret = sha256(secret_key);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this worker has not joined the fleet' USING ERRCODE = 'TS001';
    END IF;
    RETURN found_worker;
END $$;

-- The first lease under which all of a plan was measured: programs of finals are told apart only together.
CREATE FUNCTION fleet.whole_lease(which fleet.plans) RETURNS bigint
LANGUAGE sql STABLE SET search_path = fleet, pg_temp AS $$
    SELECT fence FROM records WHERE plan = which.id
    GROUP BY fence HAVING count(*) = cardinality(which.traces) ORDER BY fence LIMIT 1
$$;

-- Whether all of a plan was measured: of finals under one lease, of others under whatever leases.
CREATE FUNCTION fleet.is_complete(which fleet.plans) RETURNS boolean
LANGUAGE sql STABLE SET search_path = fleet, pg_temp AS $$
    SELECT CASE which.kind
        WHEN 'finals' THEN whole_lease(which) IS NOT NULL
        ELSE count(DISTINCT number) = cardinality(which.traces)
            OR (which.kind = 'first-correct' AND bool_or(failure IS NULL))
        END
    FROM records WHERE plan = which.id
$$;

-- What becomes of a plan that nobody works on. The caller has locked it.
CREATE FUNCTION fleet.settle(plan_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = fleet, pg_temp AS $$
DECLARE
    this plans;
    lost integer;
    causes text;
BEGIN
    SELECT * INTO STRICT this FROM plans WHERE id = plan_id;
    IF this.state IN ('done', 'cancelled') THEN
        RETURN;
    END IF;
    SELECT count(*), string_agg(cause, '; ' ORDER BY fence) INTO lost, causes
        FROM (SELECT fence, cause FROM leases WHERE plan = plan_id AND how IN ('expired', 'died')
              ORDER BY fence OFFSET this.forgiven) AS counted;
    IF is_complete(this) THEN
        UPDATE plans SET state = 'done', cause = NULL, news = news + 1 WHERE id = plan_id;
    ELSIF lost >= 3 THEN
        UPDATE plans SET state = 'parked', cause = causes, news = news + 1 WHERE id = plan_id;
    ELSIF EXISTS (SELECT FROM leases WHERE plan = plan_id AND ended IS NULL) THEN
        UPDATE plans SET state = 'leased', cause = NULL, news = news + 1 WHERE id = plan_id;
    ELSE
        UPDATE plans SET state = 'waiting', cause = NULL, news = news + 1 WHERE id = plan_id;
    END IF;
END $$;

-- Takes back what silent workers held, by the server's clock.
CREATE FUNCTION fleet.reclaim() RETURNS void
LANGUAGE plpgsql SET search_path = fleet, pg_temp AS $$
DECLARE
    held record;
BEGIN
    FOR held IN SELECT plan, fence FROM leases WHERE ended IS NULL AND expires < clock_timestamp() LIMIT 100 LOOP
        PERFORM FROM plans WHERE id = held.plan FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        UPDATE leases SET ended = clock_timestamp(), how = 'expired',
            cause = format('worker %s (%s) was silent', worker, (SELECT name FROM workers WHERE id = worker))
            WHERE plan = held.plan AND fence = held.fence AND ended IS NULL AND expires < clock_timestamp();
        IF FOUND THEN
            PERFORM settle(held.plan);
        END IF;
    END LOOP;
END $$;

-- Joins the fleet, or comes back to it; returns the worker's number.
CREATE FUNCTION fleet.join_fleet(
    secret_key bytea, worker_name text, its_fingerprint text, its_target text, its_space text, its_version text
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = fleet, pg_temp AS $$
DECLARE
    number bigint;
BEGIN
    IF octet_length(secret_key) <> 32 THEN
        RAISE EXCEPTION 'a secret has 32 bytes' USING ERRCODE = 'TS003';
    END IF;
    IF its_fingerprint <> encode(substring(sha256(convert_to(its_target, 'UTF8')) FROM 1 FOR 16), 'hex') THEN
        RAISE EXCEPTION 'the fingerprint % is not that of the target', left(its_fingerprint, 80) USING ERRCODE = 'TS003';
    END IF;
    INSERT INTO targets VALUES (its_fingerprint, its_target) ON CONFLICT DO NOTHING;
    INSERT INTO workers (secret, name, target, space, tilescribe, joined, seen)
        VALUES (sha256(secret_key), worker_name, its_fingerprint, its_space, its_version, clock_timestamp(), clock_timestamp())
        ON CONFLICT (secret) DO UPDATE SET name = EXCLUDED.name, target = EXCLUDED.target, space = EXCLUDED.space,
            tilescribe = EXCLUDED.tilescribe, seen = clock_timestamp(), gone = NULL, draining = false
        RETURNING id INTO number;
    RETURN number;
END $$;

-- What a worker reads of a plan that it has leased.
CREATE FUNCTION fleet.offer(which fleet.plans, lease_seconds integer) RETURNS TABLE (
    plan bigint, fence bigint, seconds integer, kind text, hash text, workload text, fingerprint text, space text,
    traces text[], numbers integer[], best_trace text, best_ns bigint, is_draining boolean
)
LANGUAGE sql STABLE SET search_path = fleet, pg_temp AS $$
    SELECT which.id, which.fence, lease_seconds, which.kind, tasks.hash, tasks.workload, which.target, which.space,
        which.traces,
        ARRAY(SELECT at FROM generate_series(1, cardinality(which.traces)) AS at
              WHERE NOT EXISTS (SELECT FROM records WHERE records.plan = which.id AND records.number = at)
              ORDER BY at),
        which.best_trace, which.best_ns, false
    FROM tasks WHERE tasks.id = which.task
$$;

-- A plan to measure; of the task that the worker is ready for, if there is one. `numbers` says which of its
-- programs nobody has measured yet. No row: nothing waits, or, where `is_draining`, nothing is to be taken.
CREATE FUNCTION fleet.lease(secret_key bytea, ready_for text) RETURNS TABLE (
    plan bigint, fence bigint, seconds integer, kind text, hash text, workload text, fingerprint text, space text,
    traces text[], numbers integer[], best_trace text, best_ns bigint, is_draining boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = fleet, pg_temp AS $$
#variable_conflict use_column
DECLARE
    me workers := worker_of(secret_key);
    chosen plans;
    held leases;
    this_fleet about;
BEGIN
    PERFORM reclaim();
    SELECT * INTO STRICT this_fleet FROM about;
    UPDATE workers SET seen = clock_timestamp() WHERE id = me.id;
    -- a worker has one lease at a time: who asks with one in hand has not heard the answer
    SELECT * INTO held FROM leases WHERE worker = me.id AND ended IS NULL ORDER BY taken LIMIT 1;
    IF FOUND THEN
        SELECT * INTO chosen FROM plans WHERE id = held.plan FOR UPDATE;
        UPDATE leases SET expires = clock_timestamp() + make_interval(secs => this_fleet.lease_seconds)
            WHERE plan = held.plan AND fence = held.fence AND ended IS NULL;
        IF FOUND THEN
            RETURN QUERY SELECT * FROM offer(chosen, this_fleet.lease_seconds);
            RETURN;
        END IF;
    END IF;
    IF me.draining OR this_fleet.draining THEN
        is_draining := true;
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT * INTO chosen FROM plans
        WHERE state = 'waiting' AND target = me.target AND space = me.space
            AND task = (SELECT id FROM tasks WHERE tasks.hash = ready_for)
        ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        SELECT * INTO chosen FROM plans
            WHERE state = 'waiting' AND target = me.target AND space = me.space
            ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED;
    END IF;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE plans SET state = 'leased', fence = chosen.fence + 1, news = news + 1 WHERE id = chosen.id;
    INSERT INTO leases (plan, fence, worker, taken, expires)
        VALUES (chosen.id, chosen.fence + 1, me.id, clock_timestamp(),
                clock_timestamp() + make_interval(secs => this_fleet.lease_seconds));
    chosen.fence := chosen.fence + 1;
    RETURN QUERY SELECT * FROM offer(chosen, this_fleet.lease_seconds);
END $$;

-- Takes in what was measured under a lease, be it nothing: it says that the worker is still at it. What is
-- known already is passed over. `outcome` says how the lease ends, and is NULL where it goes on. Returns
-- `held`: go on; `lost`: another has the plan, or had it; `over`: nobody waits for the rest.
CREATE FUNCTION fleet.report(
    secret_key bytea, plan_id bigint, lease_fence bigint, its_version text, measured jsonb, outcome text, why text,
    busy double precision, idle double precision
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = fleet, pg_temp AS $$
DECLARE
    me workers := worker_of(secret_key);
    this plans;
    held leases;
    added integer;
BEGIN
    SELECT * INTO this FROM plans WHERE id = plan_id FOR UPDATE;
    SELECT * INTO held FROM leases WHERE plan = plan_id AND fence = lease_fence AND worker = me.id;
    IF held IS NULL THEN
        RAISE EXCEPTION 'this worker had no lease % of plan %', lease_fence, plan_id USING ERRCODE = 'TS002';
    END IF;
    IF outcome NOT IN ('finished', 'returned', 'died', 'unmeasurable', 'refused') OR octet_length(why) > 8192 THEN
        RAISE EXCEPTION 'no lease ends so' USING ERRCODE = 'TS003';
    END IF;
    INSERT INTO records (plan, fence, number, failure, detail, times_ns, compile_us, tilescribe, received)
        SELECT plan_id, lease_fence, m.number, m.failure, m.detail, m.times_ns, m.compile_us, its_version, clock_timestamp()
        FROM jsonb_to_recordset(measured)
            AS m (number integer, failure text, detail text, times_ns bigint[], compile_us bigint)
        ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS added = ROW_COUNT;
    IF EXISTS (SELECT FROM records WHERE plan = plan_id AND fence = lease_fence
               AND number NOT BETWEEN 1 AND cardinality(this.traces)) THEN
        RAISE EXCEPTION 'plan % has % programs', plan_id, cardinality(this.traces) USING ERRCODE = 'TS003';
    END IF;
    UPDATE workers SET seen = clock_timestamp(), programs = programs + added,
        busy_s = busy_s + least(greatest(busy, 0), 1e6), idle_s = idle_s + least(greatest(idle, 0), 1e6)
        WHERE id = me.id;
    UPDATE plans SET news = news + 1 WHERE id = plan_id AND added > 0;
    IF held.how = 'expired' THEN
        -- silent, but not dead: that does not speak against the plan
        UPDATE leases SET how = 'late', cause = NULL WHERE plan = plan_id AND fence = lease_fence;
        PERFORM settle(plan_id);
    ELSIF held.how IS NULL AND outcome IS NOT NULL THEN
        UPDATE leases SET ended = clock_timestamp(), how = outcome, cause = why
            WHERE plan = plan_id AND fence = lease_fence;
        IF outcome IN ('unmeasurable', 'refused') AND this.state = 'leased' THEN
            UPDATE plans SET state = 'parked', cause = format('%s by worker %s: %s', outcome, me.id, why), news = news + 1
                WHERE id = plan_id;
        ELSE
            PERFORM settle(plan_id);
        END IF;
    ELSIF held.how IS NULL THEN
        UPDATE leases SET expires = clock_timestamp() + make_interval(secs => (SELECT lease_seconds FROM about))
            WHERE plan = plan_id AND fence = lease_fence;
    END IF;
    SELECT * INTO this FROM plans WHERE id = plan_id;
    RETURN CASE
        WHEN this.state IN ('done', 'cancelled') THEN 'over'
        WHEN EXISTS (SELECT FROM leases WHERE plan = plan_id AND fence = lease_fence AND ended IS NULL) THEN 'held'
        ELSE 'lost' END;
END $$;

-- The worker goes, and says so.
CREATE FUNCTION fleet.leave(secret_key bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = fleet, pg_temp AS $$
DECLARE
    me workers := worker_of(secret_key);
BEGIN
    UPDATE workers SET seen = clock_timestamp(), gone = clock_timestamp() WHERE id = me.id;
END $$;

-- Which fleet this is.
CREATE FUNCTION fleet.identity() RETURNS uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = fleet, pg_temp AS 'SELECT id FROM about';

-- How many migrations it has seen.
CREATE FUNCTION fleet.version() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = fleet, pg_temp AS 'SELECT max(number) FROM migrations';
