//! What is known of the longest tests. Only the order hangs on it: a wrong number costs
//! time, and a missing one little.

/// About the unit tests of a target, or about one test file.
pub struct Weight {
    name: &'static str,
    /// How long it takes beside others on two cores.
    pub seconds: f64,
    /// How many of its tests run at a time, where that is not a test a core: most of them wait.
    pub threads: Option<u8>,
}

/// Those that take longer than most.
const WEIGHTS: &[Weight] = &[
    // Tests.
    waits("lib:lockkeeper", 300.0, 10),
    of("auto", 160.0),
    of("lib:lockkeeper_lab", 100.0),
    waits("conformance", 50.0, 3),
    of("postgres", 60.0),
    waits("moving", 90.0, 4),
    of("torture_and_bench_processes", 33.0),
    of("help", 45.0),
    of("postgres_bad_input", 50.0),
    of("answers", 30.0),
    of("exit_codes", 25.0),
    of("cluster", 24.0),
    of("bad_servers", 23.0),
    waits("sentinel_failures", 22.0, 3),
    of("footprint", 30.0),
    of("leases", 35.0),
    of("bin:xtask", 17.0),
    of("outsider", 16.0),
    of("redlock", 50.0),
    of("bench", 14.0),
    of("unreadable_records", 14.0),
    of("redis_failures", 13.0),
    of("demo_on_servers", 11.0),
    of("lab_rules", 11.0),
    of("torture_network", 10.0),
    of("other_layouts", 10.0),
    of("json_keys", 9.0),
    of("check", 9.0),
    of("run_rules", 9.0),
    of("examples", 9.0),
    of("guardian", 16.0),
    of("postgres_tls", 7.0),
    of("looking_at_servers", 7.0),
    of("pooler", 6.0),
    of("demo", 6.0),
    // Rows of the suite out of long tests.
    of("long_cluster_conformance:cluster_native", 90.0),
    of("long_sentinel:sentinel_native", 60.0),
    of("long_redlock:redlock", 120.0),
    of("long_conformance:zookeeper_curator", 45.0),
    of("long_conformance:postgres_table", 115.0),
    // Long tests.
    of("long_bench_leaves_nothing", 80.0),
    waits("long_conformance", 240.0, 4),
    of("long_run_torture", 150.0),
    of("long_outside", 140.0),
    of("long_outages", 97.0),
    of("long_guardian", 55.0),
    of("long_redis", 45.0),
    waits("long_moving", 40.0, 4),
    waits("long_cluster_conformance", 310.0, 6),
    of("long_cluster", 45.0),
    waits("long_cluster_schedules", 100.0, 2),
    waits("long_redlock", 80.0, 4),
    waits("long_sentinel", 200.0, 6),
    waits("long_sentinel_schedules", 90.0, 2),
    of("long_dead_waiters", 37.0),
    of("long_given_servers", 22.0),
];

/// Of what is not in the table.
const OTHER: Weight = of("", 5.0);

const fn of(name: &'static str, seconds: f64) -> Weight {
    Weight { name, seconds, threads: None }
}

const fn waits(name: &'static str, seconds: f64, threads: u8) -> Weight {
    Weight { name, seconds, threads: Some(threads) }
}

/// What is known of the tests of that name.
pub fn weight(name: &str) -> &'static Weight {
    WEIGHTS.iter().find(|weight| weight.name == name).unwrap_or(&OTHER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::integration_tests;

    #[test]
    fn every_integration_test_in_the_table_exists() {
        let tests = integration_tests().unwrap();
        for weight in WEIGHTS.iter().filter(|weight| !weight.name.contains(':')) {
            assert!(tests.iter().any(|test| test.name == weight.name), "{}", weight.name);
        }
        for (name, row) in crate::test::ROWS {
            assert!(weight(&format!("{name}:{row}")).seconds > OTHER.seconds, "{name}: {row}");
        }
        assert!(weight("conformance").seconds > weight("no such test").seconds);
    }
}
