//! One broken plan per rule, each with the message that a person gets.

use super::*;

const WHOLE: &str = "name = \"mine\"\nsubjects = [\"udp\", \"exec:echo\"]\nideal = \"udp\"\n\
    deployments = [\"bare\", \"container\"]\npayloads = [\"64B\", \"4KiB\"]\nwork = [\"0ns\", \"10us\"]\n\
    loops = [\"closed\", \"poisson 1ms\"]\nwindow = \"200ms\"\npatience = \"2s\"\nlaunches = 7\nseed = 0x10\n\
    deadlines = [\"10ms\"]\nadapter.echo = [\"python3\", \"echo.py\"]\n";

#[test]
fn a_plan_is_read_whole() {
    let plan = read(WHOLE, "mine.toml").unwrap_or_else(|refused| panic!("{refused}"));
    assert_eq!((plan.seed, plan.launches, plan.window), (16, 7, Duration::from_millis(200)));
    assert_eq!(plan.payloads, [64, 4096]);
    assert_eq!(plan.work_ns, [0, 10_000]);
    assert_eq!(plan.loops, [Loop::Closed, Loop::Poisson(1_000_000)]);
    assert_eq!(plan.adapters["echo"], ["python3", "echo.py"]);
    assert_eq!(plan.ideal.as_deref(), Some("udp"));
}

#[test]
fn two_lines_are_a_plan() {
    let plan = read("name = \"x\"\nsubjects = [\"tcp\"]", "x").unwrap_or_else(|refused| panic!("{refused}"));
    assert_eq!((plan.launches, plan.deployments.len(), plan.ideal), (5, 1, None));
}

/// The plan with one line replaced, and what is said about it.
fn said(line: &str) -> String {
    let key = line.split(['=', '.']).next().unwrap_or_default().trim();
    let others = WHOLE.lines().filter(|other| !other.starts_with(key));
    let text: String = others.chain([line]).map(|line| format!("{line}\n")).collect();
    read(&text, "mine.toml").expect_err(line).render(false)
}

#[test]
fn each_rule_has_its_words() {
    let cases = [
        ("name = \"a b\"", "a name has 1 to 63 letters"),
        ("name = 3", "expected a string, found an integer"),
        ("subjects = [\"upd\", \"exec:echo\"]", "did you mean `udp`?"),
        ("subjects = [\"udp\", \"exec:ecko\"]", "did you mean `echo`?"),
        ("subjects = [\"udp\"]", "add `exec:echo` to `subjects`"),
        ("subjects = \"udp\"", "expected a list, found a string"),
        ("subjects = []", "`subjects` has 1 to 64 entries"),
        ("subjects = [\"udp\", \"udp\", \"exec:echo\"]", "`subjects` has this entry twice"),
        ("ideal = \"tcp\"", "the ideal `tcp` is none of the subjects"),
        ("deployments = [\"barr\"]", "did you mean `bare`?"),
        ("payloads = [\"8B\"]", "a payload has 16B (its number and its checksum) to 1MiB"),
        ("payloads = [\"64\"]", "`64` is no size"),
        ("work = [\"1s\"]", "0ns to 100ms can be here"),
        ("loops = [\"closed 1ms\"]", "a closed loop has no interval"),
        ("loops = [\"poisson\"]", "\"poisson 1ms\""),
        ("loops = [\"poison 1ms\"]", "did you mean `poisson`?"),
        ("loops = [\"periodic 100ms\"]", "fewer than ten requests would be due"),
        ("window = \"2 sec\"", "`2 sec` is no duration"),
        ("window = \"2h\"", "`2h` is no duration"),
        ("launches = 0", "1 to 1000 can be here"),
        ("launches = \"3\"", "expected an integer, found a string"),
        ("deadlines = [\"1ns\"]", "1us to 60s can be here"),
        ("adapter = 3", "expected a table, found an integer"),
        ("adapter.echo = \"echo.py\"", "expected a command, a list of words"),
        ("adapter.echo = []", "a command has 1 to 256 words"),
        ("lanches = 3", "did you mean `launches`?"),
    ];
    for (line, words) in cases {
        let said = said(line);
        assert!(said.contains(words), "{line}:\n{said}");
    }
}

#[test]
fn a_refusal_shows_the_place() {
    let said =
        read("name = \"x\"\nsubjects = [\"tcp\"]\npayload = [\"64B\"]\n", "x.toml").expect_err("refused");
    let said = said.render(false);
    assert!(said.contains("--> x.toml:3:1") && said.contains("did you mean `payloads`?"), "{said}");
    let said = read("name = ", "x.toml").expect_err("no TOML").render(false);
    assert!(said.contains("error[syntax]") && said.contains("x.toml:1:"), "{said}");
    let said = read("", "x.toml").expect_err("nothing").render(false);
    assert!(said.contains("a plan needs `name`") && said.contains("a plan needs `subjects`"), "{said}");
}
