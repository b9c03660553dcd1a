use super::*;
use crate::check::{Late, Moment};

#[test]
fn a_violation_beyond_those_that_are_described_is_judged_by_its_moment_too() {
    let report = Report {
        moments: BTreeMap::from([(Class::Overlap, [5, 6, 30].map(Moment::at).to_vec())]),
        ..Report::default()
    };
    let mut excuses = Excuses::new(false, Duration::ZERO, Late::never());
    excuses.blind_from(30);
    let (expected, bad) = divide(Class::Overlap, 3, &report, &excuses);
    let found = [expected, bad].map(|found| found.map(|f| (f.count, f.first, f.at_s)));
    assert_eq!(found, [Some((1, None, Some(0.0))), Some((2, None, Some(0.0)))]);
}

#[test]
fn the_last_line_has_engine_verdict_holds_faults_violations_stale_writes_recovery_seed_client_weak_left_out_and_kept()
 {
    let found = Conviction {
        class: CRASH,
        name: String::new(),
        at: 3_250_000_000,
        until: 4_000_000_000,
        sentence: "it ended".to_owned(),
    };
    let line =
        |verdict: &Verdict| serde_json::from_str::<serde_json::Value>(&verdict.json()).unwrap();
    let recovery = serde_json::json!({"p50": null, "max": null, "promised": null});
    let mut told = of(vec![found]);
    told.client = Subject::Exec("PASSWORD=secret ./lock".to_owned());
    told.report.counts.holds = 7;
    told.report.span = (1_000_000_000, 9_000_000_000);
    told.left_out = vec!["clock-slow: no compiler".to_owned()];
    let convicted = judged(told).kept_in(PathBuf::from("/somewhere"));
    let violations =
        serde_json::json!([{"class": "crash", "count": 1, "first": "it ended", "at_s": 2.25}]);
    for (key, value) in [
        ("engine", serde_json::json!("file")),
        ("verdict", serde_json::json!("violations")),
        ("holds", serde_json::json!(7)),
        ("faults", serde_json::json!({"reset": 2})),
        ("violations", violations),
        ("expected_violations", serde_json::json!([])),
        ("stale_writes_rejected", serde_json::json!(0)),
        ("stale_writes_accepted", serde_json::json!(0)),
        ("recovery_ms", recovery),
        ("seed", serde_json::json!(1)),
        ("client", serde_json::json!("exec")),
        ("weak", serde_json::json!(null)),
        ("left_out", serde_json::json!(["clock-slow: no compiler"])),
        ("kept", serde_json::json!("/somewhere")),
        ("cost", serde_json::json!(null)),
        ("waits_judged_ms", serde_json::json!(null)),
    ] {
        assert_eq!(line(&convicted).get(key), Some(&value), "{key}");
    }
    let weak = line(&verdict(Vec::new()));
    assert_eq!(
        [&weak["verdict"], &weak["weak"], &weak["client"]],
        ["too-weak", "nothing was held", "lockkeeper"]
    );
    assert_eq!(
        [&weak["kept"], &weak["left_out"]],
        [&serde_json::json!(null), &serde_json::json!([])]
    );
    let mut text = Vec::new();
    convicted.print(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap() + &convicted.json();
    assert!(
        text.contains("exec on file")
            && text.contains("crash × 1 at +2.250 s: it ended")
            && !text.contains("secret"),
        "{text}"
    );
}

#[test]
fn for_how_long_who_waited_was_judged_is_told_where_an_order_is_promised() {
    for (fair, fair_permits) in [(true, false), (false, true), (false, false)] {
        let mut told = of(Vec::new());
        (told.about.fair, told.about.fair_permits) = (fair, fair_permits);
        let (told, mut text) = (judged(told), Vec::new());
        told.print(&mut text).unwrap();
        let (text, promised) = (String::from_utf8(text).unwrap(), fair || fair_permits);
        assert_eq!(text.contains("; judged for 1.2 of 2.5 s of waiting\n"), promised, "{text}");
        let line: serde_json::Value = serde_json::from_str(&told.json()).unwrap();
        assert_eq!(line["waits_judged_ms"].as_u64(), promised.then_some(1_250));
    }
}

fn verdict(convictions: Vec<Conviction>) -> Verdict {
    judged(of(convictions))
}

fn judged(outcome: Outcome) -> Verdict {
    Verdict::new(outcome, &Excuses::new(false, Duration::ZERO, Late::never()))
}

fn of(convictions: Vec<Conviction>) -> Outcome {
    let about = About {
        engine: "file",
        class: lockkeeper::Class::Fenced,
        expiry: lockkeeper::Expiry::WithProcess,
        recovery: Duration::ZERO,
        fair: false,
        fair_permits: false,
        fenced: true,
    };
    Outcome {
        about,
        seed: 1,
        replay: "lockkeeper torture".to_owned(),
        client: Subject::Shipped,
        broken: None,
        faults: BTreeMap::from([("reset", 2)]),
        left_out: Vec::new(),
        report: Report::default(),
        convictions,
        passed: (0, None),
        waits: Judged {
            waited: Duration::from_millis(2_500),
            judged: Duration::from_millis(1_250),
        },
        chances: Chances::default(),
        cost: None,
        weak: Some("nothing was held".to_owned()),
    }
}

#[test]
fn a_conviction_counts_also_where_nothing_was_ever_held() {
    for class in [LIVENESS, STARVATION, GROUNDLESS, COST, CRASH] {
        let found = Conviction {
            class,
            name: String::new(),
            at: 1,
            until: 1,
            sentence: "it is wrong".to_owned(),
        };
        let convicted = verdict(vec![found]);
        let mut text = Vec::new();
        convicted.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!((convicted.word(), convicted.exit_code()), ("violations", 1));
        assert!(
            text.contains(&format!("NOT expected: {class} × 1 at +0.000 s: it is wrong"))
                && text.contains("VIOLATIONS"),
            "{text}"
        );
    }
    assert_eq!((verdict(Vec::new()).word(), verdict(Vec::new()).exit_code()), ("too-weak", 2));
}
