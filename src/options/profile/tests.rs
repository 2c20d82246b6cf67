use roxie::profile::AckTimer;

use super::*;

fn refused(text: &str) -> String {
    ProfileFile::parse("x", text).expect_err("refused").to_string()
}

#[test]
fn built_in_values_name_their_source() {
    for name in names() {
        let file = ProfileFile::find(name).expect(name);
        assert_eq!(file.get("id.name").and_then(Value::as_str), Some(name));
        for (path, field) in &file.fields {
            let evidence = field.evidence.as_ref();
            let is_told =
                evidence.is_some_and(|evidence| !evidence.who.is_empty() && !evidence.src.is_empty());
            assert!(is_told || path.starts_with("id."), "{name}: {path}");
        }
        for history in HISTORIES {
            let profile = file.profile(history, false).expect("whole");
            assert_eq!(profile.ack_timer.is_some(), file.has_history(history), "{name} {history}");
        }
        let spaced = file.profile("steady", true).unwrap().ack_timer;
        assert_eq!(matches!(spaced, Some(AckTimer::Spaced { .. })), file.has_floor_off(), "{name}");
    }
}

#[test]
fn value_has_the_evidence_of_its_section() {
    let text = "[rnr]\nclass = \"m\"\nwho = \"a card\"\nsrc = \"a page\"\nextra_us = { v = 7, class = \"i\" }\n\
                [vendor_err]\nclass = \"unknown\"\nretries = 1\n";
    let file = ProfileFile::parse("x", text).expect("a profile");
    let field = &file.fields["rnr.extra_us"];
    let evidence = Evidence { class: Class::Inferred, who: "a card".into(), src: "a page".into() };
    assert_eq!((&field.value, field.evidence.as_ref()), (&Value::Integer(7), Some(&evidence)));
    assert_eq!(file.fields.len(), 1, "what is unknown is Roxie's own");
    assert_eq!(file.profile("steady", false).unwrap().rnr_extra.0, 7_000);
}

#[test]
fn wrong_files_name_field_and_remedy() {
    for (text, parts) in [
        ("timer = 1", ["timer", "[timer]"]),
        ("[timer]\nfloor = 1", ["timer.floor", "no class"]),
        ("[timer]\nclass = \"x\"", ["timer.class", "m, c, d, s, i or unknown"]),
        ("[timer]\nclass = \"m\"\nfloor = 32", ["timer.floor", "from 0 to 31"]),
        ("[timer]\nclass = \"m\"\nceiling = 32", ["timer.ceiling", "no such field"]),
        (
            "[timer.history.noon]\nclass = \"m\"\nfirst_of = 1",
            ["timer.history.noon.first_of", "no such field"],
        ),
        ("[timer]\nclass = \"m\"\nfloor = { v = 1, x = 2 }", ["timer.floor", "\"x\" is none of"]),
        ("[timer.floor_off]\nclass = \"m\"\nfirst = [[1, 0.0]]", ["timer.floor_off.first", "share above 0"]),
        (
            "[timer]\nclass = \"m\"\nmode = \"two-phase\"\n[timer.history.steady]\nclass = \"m\"\nsteps = [[1, 1]]",
            ["timer.history.steady.first_ms", "missing"],
        ),
        (
            "[timer.history.idle]\nclass = \"m\"\nsteps = [[1, 1]]\n[timer]\nclass = \"m\"\nmode = \"two-phase\"",
            ["timer.history.idle.first_ms", "missing"],
        ),
        ("[timer.floor_off]\nclass = \"m\"\nspacing = 1.0", ["timer.floor_off.first", "missing"]),
        ("[timer", ["profile x", "line 1"]),
    ] {
        let why = refused(text);
        assert!(parts.iter().all(|part| why.contains(part)), "{text:?}: {why}");
    }
    let why = ProfileFile::find("/no/such.toml").expect_err("none").to_string();
    assert!(why.contains("/no/such.toml") && why.contains("cx4lx, cx5, cx6, cx6-20.40"), "{why}");
}
