use super::*;
use proptest::prelude::*;

fn boot() -> Boot {
    Boot {
        version: VERSION,
        dc: "shop".into(),
        domain: "edge".into(),
        hostname: "edge".into(),
        command: vec!["sh".into()],
        environment: vec![("A".into(), "b".into())],
        user: None,
        workdir: None,
        services: true,
        resolv_conf: None,
        stub: false,
        resolve: false,
        network: None,
        root: None,
    }
}

fn messages() -> Vec<Message> {
    let hello = Hello { version: 1, program: "0.1.0".into(), kernel: "6.1.0".into(), interrupts: true };
    let exited = |ending, out_of_memory| Message::Event(Event::Exited(Exited { ending, out_of_memory }));
    let open = |stream, purpose| Message::Open { stream, purpose };
    vec![
        Message::Hello(hello),
        Message::Boot(Box::new(boot())),
        Message::Event(Event::Started {}),
        exited(Ending::Code(0), false),
        exited(Ending::Signal(9), true),
        Message::Event(Event::Failed { message: "why".into() }),
        Message::Event(Event::Frontend { up: true, message: None }),
        Message::Event(Event::Frontend { up: false, message: Some("gone".into()) }),
        open(2, Purpose::Control {}),
        open(5, Purpose::Entrances {}),
        open(7, Purpose::Frontend { order: serde_json::json!({"a": [1]}), entrances: 5 }),
        open(9, Purpose::Exec { options: ExecOptions { tty: true, ..ExecOptions::default() } }),
        open(4, Purpose::Output {}),
        Message::Data { stream: 2, bytes: vec![1, 2, 3] },
        Message::Data { stream: 2, bytes: Vec::new() },
        Message::Credit { stream: 2, bytes: 4096 },
        Message::Close { stream: 2, close: Close::default() },
        Message::End {
            stream: 2,
            end: End { channel: 7, device: "1c.3/00.0".into(), side: 1, bytes: 1 << 20 },
        },
        Message::Release { channel: 0 },
        Message::Hangup { channel: 7 },
        Message::Ring { channel: 7, vector: VECTOR_ROOM },
        Message::Ping(*b"12345678"),
        Message::Pong(*b"12345678"),
        Message::Shutdown(Shutdown { signal: 15 }),
    ]
}

fn decoded(mut bytes: &[u8]) -> Result<Vec<Message>, BadFrame> {
    let mut decoder = Decoder::default();
    let mut found = Vec::new();
    while let Some(frame) = decoder.next(&mut bytes)? {
        found.push(Message::read(frame)?);
    }
    assert!(bytes.is_empty() && !decoder.in_frame());
    Ok(found)
}

fn frame(kind: u8, stream: u32, payload: &[u8]) -> Result<Message, BadFrame> {
    Message::read(Frame { kind, stream, payload: payload.to_vec() })
}

#[test]
fn every_message_comes_back_as_it_was() {
    let mut bytes = Vec::new();
    messages().iter().for_each(|message| message.encode(&mut bytes));
    assert_eq!(decoded(&bytes), Ok(messages()));
}

