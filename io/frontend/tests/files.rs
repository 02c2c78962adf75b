//! Programs on a real mount: names, sessions, controls, texts.

mod bed;

use bed::Bed;

#[test]
fn the_frontend_process() {
    bed::be_the_frontend();
}

#[test]
fn a_shell_that_only_knows_files_gets_its_answer() {
    needs_fuse!();
    let bed = Bed::new();
    assert_eq!(bed.ok("exec 3<>dns/query; echo hello >&3; cat <&3"), "hello\n");
    assert_eq!(
        bed.ok("exec 3<>dns/query; printf 'one\\ntwo\\nthree' >&3; cat <&3; cat <&3"),
        "one\ntwo\nthree\n"
    );
}

#[test]
fn listings_look_sane() {
    needs_fuse!();
    let bed = Bed::new();
    let listing = bed.ok("ls -ln dns");
    eprintln!("{listing}");
    assert!(listing.contains("-rw-rw-rw- 1 0 0 0 "), "{listing}");
    assert!(listing.contains("-rw-r--r-- 1 0 0 0 "), "{listing}");
    assert!(listing.contains("---------- 1 0 0 0 "), "{listing}");
    assert_eq!(listing.lines().count(), 6);
    assert_eq!(bed.ok("ls"), "dns\nself\n");
    assert_eq!(bed.ok("ls self"), "about.json\ncounters\nlatency\nname\nservices\ntrace\n");
    assert_eq!(bed.ok("find . | sort | wc -l").trim(), "14");
    assert_eq!(
        bed.ok("stat -c '%F %h %a' . dns dns/ctl"),
        "directory 4 555\ndirectory 2 555\nregular empty file 1 644\n"
    );
    let age = bed.ok("echo $(( $(date +%s) - $(stat -c %Y dns/query) ))");
    assert!((0..60).contains(&age.trim().parse::<i64>().unwrap()), "{age}");
    assert_eq!(bed.ok("ls -di . dns/query | wc -l; find . -printf '%i\\n' | sort -u | wc -l"), "2\n14\n");
    bed.ok("df . >/dev/null");
}
