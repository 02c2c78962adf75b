//! Locks on files of a tree, between domains: fcntl(2) and flock(2) of stock programs.

use crate::file_trees::{Program, server, start, topology};
use e2e::{Node, node, wait};

/// A program that evaluates each line that it is asked, with `f` open on a file of the tree: `lk`
/// sets a lock of fcntl(2), `get` looks for one.
pub(crate) const LOCKER: &str = "
import errno,fcntl,os,signal,struct,sys
from fcntl import LOCK_EX as EX,LOCK_SH as SH,LOCK_UN as UN,LOCK_NB as NB
f=os.open('/srv/tree/f',os.O_RDWR|os.O_CREAT)
def lk(kind,start=0,length=0,fd=f): fcntl.lockf(fd,kind,length,start)
def fl(kind): fcntl.flock(f,kind)
def get(kind,start,length):
 asked=struct.pack('hhqqi4x',kind,0,start,length,0)
 t,_,s,l,p=struct.unpack('hhqqi4x',fcntl.fcntl(f,fcntl.F_GETLK,asked))
 return t if t==fcntl.F_UNLCK else (t,s,l,p)
def ofd(kind,start,length,fd=f): fcntl.fcntl(fd,37,struct.pack('hhqqi4x',kind,0,start,length,0))
def do(line):
 try: r=eval(line)
 except OSError as e: return 'EDEADLK' if e.errno==errno.EDEADLK else errno.errorcode[e.errno]
 except KeyboardInterrupt: return 'interrupted'
 return 'done' if r is None else repr(r)
for line in sys.stdin: print(do(line),flush=True)
";

/// A client of 9P that has the same file open as fid 1: `lock` asks for a lock, `hear` takes an
/// answer.
const CLIENT_OF_9P: &str = "
import socket,struct,sys
s=socket.socket(socket.AF_UNIX); s.connect('/run/tombolo/9p.sock')
def st(b): return struct.pack('<H',len(b))+b
def say(number,body,tag=1): s.sendall(struct.pack('<IBH',7+len(body),number,tag)+body)
def hear():
 b=b''
 while len(b)<4 or len(b)<struct.unpack_from('<I',b)[0]: b+=s.recv(1)
 return b[4],b[5],b[7:]
def ask(number,body,tag=1): say(number,body,tag); return hear()
def lock(mode,start,length,process=1,wait=0,tag=1):
 say(52,struct.pack('<IBIQQI',1,mode,wait,start,length,process)+st(b'c'),tag)
def test(mode,start,length):
 answer=ask(54,struct.pack('<IBQQI',1,mode,start,length,1)+st(b'c'))
 return struct.unpack('<BQQI',answer[2][:21])
say(100,struct.pack('<I',8192)+st(b'9P2000.L'),65535); hear()
ask(104,struct.pack('<II',0,0xffffffff)+st(b'')+st(b'')+struct.pack('<I',0))
ask(110,struct.pack('<IIH',0,1,2)+st(b'tree')+st(b'f'))
ask(12,struct.pack('<II',1,2))
for line in sys.stdin: print(repr(eval(line)),flush=True)
";

fn locker(node: &Node, domain: &str) -> Program {
    let mut program =
        Program::run(node.command(&["exec", "-i", domain, "--", "/usr/bin/python3", "-c", LOCKER]));
    assert_eq!(program.ask("1+1"), "2");
    program
}

fn signal(pid: u32, name: &str) {
    let run = std::process::Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(run.expect("kill starts").success());
}

/// Waits until so many requests for locks wait at the server.
fn await_waiters(node: &Node, count: u64) {
    wait::until("they wait", || {
        let state = node.json(&["inspect", "dc/house/services/tree"]);
        state.pointer("/state/locks_waiting").and_then(serde_json::Value::as_u64) == Some(count)
    });
}

