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

#[cfg(feature = "redis")]
#[test]
fn n4_what_a_fault_excuses_convicts_nobody_and_is_told_as_what_was_missing() {
    let seen = |at: u64| Conviction {
        class: LIVENESS,
        name: "a".to_owned(),
        at,
        until: at + 1,
        sentence: "nobody got it".to_owned(),
    };
    let broken = crate::torture::broken::find("setnx-forever").unwrap();
    let mut excuses = Excuses::new(false, Duration::ZERO, Late::never());
    excuses.blind_from(10_000_000_000);
    let weak = |why: String, convictions| {
        let (client, weak) = (Subject::Broken(broken.name.to_owned()), Some(why));
        let outcome = Outcome { broken: Some(broken), client, weak, ..of(convictions) };
        let verdict = Verdict::new(outcome, &excuses);
        let mut text = Vec::new();
        verdict.print(&mut text).unwrap();
        (verdict.exit_code(), String::from_utf8(text).unwrap())
    };
    let told = |convictions| weak(unseen(broken), convictions);
    let early = "a history ended early".to_owned();
    let (code, text) = weak(early.clone(), vec![seen(20_000_000_000)]);
    assert!(code == 2 && text.contains(&early), "another reason stays: {text}");
    let (code, text) = told(vec![seen(20_000_000_000)]);
    assert!(code == 2 && !text.contains("convicted of"), "{text}");
    assert!(text.contains("showed liveness at +20.000 s, which a fault or the busy"), "{text}");
    let (code, text) = told(vec![seen(20_000_000_000), seen(5_000_000_000)]);
    assert!(code == 1 && text.contains("convicted of liveness"), "{text}");
    assert!(text.contains("at +5.000 s: nobody got it"), "the one that nothing excuses: {text}");
    let (code, text) = told(Vec::new());
    assert!(code == 2 && text.contains("was not seen"), "{text}");
}

#[test]
fn q10_the_last_lines_say_what_was_measured_and_what_the_class_allows() {
    let told = |outcome: Outcome| {
        let mut text = Vec::new();
        let mut excuses = Excuses::new(false, Duration::ZERO, Late::never());
        excuses.blind_from(30);
        Verdict::new(Outcome { weak: None, ..outcome }, &excuses).print(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    let nothing = told(of(Vec::new()));
    assert!(nothing.contains("recovery: nobody waited"), "{nothing}");
    assert!(!nothing.contains("none measured"), "{nothing}");
    assert!(nothing.ends_with("clean: nothing was found\n"), "{nothing}");
    let mut outcome = of(Vec::new());
    outcome.report.found = BTreeMap::from([(Class::Overlap, 1)]);
    outcome.report.moments = BTreeMap::from([(Class::Overlap, vec![Moment::at(40)])]);
    let allowed = told(outcome);
    assert!(
        allowed.contains("  allowed by class CORRECTNESS (fenced) under these faults: overlap × 1")
    );
    assert!(allowed.ends_with("allows, as listed above\n"), "{allowed}");
}
