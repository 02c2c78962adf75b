//! The paths of both sockets, over a node that stands alone and runs nothing.

use super::node::Node;
use super::{peers, router};
use crate::membership::release::{RELEASE, RELEASE_HEADER};
use admin::place::Place;
use admin::{Code, Problem};
use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use registry::Memory;
use std::sync::Arc;

fn node() -> (Arc<Node>, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let place = Place { run_dir: folder.path().join("run"), state_dir: folder.path().join("state") };
    let layout = place.layout("/nowhere/tombolo".into());
    let cgroups = domain::Cgroups::discover().expect("cgroups");
    let host = serde_json::json!({ "name": "made up" });
    let node = Node::new(place, layout, cgroups, Arc::new(Memory::default()), host, None).expect("a node");
    (Arc::new(node), folder)
}

/// Returns the answer, as JSON.
async fn ask(router: Router, request: Request<Body>) -> (StatusCode, serde_json::Value) {
    let answer = TowerToHyperService::new(router).call(request).await.expect("a router always answers");
    let status = answer.status();
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    (status, serde_json::from_slice(&body).expect("it is JSON"))
}

fn request(method: Method, path: &str) -> Request<Body> {
    Request::builder().method(method).uri(path).body(Body::empty()).expect("a request")
}

fn code(answer: serde_json::Value) -> Code {
    serde_json::from_value::<Problem>(answer).expect("a problem").code
}

#[tokio::test]
async fn the_admin_socket_shows_the_node_and_says_which_paths_there_are_not() {
    let (node, folder) = node();
    let get = |path: &str| ask(router(Arc::clone(&node)), request(Method::GET, path));
    let (status, tree) = get("/v1/state").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(tree.pointer("/node/host/name").expect("of the host"), "made up");
    assert_eq!(tree.pointer("/node/run_dir").expect("a place"), folder.path().join("run").to_str().unwrap());
    for path in ["/v1/domains", "/v1/services", "/v1/endpoints", "/v1/links"] {
        assert_eq!(get(path).await, (StatusCode::OK, serde_json::json!([])), "{path}");
    }
    let (status, problem) = get("/v1/nothing").await;
    assert_eq!((status, code(problem)), (StatusCode::NOT_FOUND, Code::UnknownPath));
    let (status, problem) = get("/v1/up").await;
    assert_eq!((status, code(problem)), (StatusCode::BAD_REQUEST, Code::BadRequest));
    // What is only there in a cluster is refused by name.
    let (status, problem) = ask(router(node), request(Method::POST, "/v1/nodes/b/drain")).await;
    assert_eq!((status, code(problem)), (StatusCode::CONFLICT, Code::NoCluster));
}

#[tokio::test]
async fn who_shows_no_certificate_is_answered_nothing_of_what_nodes_ask() {
    let (node, _folder) = node();
    let with_release = |path: &str, method: Method| {
        let mut request = request(method, path);
        request.headers_mut().insert(RELEASE_HEADER, RELEASE.parse().expect("a header"));
        request
    };
    for (path, method) in [
        ("/v1/hello", Method::POST),
        ("/v1/certificate", Method::POST),
        ("/v1/authority", Method::POST),
        ("/v1/link", Method::POST),
        ("/v1/here/domains", Method::GET),
        ("/v1/here/state", Method::GET),
        ("/v1/here/logs/shop/web", Method::GET),
        ("/v1/here/exec", Method::POST),
        ("/v1/here/9p", Method::POST),
        ("/v1/nothing", Method::GET),
    ] {
        let (status, problem) = ask(peers::router(Arc::clone(&node)), with_release(path, method)).await;
        assert_eq!((status, code(problem)), (StatusCode::FORBIDDEN, Code::Refused), "{path}");
    }
    // Nor is one of a release that is too far away, or says none.
    let (status, problem) = ask(peers::router(node), request(Method::POST, "/v1/join")).await;
    assert_eq!((status, code(problem)), (StatusCode::FORBIDDEN, Code::Refused));
}
