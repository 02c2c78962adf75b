//! Every fuzz target on its corpus, as an ordinary test: what is known is looked at in each run,
//! without a fuzzer.

#[path = "../fuzz_targets/camera_ioctls.rs"]
mod camera_ioctls;
#[path = "../fuzz_targets/certificates.rs"]
mod certificates;
#[path = "../fuzz_targets/event_filters.rs"]
mod event_filters;
#[path = "../fuzz_targets/far_calls.rs"]
mod far_calls;
#[path = "../fuzz_targets/far_copies.rs"]
mod far_copies;
#[path = "../fuzz_targets/guest_port.rs"]
mod guest_port;
#[path = "../fuzz_targets/lane_peer.rs"]
mod lane_peer;
#[path = "../fuzz_targets/large_messages.rs"]
mod large_messages;
#[path = "../fuzz_targets/link_peer.rs"]
mod link_peer;
#[path = "../fuzz_targets/ninep_requests.rs"]
mod ninep_requests;
#[path = "../fuzz_targets/open_region.rs"]
mod open_region;
#[path = "../fuzz_targets/peer_bytes.rs"]
mod peer_bytes;
#[path = "../fuzz_targets/peer_scribbles.rs"]
mod peer_scribbles;
#[path = "../fuzz_targets/proxy_peer.rs"]
mod proxy_peer;
#[path = "../fuzz_targets/ring_words.rs"]
mod ring_words;
#[path = "../fuzz_targets/service_trees.rs"]
mod service_trees;
#[path = "../fuzz_targets/socket_frames.rs"]
mod socket_frames;
#[path = "../fuzz_targets/stream_bytes.rs"]
mod stream_bytes;
#[path = "../fuzz_targets/wire_messages.rs"]
mod wire_messages;

#[test]
fn corpus_of_camera_ioctls() {
    fuzz::corpus::play("camera_ioctls", camera_ioctls::run);
}

#[test]
fn corpus_of_certificates() {
    fuzz::corpus::play("certificates", certificates::run);
}

#[test]
fn corpus_of_event_filters() {
    fuzz::corpus::play("event_filters", event_filters::run);
}

#[test]
fn corpus_of_far_calls() {
    fuzz::corpus::play("far_calls", far_calls::run);
}

#[test]
fn corpus_of_far_copies() {
    fuzz::corpus::play("far_copies", far_copies::run);
}

#[test]
fn corpus_of_guest_port() {
    fuzz::corpus::play("guest_port", guest_port::run);
}

#[test]
fn corpus_of_lane_peer() {
    fuzz::corpus::play("lane_peer", lane_peer::run);
}

#[test]
fn corpus_of_large_messages() {
    fuzz::corpus::play("large_messages", large_messages::run);
}

#[test]
fn corpus_of_link_peer() {
    fuzz::corpus::play("link_peer", link_peer::run);
}

#[test]
fn corpus_of_ninep_requests() {
    fuzz::corpus::play("ninep_requests", ninep_requests::run);
}

#[test]
fn corpus_of_open_region() {
    fuzz::corpus::play("open_region", open_region::run);
}

#[test]
fn corpus_of_peer_bytes() {
    fuzz::corpus::play("peer_bytes", peer_bytes::run);
}

#[test]
fn corpus_of_peer_scribbles() {
    fuzz::corpus::play("peer_scribbles", peer_scribbles::run);
}

#[test]
fn corpus_of_proxy_peer() {
    fuzz::corpus::play("proxy_peer", proxy_peer::run);
}

#[test]
fn corpus_of_ring_words() {
    fuzz::corpus::play("ring_words", ring_words::run);
}

#[test]
fn corpus_of_service_trees() {
    fuzz::corpus::play("service_trees", service_trees::run);
}

#[test]
fn corpus_of_socket_frames() {
    fuzz::corpus::play("socket_frames", socket_frames::run);
}

#[test]
fn corpus_of_stream_bytes() {
    fuzz::corpus::play("stream_bytes", stream_bytes::run);
}

#[test]
fn corpus_of_wire_messages() {
    fuzz::corpus::play("wire_messages", wire_messages::run);
}
