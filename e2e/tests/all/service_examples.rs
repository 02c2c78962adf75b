//! The larger examples of services, used as their READMEs say, by domains that have nothing else.

use e2e::{Node, node, oci, wait};

/// The program of `examples/crypto`, as cargo has built it for the tests.
const CRYPTO: &str = env!("CARGO_BIN_EXE_crypto_service");

/// The same of `examples/vector`.
const VECTOR: &str = env!("CARGO_BIN_EXE_vector_service");

/// Asks one line of a session, and prints the answer or the errno.
const ASK: &str = "
import errno, os, sys
f = os.open('/srv/' + sys.argv[1], os.O_RDWR)
try:
    os.write(f, sys.argv[2].encode() + b'\\n')
    print(os.read(f, 1 << 20).decode(), end='')
except OSError as e:
    print(errno.errorcode[e.errno])
";

fn ask_in(node: &Node, domain: &str, file: &str, line: &str) -> String {
    node.ok(&["exec", domain, "--", "python3", "-c", ASK, file, line]).trim().to_owned()
}

fn ask(node: &Node, file: &str, line: &str) -> String {
    ask_in(node, "hall", &format!("crypto/{file}"), line)
}

fn hexadecimal(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Verifies a signature by OpenSSL, with the public key of the file `keys`.
fn openssl_verifies(node: &Node, public: &str, signature: &str, data: &str) -> bool {
    let folder = tempfile::tempdir_in(node.folder()).expect("a folder");
    // The head of an Ed25519 key in a certificate's form (RFC 8410).
    let write = |name: &str, digits: &str| {
        let line = format!("python3 -c \"open('{name}', 'wb').write(bytes.fromhex('{digits}'))\"");
        oci::script(folder.path(), &line);
    };
    write("key", &format!("302a300506032b6570032100{public}"));
    write("signature", signature);
    write("data", &hexadecimal(data.as_bytes()));
    let line =
        "openssl pkeyutl -verify -pubin -inkey key -keyform DER -rawin -in data -sigfile signature || true";
    oci::script(folder.path(), line).contains("Signature Verified Successfully")
}

#[test]
fn keys_of_the_crypto_service_are_used_by_others_rotated_and_seen_by_nobody() {
    let Some(node) = Node::start() else { return };
    let keys = node.folder().join("keys");
    std::fs::create_dir(&keys).expect("a folder");
    let topology = include_str!("../../../examples/crypto/topology.toml")
        .replace(
            "source = \"target/debug\", target = \"/app\"",
            &format!("source = \"{CRYPTO}\", target = \"/app/crypto\""),
        )
        .replace("source = \"keys\"", &format!("source = \"{}\"", keys.display()));
    node.up_ok(&topology);
    wait::until("the service has keys", || {
        node.shell("hall", "cat /srv/crypto/keys").out.contains("ed25519")
    });
    let data = "a robot's log";
    let digits = hexadecimal(data.as_bytes());
    let sum = node.shell_ok("hall", &format!("printf '%s' \"{data}\" | sha256sum | cut -d' ' -f1"));
    assert_eq!(ask(&node, "hash", &digits), sum.trim());

    let signed = ask(&node, "sign", &digits);
    let (key, signature) = signed.split_once(' ').expect("a key's number and a signature");
    assert_eq!(ask(&node, "verify", &format!("{signed} {digits}")), "good");
    assert_eq!(ask(&node, "verify", &format!("{signed} {digits}00")), "EBADMSG");
    let listed = node.shell_ok("hall", "cat /srv/crypto/keys");
    let public = listed.split_whitespace().last().expect("the public key");
    assert!(openssl_verifies(&node, public, signature, data), "{listed}{signed}");
    assert!(!openssl_verifies(&node, public, signature, "another log"));

    let sealed = ask(&node, "seal", &digits);
    assert_ne!(sealed, ask(&node, "seal", &digits), "a nonce came twice");
    assert!(!sealed.contains(&digits));
    assert_eq!(ask(&node, "open", &sealed), digits);
    let forged = format!("{}{}", &sealed[..sealed.len() - 1], if sealed.ends_with('0') { '1' } else { '0' });
    assert_eq!(ask(&node, "open", &forged), "EBADMSG");
    assert_eq!(ask(&node, "open", &format!("7{sealed}")), "ENOKEY");
    for (file, wrong) in
        [("sign", "xyz"), ("sign", "abc"), ("open", "1"), ("verify", "1 00"), ("open", "one 00")]
    {
        assert_eq!(ask(&node, file, wrong), "EINVAL", "{file} {wrong}");
    }
    let random = || node.shell_ok("hall", "cat /srv/crypto/random");
    assert!(random().trim().len() == 64 && random() != random());

    // Who may use keys may not rotate them; who rotates them changes nothing for what there is.
    let denied = node.shell("hall", "echo rotate > /srv/crypto/ctl");
    assert!(denied.code != 0 && denied.err.contains("ermission denied"), "{denied:?}");
    node.shell_ok("officer", "echo rotate > /srv/crypto/ctl");
    assert!(ask(&node, "sign", &digits).starts_with("2 "));
    assert_eq!(ask(&node, "verify", &format!("{signed} {digits}")), "good");
    // Its program is killed; the next one has the same keys.
    let tree = node.json(&["inspect", "dc/crypto/domains/vault"]);
    node::kill(tree["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs"));
    wait::until("the next program serves", || ask(&node, "open", &sealed) == digits);
    let busy = node.shell("officer", "echo forget 2 > /srv/crypto/ctl");
    assert!(busy.code != 0 && busy.err.contains("busy"), "{busy:?}");
    node.shell_ok("officer", &format!("echo forget {key} > /srv/crypto/ctl"));
    assert_eq!(ask(&node, "open", &sealed), "ENOKEY");
    assert_eq!(node.shell("hall", "ls /keys").code, 2, "another domain sees the keys");
    let kept = std::fs::metadata(keys.join("keyring")).expect("the keys");
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&kept.permissions()) & 0o777, 0o600);
    node.ok(&["down", "crypto"]);
}

