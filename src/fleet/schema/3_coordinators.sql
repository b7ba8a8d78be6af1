-- What coordinators may do: read everything but workers' secrets, and call these functions.

-- Sends a plan; sent again under the same key, it is there once. Returns its number.
CREATE FUNCTION fleet.submit(
    plan_key uuid, its_run text, its_proposer text, its_seed bigint, its_kind text, its_hash text, its_workload text,
    its_target text, its_space text, its_traces text[], its_best_trace text, its_best_ns bigint
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = fleet, pg_temp AS $$
DECLARE
    number bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM targets WHERE fingerprint = its_target) THEN
        RAISE EXCEPTION 'no worker has the target %', left(its_target, 80) USING ERRCODE = 'TS003';
    END IF;
    INSERT INTO tasks (hash, workload) VALUES (its_hash, its_workload) ON CONFLICT DO NOTHING;
    INSERT INTO plans (key, run, proposer, seed, kind, task, target, space, traces, best_trace, best_ns, created, state)
        SELECT plan_key, its_run, its_proposer, its_seed, its_kind, id, its_target, its_space, its_traces,
            its_best_trace, its_best_ns, clock_timestamp(), 'waiting'
        FROM tasks WHERE hash = its_hash AND workload = its_workload
        ON CONFLICT (key) DO NOTHING;
    SELECT id INTO number FROM plans WHERE key = plan_key;
    IF number IS NULL THEN
        RAISE EXCEPTION 'task % is known with another workload', its_hash USING ERRCODE = 'TS003';
    END IF;
    RETURN number;
END $$;

-- Makes a target known that no worker has yet.
CREATE FUNCTION fleet.know_target(its_fingerprint text, its_target text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = fleet, pg_temp AS $$
    INSERT INTO targets VALUES (its_fingerprint, its_target) ON CONFLICT DO NOTHING
$$;

-- Nobody waits for these plans any more. What is being measured of them still arrives.
CREATE FUNCTION fleet.cancel(plan_ids bigint[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = fleet, pg_temp AS $$
DECLARE
    cancelled integer := 0;
    one bigint;
BEGIN
    FOR one IN SELECT id FROM plans WHERE id = ANY (plan_ids) AND state IN ('waiting', 'leased', 'parked')
            ORDER BY id FOR UPDATE LOOP
        UPDATE plans SET state = 'cancelled', news = news + 1 WHERE id = one;
        UPDATE leases SET ended = clock_timestamp(), how = 'withdrawn' WHERE plan = one AND ended IS NULL;
        cancelled := cancelled + 1;
    END LOOP;
    RETURN cancelled;
END $$;

-- Parked plans get another chance: those named, or all. Returns how many.
CREATE FUNCTION fleet.retry(plan_ids bigint[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = fleet, pg_temp AS $$
DECLARE
    one bigint;
    retried integer := 0;
BEGIN
    FOR one IN SELECT id FROM plans WHERE state = 'parked' AND (plan_ids IS NULL OR id = ANY (plan_ids))
            ORDER BY id FOR UPDATE LOOP
        UPDATE plans SET forgiven = (SELECT count(*) FROM leases WHERE plan = one AND how IN ('expired', 'died'))
            WHERE id = one;
        PERFORM settle(one);
        retried := retried + 1;
    END LOOP;
    RETURN retried;
END $$;

-- Workers, those named or all, take nothing more; or do again.
CREATE FUNCTION fleet.drain(worker_ids bigint[], is_on boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = fleet, pg_temp AS $$
BEGIN
    IF worker_ids IS NULL THEN
        UPDATE about SET draining = is_on;
        UPDATE workers SET draining = false WHERE draining AND NOT is_on;
    ELSE
        UPDATE workers SET draining = is_on WHERE id = ANY (worker_ids);
    END IF;
END $$;

-- As workers do it with every lease, so that plans are taken back where no worker asks.
CREATE FUNCTION fleet.take_back_expired() RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = fleet, pg_temp AS 'SELECT reclaim()';
