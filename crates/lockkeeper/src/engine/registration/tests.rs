use super::*;

fn ledger() -> Registration {
    let open: Open = |_, _| Err(Error::new(ErrorKind::Unsupported, "for tests"));
    let mut ledger = Registration::new("ledger", &["ledger"], Keep::Lease, open);
    let option = |name, value| UrlOption::new(name, value, "", "for tests");
    ledger.options = vec![
        UrlOption::new("layout", Value::OneOf(&["rows", "docs"]), "rows", "for tests"),
        option("wait", Value::Duration),
        option("table", Value::Word("NAME")).needs("layout", "rows"),
        option("count", Value::Number(1, 9)),
        option("share", Value::Percent(5, 20)),
        option("tls", Value::Switch),
        option("path", Value::Text("PATH")).needs("layout", "docs"),
    ];
    ledger
}

#[test]
fn a_value_that_an_option_does_not_take_is_refused_with_those_that_it_does() {
    let check = |query: &str| {
        let url = EngineUrl::parse(&format!("ledger://h?{query}")).unwrap();
        ledger().check(&url).map_err(|error| error.message().to_owned())
    };
    for right in [
        "",
        "layout=docs&path=%26x%3D",
        "wait=1m30s&count=9&share=5%25&tls",
        "table=a.b-c_D9",
        "layout=rows&table=a",
        "ttl=5s&handoff=0&drift=50%25",
    ] {
        assert_eq!(check(right), Ok(()), "{right}");
    }
    for (wrong, says) in [
        ("layout=columns", "layout=columns is none of rows, docs"),
        ("wait=soon", "wait=soon is not a duration: write 500ms, 2.5, 30s, 1h30m"),
        ("count=0", "count=0 is not a number from 1 to 9"),
        ("count=x", "count=x is not a number from 1 to 9"),
        ("share=21%25", "share=21% is not a percentage from 5% to 20%"),
        ("share=5", "share=5 is not a percentage from 5% to 20%"),
        ("tls=perhaps", "tls=perhaps is neither true nor false"),
        (
            "table=a/b",
            "table=a/b: a table has 1 to 64 letters, digits, dots, dashes and underscores",
        ),
        ("path=x", "path belongs to layout=docs"),
        ("layout=docs&table=x", "table belongs to layout=rows"),
        ("handoff=65", "handoff=65 is not a number from 0 to 64"),
        ("drift=51%25", "drift=51% is not a percentage from 1% to 50%"),
    ] {
        assert_eq!(check(wrong), Err(says.to_owned()), "{wrong}");
    }
}