#[test]
fn record_locks_hold_between_domains() {
    let Some(node) = start("") else { return };
    let (mut hall, mut attic) = (locker(&node, "hall"), locker(&node, "attic"));
    let mut beside = locker(&node, "hall");
    assert_eq!(hall.ask("lk(EX,0,10)"), "done");
    for other in [&mut attic, &mut beside] {
        assert_eq!(other.ask("lk(SH|NB,9,1)"), "EAGAIN");
        assert_eq!(other.ask("lk(EX|NB,10,5)"), "done");
        assert_eq!(other.ask("lk(UN,10,5)"), "done");
    }
    // The process is told where its number means something.
    assert_eq!(attic.ask("get(fcntl.F_RDLCK,0,0)"), "(1, 0, 10, 0)");
    let pid = hall.ask("os.getpid()");
    assert_eq!(beside.ask("get(fcntl.F_RDLCK,0,0)"), format!("(1, 0, 10, {pid})"));
    // Less is wanted, then nothing in the middle: both parts are there.
    assert_eq!(hall.ask("lk(SH,0,10)"), "done");
    assert_eq!(hall.ask("lk(UN,4,2)"), "done");
    assert_eq!(attic.ask("lk(SH|NB,0,10)"), "done");
    assert_eq!(attic.ask("lk(UN)"), "done");
    assert_eq!(attic.ask("get(fcntl.F_WRLCK,5,20)"), "(0, 6, 4, 0)");
    assert_eq!(attic.ask("get(fcntl.F_WRLCK,4,2)"), "2");
    // To the end of the file, and to what is appended to it.
    assert_eq!(hall.ask("lk(EX,100)"), "done");
    assert_eq!(attic.ask("lk(EX|NB,1<<40,1)"), "EAGAIN");
    // Who waits has it as soon as it is given up; so when any descriptor of the file is closed.
    attic.say("lk(EX)");
    await_waiters(&node, 1);
    assert_eq!(hall.ask("os.close(os.open('/srv/tree/f',os.O_RDONLY))"), "done");
    assert_eq!(attic.hear(), "done");
    assert_eq!(hall.ask("lk(SH|NB)"), "EAGAIN");
    // A file of the same name is another one.
    assert_eq!(hall.ask("os.rename('/srv/tree/f','/srv/tree/old')"), "done");
    let mut new = locker(&node, "hall");
    assert_eq!(new.ask("lk(EX|NB)"), "done");
    assert_eq!(hall.ask("lk(SH|NB)"), "EAGAIN");
    // Locks of open files are given up with them, and so is what is not below a tree.
    assert_eq!(attic.ask("lk(UN)"), "done");
    assert_eq!(attic.ask("globals().update(g=os.open('/srv/tree/old',os.O_RDWR))"), "done");
    assert_eq!(attic.ask("ofd(fcntl.F_WRLCK,0,1,g)"), "done");
    assert_eq!(attic.ask("ofd(fcntl.F_WRLCK,0,1)"), "EAGAIN");
    assert_eq!(hall.ask("lk(EX|NB)"), "EAGAIN");
    assert_eq!(attic.ask("os.close(g)"), "done");
    assert_eq!(hall.ask("lk(EX)"), "done");
    [hall, attic, beside, new].into_iter().for_each(Program::end);
}

#[test]
fn who_dies_holds_nothing() {
    let Some(node) = start("") else { return };
    let (mut hall, mut attic) = (locker(&node, "hall"), locker(&node, "attic"));
    assert_eq!(hall.ask("lk(EX)"), "done");
    attic.say("lk(EX)");
    await_waiters(&node, 1);
    let pid = hall.ask("os.getpid()");
    node.shell_ok("hall", &format!("kill -9 {pid}"));
    assert_eq!(attic.hear(), "done");
    // Then a whole domain, of which one program waits.
    let (mut hall, mut beside) = (locker(&node, "hall"), locker(&node, "hall"));
    beside.say("lk(SH,20,1)");
    hall.say("lk(EX,7,1)");
    await_waiters(&node, 2);
    let domain = node.json(&["inspect", "dc/house/domains/attic"]);
    node::kill(domain["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs"));
    assert_eq!((hall.hear(), beside.hear()), ("done".to_owned(), "done".to_owned()));
    hall.end();
    beside.end();
}

