-- Who may do what: taken anew after every migration. `{database}`, `{coordinator}` and `{worker}` stand for
-- quoted names.

REVOKE ALL ON DATABASE {database} FROM PUBLIC;
GRANT CONNECT ON DATABASE {database} TO {coordinator}, {worker};
REVOKE ALL ON ALL TABLES IN SCHEMA fleet FROM PUBLIC, {coordinator}, {worker};
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fleet FROM PUBLIC, {coordinator}, {worker};
GRANT USAGE ON SCHEMA fleet TO {coordinator}, {worker};

GRANT EXECUTE ON FUNCTION fleet.version, fleet.identity TO {coordinator}, {worker};
GRANT EXECUTE ON FUNCTION fleet.join_fleet, fleet.lease, fleet.report, fleet.leave TO {worker};
GRANT EXECUTE ON FUNCTION fleet.submit, fleet.whole_lease, fleet.know_target, fleet.cancel, fleet.retry, fleet.drain,
    fleet.take_back_expired TO {coordinator};
GRANT SELECT ON fleet.about, fleet.migrations, fleet.tasks, fleet.targets, fleet.plans, fleet.leases, fleet.records
    TO {coordinator};
-- all but the secrets
GRANT SELECT (id, name, target, space, tilescribe, joined, seen, gone, draining, programs, busy_s, idle_s)
    ON fleet.workers TO {coordinator};

-- what a stranger starts under a stolen password ends soon
ALTER ROLE {worker} SET statement_timeout = '60s';
ALTER ROLE {worker} SET idle_in_transaction_session_timeout = '60s';