#[test]
fn the_bytes_are_those_of_the_page() {
    let bytes = |message: &Message| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes
    };
    assert_eq!(bytes(&Message::Ring { channel: 7, vector: 1 }), b"\x01\0\0\0\x0b\0\0\0\x07\0\0\0\x01");
    let said = |message: &Message| String::from_utf8(bytes(message).split_off(HEADER_BYTES)).unwrap();
    let texts: Vec<String> = messages().iter().take(17).map(said).collect();
    assert_eq!(texts[0], r#"{"version":1,"program":"0.1.0","kernel":"6.1.0","interrupts":true}"#);
    assert_eq!(
        texts[1],
        r#"{"version":1,"dc":"shop","domain":"edge","hostname":"edge","command":["sh"],"environment":[["A","b"]],"user":null,"workdir":null,"services":true,"resolv_conf":null,"stub":false,"resolve":false,"network":null,"root":null}"#
    );
    assert_eq!(texts[2], r#"{"event":"started"}"#);
    assert_eq!(texts[3], r#"{"event":"exited","code":0}"#);
    assert_eq!(texts[4], r#"{"event":"exited","signal":9,"out_of_memory":true}"#);
    assert_eq!(texts[6], r#"{"event":"frontend","up":true}"#);
    assert_eq!(texts[8], r#"{"purpose":"control"}"#);
    assert_eq!(texts[16], r#"{"errno":0,"message":""}"#);
    let end = |end: ExecEnd| serde_json::to_string(&end).unwrap();
    assert_eq!(end(ExecEnd::Ended(Ending::Code(0))), r#"{"code":0}"#);
    assert_eq!(end(ExecEnd::Ended(Ending::Signal(9))), r#"{"signal":9}"#);
    let failed = ExecEnd::Failed { error: "no such program".into(), code: 127 };
    assert_eq!(end(failed), r#"{"error":"no such program","code":127}"#);
}

#[test]
fn a_length_beyond_a_payload_and_padding_that_is_none_are_broken_rules() {
    let header = |length: u32, padding: u8| {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([kind::DATA, 0, padding, 0, 2, 0, 0, 0]);
        decoded(&bytes)
    };
    assert_eq!(header(65_537, 0), Err(BadFrame::Length { bytes: 65_537 }));
    assert_eq!(header(u32::MAX, 0), Err(BadFrame::Length { bytes: u32::MAX }));
    assert_eq!(header(0, 1), Err(BadFrame::Padding { found: [0, 1, 0] }));
}

#[test]
fn what_means_nothing_is_named() {
    assert_eq!(frame(0, 0, b""), Err(BadFrame::Kind { found: 0 }));
    assert_eq!(frame(15, 0, b""), Err(BadFrame::Kind { found: 15 }));
    assert_eq!(frame(kind::DATA, 0, b""), Err(BadFrame::Stream { kind: kind::DATA, stream: 0 }));
    assert_eq!(frame(kind::PING, 1, &[0; 8]), Err(BadFrame::Stream { kind: kind::PING, stream: 1 }));
    assert_eq!(frame(kind::PING, 0, &[0; 7]), Err(BadFrame::Payload { kind: kind::PING, bytes: 7 }));
    assert_eq!(frame(kind::RING, 1, &[2]), Err(BadFrame::Vector { found: 2 }));
    assert_eq!(frame(kind::RELEASE, 1, b"x"), Err(BadFrame::Payload { kind: kind::RELEASE, bytes: 1 }));
    for (kind, text) in [
        (kind::HELLO, "{}"),
        (kind::HELLO, r#"{"version":1,"program":"","kernel":"","interrupts":true,"more":1}"#),
        (kind::EVENT, r#"{"event":"exited"}"#),
        (kind::EVENT, r#"{"event":"exited","code":0,"signal":9}"#),
        (kind::EVENT, r#"{"event":"exited","code":0,"more":9}"#),
        (kind::EVENT, r#"{"event":"started","more":9}"#),
        (kind::EVENT, "\u{0}"),
        (kind::SHUTDOWN, r#"{"signal":"TERM"}"#),
    ] {
        assert!(matches!(frame(kind, 0, text.as_bytes()), Err(BadFrame::Json { .. })), "{text}");
    }
    for (kind, text) in [
        (kind::OPEN, r#"{"purpose":"control","more":1}"#),
        (kind::OPEN, r#"{"purpose":"party"}"#),
        (kind::END, r#"{"channel":7}"#),
        (kind::CLOSE, "[]"),
    ] {
        assert!(matches!(frame(kind, 2, text.as_bytes()), Err(BadFrame::Json { .. })), "{text}");
    }
}

#[test]
fn a_decoder_holds_no_more_than_has_come() {
    let mut decoder = Decoder::default();
    let header = [0, 0, 1, 0, kind::DATA, 0, 0, 0, 2, 0, 0, 0];
    assert_eq!(decoder.next(&mut &header[..]), Ok(None));
    assert!(decoder.in_frame());
    assert!(decoder.payload.capacity() < 1024, "a length alone makes nobody keep 64 KiB");
}

proptest! {
    #[test]
    fn frames_come_out_however_the_bytes_are_cut(
        frames in prop::collection::vec((any::<u8>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..300)), 0..8),
        cuts in prop::collection::vec(1_usize..50, 1..40),
    ) {
        let frames: Vec<Frame> =
            frames.into_iter().map(|(kind, stream, payload)| Frame { kind, stream, payload }).collect();
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        let (mut decoder, mut found, mut rest) = (Decoder::default(), Vec::new(), &bytes[..]);
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (mut now, later) = rest.split_at((*cut).min(rest.len()));
            while let Some(frame) = decoder.next(&mut now)? {
                found.push(frame);
            }
            prop_assert!(now.is_empty());
            rest = later;
        }
        prop_assert_eq!(found, frames);
    }

    #[test]
    fn any_bytes_are_frames_or_a_broken_rule(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let (mut decoder, mut rest) = (Decoder::default(), &bytes[..]);
        while let Ok(Some(frame)) = decoder.next(&mut rest) {
            if let Ok(message) = Message::read(frame) {
                let mut again = Vec::new();
                message.encode(&mut again);
                prop_assert_eq!(decoded(&again)?, vec![message]);
            }
        }
    }
}