/// The kernel lets nobody end a close(2), or a wait for a lock that a server was asked for.
#[test]
fn a_server_that_hangs_keeps_nobody_from_dying() {
    let Some(node) = start("") else { return };
    let (mut hall, mut attic) = (locker(&node, "hall"), locker(&node, "attic"));
    let pids = [("hall", hall.ask("os.getpid()")), ("attic", attic.ask("os.getpid()"))];
    assert_eq!(hall.ask("lk(EX)"), "done");
    attic.say("lk(EX)");
    await_waiters(&node, 1);
    let server = server(&node);
    signal(server, "-STOP");
    for (domain, pid) in pids {
        node.shell_ok(domain, &format!("kill -9 {pid}"));
    }
    hall.gone();
    attic.gone();
    signal(server, "-CONT");
    let mut next = locker(&node, "attic");
    assert_eq!(next.ask("lk(EX)"), "done");
    next.end();
}

#[test]
fn a_circle_of_waiters_in_two_domains_is_told() {
    let Some(node) = start("") else { return };
    let (mut hall, mut attic) = (locker(&node, "hall"), locker(&node, "attic"));
    assert_eq!(hall.ask("lk(EX,0,1)"), "done");
    assert_eq!(attic.ask("lk(EX,1,1)"), "done");
    hall.say("lk(EX,1,1)");
    await_waiters(&node, 1);
    assert_eq!(attic.ask("lk(EX,0,1)"), "EDEADLK");
    assert_eq!(attic.ask("lk(UN,1,1)"), "done");
    assert_eq!(hall.hear(), "done");
    hall.end();
    attic.end();
}

#[test]
fn a_signal_ends_the_waiting_and_leaves_no_lock() {
    let Some(node) = start("") else { return };
    let (mut hall, mut attic) = (locker(&node, "hall"), locker(&node, "attic"));
    let pid = attic.ask("os.getpid()");
    assert_eq!(attic.ask("lk(SH)"), "done");
    assert_eq!(hall.ask("lk(SH)"), "done");
    attic.say("lk(EX)");
    await_waiters(&node, 1);
    node.shell_ok("attic", &format!("kill -INT {pid}"));
    assert_eq!(attic.hear(), "interrupted");
    await_waiters(&node, 0);
    // What it had before, it has still; and nothing more.
    assert_eq!(hall.ask("lk(UN)"), "done");
    assert_eq!(hall.ask("get(fcntl.F_WRLCK,0,0)[0]"), "0");
    assert_eq!(attic.ask("lk(UN)"), "done");
    assert_eq!(hall.ask("lk(EX|NB)"), "done");
    hall.end();
    attic.end();
}