/// A server of JSON-RPC and HTTP that is away for its first requests, and one with TLS; it says
/// what it was sent.
const SERVER: &str = r#"
import http.server, json, ssl, sys, threading, time
away = {"forecast": 2, "launch": 2}
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, status, content):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
    def do_GET(self):
        if self.path == "/rpc/slow":
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b"x")
                self.wfile.flush()
                time.sleep(0.1)
            return
        if self.path == "/rpc/long":
            return self.answer(200, bytes(600 * 1024))
        self.answer(200, ("path " + self.path + " " + str(self.headers.get("Authorization"))).encode())
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = request["method"]
        if away.get(method, 0):
            away[method] -= 1
            return self.answer(503, b"")
        answer = {"jsonrpc": "2.0", "id": request["id"], "result": [method, request.get("params")]}
        if method == "lie":
            answer["id"] = "another"
        if method == "fail":
            answer = {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32000, "message": "no"}}
        self.answer(200, json.dumps(answer).encode())
    def log_message(self, *_):
        pass
plain = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
secure = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("certificate", "key")
secure.socket = context.wrap_socket(secure.socket, server_side=True)
threading.Thread(target=secure.serve_forever, daemon=True).start()
print(plain.server_address[1], secure.server_address[1], flush=True)
plain.serve_forever()
"#;

/// The server, ended with this.
struct Server(std::process::Child, [u16; 2]);

