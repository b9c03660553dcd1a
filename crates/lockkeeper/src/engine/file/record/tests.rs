use super::*;

fn who(label: Option<&str>) -> Identity {
    Identity {
        host: "ci-7".into(),
        pid: 4121,
        started: 0,
        program: "deploy".into(),
        label: label.map(str::to_owned),
    }
}

#[test]
fn a_record_reads_back_and_one_wrong_bit_voids_it() {
    let claim = ClaimId::fresh();
    let bytes =
        *Stamp::of(&who(Some("nightly"))).stamped(About::Exclusive, 77, claim, 5_000_000, 9, 0);
    let holder = Record::read(&bytes).unwrap().holder(0);
    assert_eq!(
        (holder.host.as_deref(), holder.pid, holder.program.as_deref(), holder.label.as_deref()),
        (Some("ci-7"), Some(4121), Some("deploy"), Some("nightly"))
    );
    assert_eq!(
        (holder.claim, holder.token, holder.mode),
        (Some(claim), Token::of(77, 0), Some(Mode::Exclusive))
    );
    for bit in 0..RECORD * 8 {
        let mut broken = bytes;
        broken[bit / 8] ^= 1 << (bit % 8);
        assert!(Record::read(&broken).is_none(), "bit {bit}");
    }
    assert!(Record::read(&[0; RECORD]).is_none());
    assert!(Record::read(&bytes[..100]).is_none());
}

#[test]
fn long_texts_are_cut_between_characters_and_marked() {
    let long = Identity {
        host: "h".repeat(200),
        pid: 1,
        started: 0,
        program: "é".repeat(200),
        label: Some("l".repeat(200)),
    };
    let bytes = *Stamp::of(&long).stamped(About::Shared, 1, ClaimId(1), 1, 0, 0);
    let holder = Record::read(&bytes).unwrap().holder(0);
    assert_eq!(holder.host, Some("h".repeat(29) + "…"));
    assert_eq!(holder.program, Some("é".repeat(8) + "…"), "17 bytes would split the ninth");
    // The program took one byte less than it might have.
    assert_eq!(holder.label, Some("l".repeat(RECORD - TEXT_AT - 51 - 3) + "…"));
    let (_, waiter) = read_waiter(&waiter(&long, Mode::Shared, 1), 0).unwrap();
    assert_eq!(waiter.host, holder.host, "whoever waited is known again when it holds");
    // What just fits is whole.
    assert_eq!((&*cut("abc", 3), &*cut("abcd", 3), &*cut("ab", 1)), ("abc", "…", ""));
}

#[test]
fn of_a_program_its_name_is_kept_and_not_where_it_lies() {
    for (program, name) in [
        ("/nix/store/0123456789abcdef-coreutils/bin/nightly-import", "nightly-import"),
        ("./import", "import"),
        ("import", "import"),
        ("bin/", "bin/"),
    ] {
        let who = Identity { program: program.into(), ..who(None) };
        let bytes = *Stamp::of(&who).stamped(About::Exclusive, 1, ClaimId(1), 1, 0, 0);
        let holder = Record::read(&bytes).unwrap().holder(0);
        assert_eq!(holder.program.as_deref(), Some(name), "{program}");
    }
}

#[test]
fn f5_a_torn_record_leaves_the_other_and_is_overwritten_next() {
    let mut hot = Hot::EMPTY;
    assert!(hot.latest().is_none());
    hot.0[..RECORD].copy_from_slice(Stamp::nobody().stamped(About::Number, 5, ClaimId(0), 0, 0, 0));
    hot.0[RECORD..2 * RECORD].copy_from_slice(Stamp::nobody().stamped(
        About::Number,
        6,
        ClaimId(0),
        0,
        0,
        0,
    ));
    let (record, next) = hot.latest().unwrap();
    assert_eq!((record.number(), next), (6, HOT_AT), "the older one is next");
    hot.0[RECORD + 60] ^= 1;
    let (record, next) = hot.latest().unwrap();
    assert_eq!((record.number(), next), (5, HOT_AT + RECORD as u64), "the torn one is next");
    hot.0[0] ^= 1;
    assert!(hot.latest().is_none());
}

#[test]
fn a_header_names_its_lock_and_r17_a_newer_layout_is_told_apart() {
    for (kind, name) in [(Kind::Lock, "a"), (Kind::Latch, &*"é".repeat(512))] {
        let name = Name::new(name).unwrap();
        assert_eq!(Header::read(&header(kind, &name)), Header::Of(kind, name));
    }
    let mut bytes = header(Kind::Lock, &Name::new("a").unwrap());
    bytes[40] ^= 1;
    assert_eq!(Header::read(&bytes), Header::Unreadable);
    bytes[20] = 200;
    assert_eq!(Header::read(&bytes), Header::Newer(200));
    assert_eq!(Header::read(&[0; HEADER]), Header::Fresh);
    assert_eq!(Header::read(&[7; HEADER]), Header::Unreadable);
    assert_eq!(Header::read(b"x"), Header::Unreadable);
}

#[test]
fn a_waiter_reads_back() {
    let mode = Mode::Permits { count: 3, limit: 8 };
    let (since, waiter) = read_waiter(&waiter(&who(None), mode, 42), 8).unwrap();
    assert_eq!(
        (since, waiter.host.as_deref(), waiter.pid, waiter.mode),
        (42, Some("ci-7"), Some(4121), Some(mode))
    );
    assert!(read_waiter(&[0; WAITER], 8).is_none(), "an unwritten place is nobody");
}