#[test]
fn flock_and_a_database_work_between_domains() {
    let Some(node) = start("") else { return };
    let (mut hall, mut attic) = (locker(&node, "hall"), locker(&node, "attic"));
    // The two kinds do not see each other.
    assert_eq!(attic.ask("lk(EX)"), "done");
    assert_eq!(hall.ask("fl(EX)"), "done");
    assert_eq!(attic.ask("fl(SH|NB)"), "EAGAIN");
    assert_eq!(node.shell("attic", "flock -n /srv/tree/f true").code, 1);
    assert_eq!(node.shell("attic", "flock -w 0.2 /srv/tree/f true").code, 1, "a signal ends it");
    assert_eq!(node.shell("cellar", "flock -n -s /srv/tree/f true").code, 1);
    attic.say("fl(EX)");
    await_waiters(&node, 1);
    assert_eq!(hall.ask("fl(SH)"), "done");
    assert_eq!(node.shell("cellar", "flock -n -s /srv/tree/f true").code, 0);
    assert_eq!(hall.ask("fl(UN)"), "done");
    assert_eq!(attic.hear(), "done");
    let pid = attic.ask("os.getpid()");
    node.shell_ok("attic", &format!("kill -9 {pid}"));
    node.shell_ok("hall", "flock /srv/tree/f true");
    hall.end();
    // Who adds to a number under a lock loses nothing.
    let add = "for i in $(seq 60); do flock /srv/tree/lock sh -c 'echo $(($(cat /srv/tree/n)+1)) > /srv/tree/n'; done";
    node.shell_ok("hall", "echo 0 > /srv/tree/n");
    std::thread::scope(|scope| {
        for domain in ["hall", "attic"] {
            scope.spawn(|| node.shell_ok(domain, add));
        }
    });
    assert_eq!(node.shell_ok("cellar", "cat /srv/tree/n"), "120\n");
    let sql = |domain: &str, lines: &str| {
        let code = format!(
            "import sqlite3\nd=sqlite3.connect('/srv/tree/db',timeout=60,isolation_level=None)\n{lines}\n"
        );
        node.ok(&["exec", domain, "--", "/usr/bin/python3", "-c", &code])
    };
    sql("hall", "d.execute('create table c(n)'); d.execute('insert into c values(0)')");
    let add = "for i in range(40):\n d.execute('begin immediate'); d.execute('update c set n=n+1'); d.execute('commit')";
    std::thread::scope(|scope| {
        for domain in ["hall", "attic"] {
            scope.spawn(|| sql(domain, add));
        }
    });
    let said = sql(
        "attic",
        "print(d.execute('select n from c').fetchone(),d.execute('pragma integrity_check').fetchone())",
    );
    assert_eq!(said, "(80,) ('ok',)\n");
}

#[test]
fn clients_of_9p_share_locks_with_programs() {
    let Some(node) = Node::start() else { return };
    let mounts = "services = { tree = \"/srv/tree\" }\n";
    node.up_ok(&topology("").replace(mounts, &format!("{mounts}nine_p = true\n")));
    wait::until("the tree is served", || node.shell("cellar", "ls /srv/tree").code == 0);
    let mut hall = locker(&node, "hall");
    let client = ["exec", "-i", "attic", "--", "/usr/bin/python3", "-c", CLIENT_OF_9P];
    let mut attic = Program::run(node.command(&client));
    assert_eq!(hall.ask("lk(EX,0,10)"), "done");
    assert_eq!(attic.ask("lock(1,5,1) or hear()"), "(53, 1, b'\\x01')");
    assert_eq!(attic.ask("lock(0,10,0) or hear()"), "(53, 1, b'\\x00')");
    assert_eq!(attic.ask("test(1,5,1)"), "(1, 0, 10, 0)");
    assert_eq!(attic.ask("test(1,10,5)"), "(2, 10, 5, 1)");
    assert_eq!(hall.ask("get(fcntl.F_WRLCK,0,0)[:3]"), "(0, 10, 0)");
    // Who waits may be flushed, or gets the lock.
    assert_eq!(attic.ask("lock(1,5,1,wait=1,tag=2)"), "None");
    await_waiters(&node, 1);
    assert_eq!(attic.ask("ask(108,struct.pack('<H',2),3)"), "(109, 3, b'')");
    await_waiters(&node, 0);
    assert_eq!(attic.ask("lock(1,5,1,wait=1,tag=2)"), "None");
    await_waiters(&node, 1);
    assert_eq!(hall.ask("lk(UN)"), "done");
    assert_eq!(attic.ask("hear()"), "(53, 2, b'\\x00')");
    assert_eq!(hall.ask("lk(EX|NB,5,1)"), "EAGAIN");
    assert_eq!(attic.ask("lock(1,5,1,process=2) or hear()"), "(53, 1, b'\\x01')", "another process");
    assert_eq!(attic.ask("lock(3,5,1) or hear()"), "(7, 1, b'\\x16\\x00\\x00\\x00')");
    // The fid ends, and with it all of them.
    assert_eq!(attic.ask("ask(120,struct.pack('<I',1))"), "(121, 1, b'')");
    assert_eq!(hall.ask("lk(EX)"), "done");
    hall.end();
    attic.end();
}