impl Server {
    fn start(folder: &std::path::Path) -> Self {
        let line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout key -out certificate \
                    -subj /CN=localhost -addext subjectAltName=DNS:localhost 2>/dev/null; printf 'Bearer token-of-the-test' >token";
        oci::script(folder, line);
        let mut command = std::process::Command::new("python3");
        command
            .args(["-c", SERVER])
            .current_dir(folder)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null());
        sys::process::kill_with_parent(&mut command);
        let mut child = command.spawn().expect("python3");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("its ports");
        let ports: Vec<u16> = line.split_whitespace().map(|port| port.parse().expect("a port")).collect();
        Self(child, ports.try_into().expect("two ports"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_domain_without_a_network_asks_servers_that_the_file_names_and_no_others() {
    let Some(node) = Node::start() else { return };
    let folder = node.folder().join("outside");
    std::fs::create_dir(&folder).expect("a folder");
    let server = Server::start(&folder);
    let [plain, secure] = server.1;
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/rpc");
    let more = format!(
        "authorization = \"/outside/token\"\n\
         [service.rpc.settings.endpoints.secure]\nurl = \"https://localhost:{secure}/rpc\"\nca = \"/outside/certificate\"\n\
         [service.rpc.settings.endpoints.unknown]\nurl = \"https://localhost:{secure}/rpc\"\n\
         [service.rpc.settings.endpoints.gone]\nurl = \"http://127.0.0.1:1/\"\n\
         [service.rpc.settings.endpoints.secret]\nurl = \"http://127.0.0.1:{plain}/\"\n"
    );
    let topology = include_str!("../../../examples/rpc/topology.toml")
        .replace("{ source = \".\", target = \"/app\" }", &format!("{{ source = \"{example}\", target = \"/app\" }}, {{ source = \"{}\", target = \"/outside\" }}", folder.display()))
        .replace("127.0.0.1:8080", &format!("127.0.0.1:{plain}"))
        .replace("\"watch\", \"weather\"", "\"watch\", \"weather\", \"secure\", \"unknown\", \"gone\"")
        + &more;
    node.up_ok(&topology);
    wait::until("the gateway serves", || {
        node.shell("robot", "cat /srv/rpc/endpoints").out.contains("weather")
    });
    let listed = node.shell_ok("robot", "cat /srv/rpc/endpoints");
    assert!(!listed.contains("secret") && !listed.contains("token"), "{listed}");
    let ask = |file: &str, line: &str| ask_in(&node, "robot", &format!("rpc/{file}"), line);
    let call = |name: &str, method: &str| {
        ask("call", &format!("{name} {{\"method\": \"{method}\", \"params\": [7]}}"))
    };
    // A server that is away for a moment is asked again where that does no harm, and only there.
    assert!(call("weather", "forecast").contains("\"result\": [\"forecast\", [7]]"));
    assert_eq!(call("weather", "launch"), "EPROTO");
    assert_eq!(call("weather", "launch"), "EPROTO");
    assert!(call("weather", "launch").contains("\"launch\""));
    assert!(call("weather", "fail").contains("-32000"));
    assert_eq!(call("weather", "lie"), "EPROTO");
    assert!(call("secure", "forecast").contains("\"forecast\""));
    assert_eq!(call("unknown", "forecast"), "EKEYREJECTED");
    assert_eq!(call("gone", "forecast"), "ECONNREFUSED");
    assert_eq!(call("secret", "forecast"), "EACCES");
    assert_eq!(call("nowhere", "forecast"), "ENOENT");
    for wrong in ["weather", "weather {", "weather []", "weather {\"method\": 1}"] {
        assert_eq!(ask("call", wrong), "EINVAL", "{wrong}");
    }
    // The secret goes to the server, and this server says it; the log does not.
    assert!(ask("http", "weather GET /rpc/a?b=c").contains("path /rpc/a?b=c Bearer token-of-the-test"));
    assert!(ask("http", "secure GET /rpc/a").contains("None"));
    for outside in ["/", "/rp", "/rpcx", "/rpc/../x", "/rpc/%2e%2e/x", "/rpc/..\\x"] {
        assert_eq!(ask("http", &format!("weather GET {outside}")), "EACCES", "{outside}");
    }
    assert_eq!(ask("http", "weather BREW /rpc/tea"), "EINVAL");
    assert_eq!(ask("http", "weather GET /rpc/slow"), "ETIMEDOUT");
    assert_eq!(ask("http", "weather GET /rpc/long"), "EMSGSIZE");
    let log = "exec 3</srv/rpc/log; exec 4<>/srv/rpc/http; echo 'weather GET /rpc/token-of-the-test' >&4; \
               read answer <&4; timeout 20 sed 1q <&3";
    let log = node.shell_ok("robot", log);
    assert!(log.contains("robot weather GET /rpc/*** 200 "), "{log}");
    // Without a network of its own.
    assert_ne!(
        node.shell(
            "robot",
            &format!("python3 -c \"import socket; socket.create_connection(('127.0.0.1', {plain}), 2)\"")
        )
        .code,
        0
    );
    node.ok(&["down", "rpc"]);
}

#[test]
fn arrays_in_shared_memory_are_computed_by_another_domain_as_numpy_has_it() {
    let Some(node) = Node::start() else { return };
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/vector");
    let topology = include_str!("../../../examples/vector/topology.toml")
        .replace(
            "source = \"target/release\", target = \"/app\"",
            &format!("source = \"{VECTOR}\", target = \"/app/vector\""),
        )
        .replace(
            "source = \".\", target = \"/desk\"",
            &format!("source = \"{example}\", target = \"/desk\""),
        );
    node.up_ok(&topology);
    wait::until("the mill serves", || node.shell("desk", "ls /srv/vector").out.contains("array"));
    if node.shell("desk", "/usr/bin/python3 -c 'import numpy'").code != 0 {
        return println!("skipped: needs numpy; run `make deps`");
    }
    let checked = node.shell_ok("desk", "/usr/bin/python3 /desk/check.py");
    println!("{checked}");
    assert!(checked.ends_with("all as numpy has it\n"), "{checked}");
    node.ok(&["down", "vector"]);
}
