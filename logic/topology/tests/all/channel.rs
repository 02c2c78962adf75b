//! Channel services: what is admitted, explained and planned of them.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::path::Path;

use topology::{ChannelMode, ChannelSettings, Program, Ready, ServiceKind, Settings, Topology, Verb, plan};

const FILE: &str = r#"
name = "shop"

[domain.camera]
kind = "container"
command = ["camera"]

[domain.archive]
kind = "container"
command = ["archive"]

[service.frames]
kind = "channel"
domain = "camera"
allow = [{ domains = ["archive"], verbs = ["open"] }]
"#;

fn admitted(text: &str) -> Topology {
    topology::parse(text, "channel.toml", Path::new("/base")).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_channel_needs_no_settings_and_leaves_its_domain_its_own_program() {
    let shop = admitted(FILE);
    let frames = shop.service("frames").unwrap();
    assert_eq!(frames.kind(), ServiceKind::Channel);
    let usual = ChannelSettings {
        ring_bytes: 256 << 10,
        mode: ChannelMode::Messages,
        max_channels: 256,
        channels_per_domain: 64,
    };
    assert_eq!(frames.settings, Settings::Channel(usual));
    let camera = shop.domain("camera").unwrap();
    assert_eq!((&camera.program, &camera.ready), (&Program::Command(vec!["camera".into()]), &Ready::Started));
    assert!(shop.allows("archive", "frames", &Verb::Open) && !shop.allows("camera", "frames", &Verb::Open));
    assert_eq!((shop.hosted_by("camera").count(), shop.served_by("camera").count()), (1, 0));
    let json = serde_json::to_string(&shop).unwrap();
    assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), shop);
}

#[test]
fn fewer_channels_in_all_are_fewer_for_one_domain() {
    let shop = admitted(&format!(
        "{FILE}settings = {{ max_channels = 8, mode = \"stream\", ring_bytes = \"64KiB\" }}"
    ));
    let expected = ChannelSettings {
        ring_bytes: 64 << 10,
        mode: ChannelMode::Stream,
        max_channels: 8,
        channels_per_domain: 8,
    };
    assert_eq!(shop.service("frames").unwrap().channel(), Some(&expected));
}

#[test]
fn who_opens_starts_after_who_offers_where_there_is_a_choice() {
    let order = |text: &str| -> Vec<String> {
        admitted(text).start_order().iter().map(|domain| domain.name.to_string()).collect()
    };
    assert_eq!(order(FILE), ["camera", "archive"]);
    let other = FILE.replace("[\"camera\"]\n", "[\"camera\"]\nafter = [\"archive\"]\n");
    assert_eq!(order(&other), ["archive", "camera"]);
}

#[test]
fn a_channel_is_explained() {
    let text = topology::explain(&admitted(FILE)).to_string();
    let expected = "service frames (channel) in camera: its program offers channels of messages (256KiB each way), \
                    256 at a time, 64 for one domain\n     archive          may open               by its name\n";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn a_changed_channel_is_changed_while_it_runs() {
    let before = admitted(FILE);
    let steps = |text: &str| plan(Some(&before), &admitted(text)).to_string();
    assert_eq!(
        steps(&format!("{FILE}settings = {{ ring_bytes = \"64KiB\", mode = \"stream\" }}")),
        "update service frames while it runs: `settings.ring_bytes`, `settings.mode` changed\n"
    );
    assert_eq!(
        steps(&FILE.replace("domain = \"camera\"", "domain = \"archive\"")),
        "update service frames while it runs: `domain` changed\n"
    );
    assert_eq!(
        steps(&FILE.replace("[\"archive\"], verbs", "[\"camera\"], verbs")),
        "no longer allow archive to open frames\nallow camera to open frames\n"
    );
}

#[test]
fn a_service_of_another_kind_is_another_service() {
    let other = FILE
        .replace("command = [\"camera\"]", "network = \"host\"")
        .replace("\"channel\"", "\"directory\"")
        .replace("\"open\"", "\"resolve\"");
    let other = admitted(&format!("{other}settings = {{ upstream = [\"192.0.2.53\"] }}"));
    let before = admitted(FILE);
    let there = plan(Some(&before), &other);
    assert_eq!(
        there.to_string(),
        "remove service frames\nadd service frames in camera\nrestart camera: `command`, `network`, `restart`, \
         `ready` changed\n"
    );
    let mut now = before.clone();
    there.apply(&mut now);
    assert_eq!(now, other);
    there.undo(there.steps.len()).apply(&mut now);
    assert_eq!(now, before);
}
