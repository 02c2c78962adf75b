//! A domain's life: it starts, prints, ends, and is told of. Containers and processes alike.

mod ground;

use domain::{Ending, Kind, Stream};
use ground::ground;

const KINDS: [Kind; 2] = [Kind::Container, Kind::Process];

#[test]
fn exit_codes_and_output_of_both_streams() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let mut spec = ground.shell("d", "echo out; echo err >&2; printf unfinished; exit 7");
        spec.kind = kind;
        domain::remove_logs(&ground.layout, "dc", "d").expect("remove logs");
        let exit = ground.run(&spec);
        assert_eq!((exit.ending, exit.out_of_memory), (Ending::Code(7), false), "{kind:?}");
        let mut seen: Vec<(Stream, String)> =
            ground.records("d").into_iter().map(|r| (r.stream, r.line)).collect();
        seen.sort_by_key(|(s, _)| *s != Stream::Stdout);
        let wanted = [(Stream::Stdout, "out"), (Stream::Stdout, "unfinished"), (Stream::Stderr, "err")];
        assert_eq!(seen, wanted.map(|(s, l)| (s, l.to_owned())), "{kind:?}");
    }
    ground.sweep_and_assert_clean();
}