#[test]
fn locks_outlive_the_server_and_the_frontend_of_their_holder() {
    let Some(node) = start("") else { return };
    let (mut hall, mut attic) = (locker(&node, "hall"), locker(&node, "attic"));
    assert_eq!(hall.ask("lk(EX,0,10)"), "done");
    assert_eq!(hall.ask("fl(EX)"), "done");
    attic.say("lk(EX,5,1)");
    await_waiters(&node, 1);
    node::kill(server(&node));
    // Nobody gets it at the next server; the waiter waits on, and its holder writes.
    let mut beside = locker(&node, "attic");
    assert_eq!(beside.ask("lk(SH|NB,0,1)"), "EAGAIN");
    assert_eq!(beside.ask("fl(SH|NB)"), "EAGAIN");
    assert_eq!(hall.ask("os.write(f,b'x')"), "1");
    // All frontends die, the holder's and the waiter's.
    node::kill_and_wait(&node.pids("frontend"));
    assert_eq!(beside.ask("lk(SH|NB,0,1)"), "EAGAIN");
    assert_eq!(hall.ask("os.write(f,b'x')"), "1");
    assert_eq!(hall.ask("lk(UN,5,1)"), "done");
    assert_eq!(attic.hear(), "done");
    assert_eq!(beside.ask("get(fcntl.F_WRLCK,0,0)[:3]"), "(1, 0, 5)");
    assert_eq!(hall.ask("lk(UN) or fl(UN)"), "done");
    assert_eq!(beside.ask("fl(EX|NB)"), "done");
    // What holds in one domain alone is its frontend's, and outlives it as well.
    let own = "globals().update(o=os.open('/srv/self/quality',os.O_RDWR)) or lk(EX,0,1,o)";
    assert_eq!(hall.ask(own), "done");
    node::kill_and_wait(&node.pids("frontend"));
    let mut other = locker(&node, "hall");
    assert_eq!(other.ask(&own.replace("EX,", "EX|NB,")), "EAGAIN");
    assert_eq!(hall.ask("os.close(o)"), "done");
    assert_eq!(other.ask("lk(EX|NB,0,1,o)"), "done");
    [hall, attic, beside, other].into_iter().for_each(Program::end);
}

/// The holder's frontend does not come back to a new server in time, and somebody else gets the
/// lock: its program is told before it writes.
#[test]
fn a_lock_that_is_lost_ends_the_use_of_its_file() {
    let Some(node) = start("") else { return };
    let (mut hall, mut attic) = (locker(&node, "hall"), locker(&node, "attic"));
    assert_eq!(hall.ask("lk(EX)"), "done");
    let frontend = node.json(&["inspect", "dc/house/domains/hall"]);
    let frontend = frontend["frontend"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let frontend = frontend.expect("it runs");
    signal(frontend, "-STOP");
    node::kill(server(&node));
    assert_eq!(attic.ask("lk(EX)"), "done");
    signal(frontend, "-CONT");
    wait::until("it is told", || hall.ask("os.write(f,b'x')") == "EIO");
    assert_eq!(hall.ask("lk(EX|NB)"), "EIO");
    assert_eq!(attic.ask("lk(UN)"), "done");
    let again = "globals().update(f=os.open('/srv/tree/f',os.O_RDWR)) or lk(EX|NB,0,0,f)";
    assert_eq!(hall.ask(again), "done", "opened anew, it can be used");
    assert_eq!(hall.ask("os.write(f,b'x')"), "1");
    hall.end();
    attic.end();
}
